"""Settings that every kind of data shares."""

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

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
        default_name: The built-in data to read if no data are named.
        one_of: Groups of settings of which one may be given.
    """

    form: ClassVar[Form]
    made_by: ClassVar[str]
    default_name: ClassVar[str]
    one_of: ClassVar[tuple[tuple[str, ...], ...]] = (("name", "path"),)

    if TYPE_CHECKING:  # settings of every kind
        kind: Any
        name: Any
        path: Any

    @model_validator(mode="after")
    def _own_data_lie_nowhere(self) -> Self:
        given = [field for field in SOURCES if getattr(self, field, None) is not None]
        if self.makes_its_own and given:
            raise ValueError(
                f"{given[0]}={getattr(self, given[0])!r} has no effect: this kind makes its own data in "
                f"{self.made_by}(); remove it"
            )
        return self

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        self._check_one_of_each_group()
        return self

    def _check_one_of_each_group(self) -> None:
        for group in self.one_of:
            given = [
                f"{field}={getattr(self, field)!r}" for field in group if getattr(self, field) is not None
            ]
            if len(given) > 1:
                raise ValueError(f"{' and '.join(given)} are both set: keep one, and set the other to none")

    @property
    def makes_its_own(self) -> bool:
        """Whether the kind itself yields its data."""
        return hasattr(type(self), self.made_by)

    @property
    def label(self) -> str:
        """A short name of the data: the built-in's, or the file's without its suffixes."""
        if self.makes_its_own:
            return self.kind
        return self.name or (Path(self.path).name.partition(".")[0] if self.path else self.default_name)

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
