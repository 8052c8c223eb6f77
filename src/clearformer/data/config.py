"""Settings that every kind of data shares."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from clearformer.config import Spec
from clearformer.errors import ConfigError

Form = Literal["text", "pairs", "labelled"]

SOURCES = ("name", "path", "source", "val_path", "val_source", "test_path")
"""The settings that say where the data are."""


class DataSpec(Spec):
    """Section `data` of a run, of any kind.

    To add a kind, subclass `TextData`, `PairsData` or `LabelledData` and define the method that yields the data:
    `documents`, `pairs` or `labelled_texts`.

    Attributes:
        form: The form of the data, which decides the objectives that can learn from them.
        made_by: The name of that method.
    """

    form: ClassVar[Form]
    made_by: ClassVar[str]

    @model_validator(mode="after")
    def _own_data_lie_nowhere(self) -> Self:
        given = [field for field in SOURCES if getattr(self, field, None) is not None]
        if self.makes_its_own and given:
            raise ValueError(
                f"{given[0]}={getattr(self, given[0])!r} has no effect: this kind makes its own data in "
                f"{self.made_by}(); remove it"
            )
        return self

    @property
    def makes_its_own(self) -> bool:
        """Whether the kind itself yields its data."""
        return hasattr(type(self), self.made_by)

    def made(self) -> Any:
        """Return the rows that the kind itself yields."""
        return getattr(self, self.made_by)()

    @classmethod
    def about(cls) -> str:
        """Return the first line of the kind's docstring."""
        return (cls.__doc__ or cls.__name__).strip().partition("\n")[0]

    @classmethod
    def settings_of_files(cls, files: Sequence[str]) -> dict[str, str]:
        """Return the settings for data in the given files.

        Raises:
            ConfigError: there are too many.
        """
        if len(files) != 1:
            raise ConfigError(f"takes one file; got {len(files)}")
        return {"path": files[0]}


def exact(fraction: float) -> Fraction:
    """Return the decimal that a user wrote, without binary rounding: 0.1 is 1/10."""
    return Fraction(repr(fraction))
