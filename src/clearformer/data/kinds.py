"""The kinds of data: the built-in sets of each, the kind that some settings describe, and preparing any of them."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Protocol

from pydantic import Field

from clearformer.config import Spec
from clearformer.data.config import DataSpec, Form
from clearformer.data.labelled.config import LabelledData
from clearformer.data.labelled.preparing import LabelledDataset, prepare_labelled
from clearformer.data.labelled.sources import LABELLED_BUILT_IN
from clearformer.data.pairs.config import PairsData
from clearformer.data.pairs.preparing import PairDataset, prepare_pairs
from clearformer.data.pairs.sources import BUILT_IN_PAIRS
from clearformer.data.text.config import TextData
from clearformer.data.text.preparing import Dataset, Progress, prepare
from clearformer.data.text.sources import BUILT_IN
from clearformer.text import CharTokenizerSpec, Tokenizer, TokenizerConfig

Data = Annotated[TextData | PairsData | LabelledData, Field(discriminator="kind")]
"""Section `data` of a run: the kinds of data that there are."""


class PrepareConfig(Spec):
    """The sections of a run that tokens depend on; kinds of one's own join them as they join `RunConfig`'s."""

    data: Data = TextData()
    tokenizer: TokenizerConfig = CharTokenizerSpec()


Prepared = Dataset | PairDataset | LabelledDataset
"""Data of some kind as tokens: `splits` by name, `tokenizer`, and `manifest` with the SHA-256 of all of the source."""


class KnownByName(Protocol):
    """The description of a built-in text or set of texts."""

    @property
    def about(self) -> str: ...
    @property
    def size(self) -> str: ...
    def where(self) -> str | None:
        """Where it is on this machine, or None where it is not."""
        ...


KINDS: dict[Form, type[TextData] | type[PairsData] | type[LabelledData]] = {
    "text": TextData,
    "pairs": PairsData,
    "labelled": LabelledData,
}
"""The package's kind of each form."""

OWN_KINDS: dict[str, type[DataSpec]] = {}
"""Kinds of one's own, by name; `registry.register("data")` adds one."""

BUILT_IN_BY_KIND: dict[str, Mapping[str, KnownByName]] = {
    "text": BUILT_IN,
    "pairs": BUILT_IN_PAIRS,
    "labelled": LABELLED_BUILT_IN,
}


def kind_of(settings: Mapping[str, Any]) -> str | None:
    """The kind that settings of section `data` mean without naming it; None where they could be of several.

    A built-in's name says it (`name=dates` are pairs), and so does a setting that only one kind has.
    """
    if isinstance(kind := settings.get("kind"), str):
        return kind
    name = settings.get("name")
    for kind, known in BUILT_IN_BY_KIND.items():
        if isinstance(name, str) and name in known:
            return kind
    fitting = [kind for kind, spec in KINDS.items() if set(settings) <= spec.model_fields.keys()]
    return fitting[0] if len(fitting) == 1 else None


def section_settings(layers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The settings of section `data` in layers of settings, later ones winning; a word alone is the kind.

    Anything else in place of the section is left to the check of the whole configuration.
    """
    settings: dict[str, Any] = {}
    for layer in layers:
        section = layer.get("data")
        settings |= (
            {"kind": section} if isinstance(section, str) else section if isinstance(section, dict) else {}
        )
    return settings


def form_of(kind: str) -> str:
    """The form of a kind of data; the name itself, where there is no such kind."""
    return OWN_KINDS[kind].form if kind in OWN_KINDS else kind


def prepare_data(
    data: Data,
    tokenizer: TokenizerConfig | Tokenizer,
    *,
    max_tokens: int | None = None,
    check: bool = False,
    progress: Progress = lambda *_: None,
) -> Prepared:
    """Data of any kind as tokens, made now or found in the cache.

    Args:
        data: which, and how they are split.
        tokenizer: how to make one, or one that is made.
        max_tokens: the model's positions, into which both sides of a pair must fit; of other kinds it is not asked.
        check: whether what is found in the cache is read and compared with its SHA-256; labelled texts always are.
        progress: called with how far it is.

    Raises:
        DataError: the data cannot be used as they are.
        TokenizerError: a given tokeniser has no token for some of them, or lacks a special one.
        DiskError: the cache cannot be written.
    """
    match data:
        case TextData():
            return prepare(data, tokenizer, check=check, progress=progress)
        case PairsData():
            return prepare_pairs(data, tokenizer, max_tokens, check=check, progress=progress)
        case LabelledData():
            return prepare_labelled(data, tokenizer, progress=progress)
