"""A foreign config.json, read field by field: each is checked, and what is refused is named."""

import math
from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

from clearformer.errors import ConfigError, shown

T = TypeVar("T")

LARGEST = 2**26


class Fields:
    """The fields of a config.json; what is absent or null is what its architecture takes by default."""

    def __init__(self, values: Mapping[str, Any], place: str = "config.json") -> None:
        self.values = values
        self.place = place

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def get(self, name: str, default: Any = None) -> Any:
        """A field as it stands."""
        value = self.values.get(name)
        return default if value is None else value

    def whole(self, name: str, default: int | None = None) -> int:
        """A whole number of at least 1, and of a size that a model may have."""
        value = self.get(name, default)
        if type(value) is not int or not 1 <= value <= LARGEST:
            self.refuse(name, f"expected a whole number from 1 to {LARGEST:,}; got {shown(value)}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A number of at least 0."""
        value = self.get(name, default)
        if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
            self.refuse(name, f"expected a number of at least 0; got {shown(value)}")
        return float(value)

    def positive(self, name: str, default: float | None = None) -> float:
        """A number above 0."""
        value = self.number(name, default)
        if value == 0:
            self.refuse(name, "expected a number above 0; got 0")
        return value

    def flag(self, name: str, default: bool | None = None) -> bool:
        """true or false."""
        value = self.get(name, default)
        if type(value) is not bool:
            self.refuse(name, f"expected true or false; got {shown(value)}")
        return value

    def choice(self, name: str, default: str | None, table: Mapping[str, T]) -> T:
        """The entry of a table that a field names."""
        value = self.get(name, default)
        if not isinstance(value, str) or value not in table:
            self.refuse(name, f"clearformer supports {', '.join(table)}; got {shown(value)}")
        return table[value]

    def only(self, name: str, wanted: Any) -> None:
        """Refuse a field that is set to anything else than the one value that clearformer's model has."""
        if name in self and self.values[name] != wanted:
            self.refuse(name, f"clearformer's model supports only {wanted!r}; got {shown(self.values[name])}")

    def same(self, name: str, other: str) -> None:
        """Refuse two fields that differ where clearformer's model has one setting for both."""
        if name in self and other in self and self.values[name] != self.values[other]:
            self.refuse(
                other,
                f"clearformer's model has one setting for this and {name}; "
                f"got {shown(self.values[other])} and {shown(self.values[name])}",
            )

    def refuse(self, name: str, why: str) -> NoReturn:
        """End with one line that names the field."""
        raise ConfigError(f"{self.place}: {name}: {why}")
