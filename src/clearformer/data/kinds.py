"""What there is built in of each kind of data, and which kind some settings mean."""

from collections.abc import Mapping
from typing import Any, Protocol

from clearformer.config import Spec
from clearformer.data.config import PairsData, TextData
from clearformer.data.labelled import LabelledData
from clearformer.data.labelled_sources import LABELLED_BUILT_IN
from clearformer.data.pair_sources import BUILT_IN_PAIRS
from clearformer.data.sources import BUILT_IN


class KnownByName(Protocol):
    """What every built-in text or set of texts says of itself."""

    @property
    def about(self) -> str: ...
    @property
    def size(self) -> str: ...
    def where(self) -> str | None:
        """Where it is on this machine, or None where it is not."""
        ...


KINDS: dict[str, type[Spec]] = {"text": TextData, "pairs": PairsData, "labelled": LabelledData}

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
    for kind, known in BUILT_IN_BY_KIND.items():
        if settings.get("name") in known:
            return kind
    fitting = [kind for kind, spec in KINDS.items() if set(settings) <= spec.model_fields.keys()]
    return fitting[0] if len(fitting) == 1 else None
