"""The kinds of data: built-in data of each kind, the kind that settings imply, and preparing data of any kind."""

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
from clearformer.parts import is_known, load_installed_parts
from clearformer.text import CharTokenizerSpec, Tokenizer, TokenizerConfig

Data = Annotated[TextData | PairsData | LabelledData, Field(discriminator="kind")]
"""Section `data` of a run, of one of the kinds."""


class PrepareConfig(Spec):
    """The sections of a run that its tokens depend on; registered kinds join them as they join `RunConfig`'s."""

    data: Data = TextData()
    tokenizer: TokenizerConfig = CharTokenizerSpec()


Prepared = Dataset | PairDataset | LabelledDataset
"""Data of some kind as tokens: `splits` by name, `tokenizer`, and `manifest` with the SHA-256 of all of the source."""


class KnownByName(Protocol):
    """The description of a built-in data set."""

    @property
    def about(self) -> str: ...
    @property
    def size(self) -> str: ...
    def where(self) -> str | None:
        """Return where it is on this machine, or None if it is not there."""
        ...


KINDS: dict[Form, type[TextData] | type[PairsData] | type[LabelledData]] = {
    "text": TextData,
    "pairs": PairsData,
    "labelled": LabelledData,
}
"""The package's kind of each form."""

OWN_KINDS: dict[str, type[DataSpec]] = {}
"""Kinds that users registered, by name; `registry.register("data")` adds one."""

BUILT_IN_BY_KIND: dict[str, Mapping[str, KnownByName]] = {
    "text": BUILT_IN,
    "pairs": BUILT_IN_PAIRS,
    "labelled": LABELLED_BUILT_IN,
}


def kind_of(settings: Mapping[str, Any]) -> str | None:
    """Return the kind that settings of section `data` name or imply; None if they fit several.

    A built-in's name implies it (`name=dates` are pairs), and so does a setting that only one kind has.
    """
    if isinstance(kind := settings.get("kind"), str):
        return kind
    if isinstance(name := settings.get("name"), str):
        if name not in built_in_names():
            load_installed_parts()  # one of which may have registered it
        if kind := built_in_names().get(name):
            return kind
    fitting = [kind for kind, spec in KINDS.items() if set(settings) <= spec.model_fields.keys()]
    return fitting[0] if len(fitting) == 1 else None


def built_in_names() -> dict[str, str]:
    """Return the kind of each built-in data set by its name, those included that were registered."""
    return {name: kind for kind, known in reversed(BUILT_IN_BY_KIND.items()) for name in known}


def section_settings(layers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the settings of section `data` from layers of settings; later layers win, and a lone word is the kind.

    Any other value in place of the section is ignored here; the check of the whole configuration reports it.
    """
    settings: dict[str, Any] = {}
    for layer in layers:
        section = layer.get("data")
        settings |= (
            {"kind": section} if isinstance(section, str) else section if isinstance(section, dict) else {}
        )
    return settings


def form_of(kind: str) -> str:
    """Return the form of a registered kind of data; for any other name, the name itself."""
    return OWN_KINDS[kind].form if kind not in KINDS and is_known(kind, OWN_KINDS) else kind


def prepare_data(
    data: Data,
    tokenizer: TokenizerConfig | Tokenizer,
    *,
    max_tokens: int | None = None,
    check: bool = False,
    uses_labels: bool = True,
    progress: Progress = lambda *_: None,
) -> Prepared:
    """Prepare data of any kind as tokens, or open what the cache holds.

    Args:
        data: The data, and how they are split.
        tokenizer: The tokenizer of a trained model, or the spec to train one from.
        max_tokens: The model's positions, into which both sides of a pair must fit; other kinds ignore it.
        check: Whether to verify the SHA-256 of what is found in the cache.
        uses_labels: Whether the labels of labelled texts are to be learnt.
        progress: Called with the progress.

    Raises:
        DataError: the data cannot be used as they are.
        TokenizerError: a given tokenizer has no token for some of them, or lacks a special one.
        DiskError: the cache cannot be written.
    """
    match data:
        case TextData():
            return prepare(data, tokenizer, check=check, progress=progress)
        case PairsData():
            is_trained = isinstance(tokenizer, Tokenizer)
            return prepare_pairs(
                data, tokenizer, max_tokens, is_trained=is_trained, check=check, progress=progress
            )
        case LabelledData():
            return prepare_labelled(data, tokenizer, check=check, uses_labels=uses_labels, progress=progress)
