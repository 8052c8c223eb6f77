"""Reading a foreign config.json field by field, with checks that name the field at fault."""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar

from clearformer.errors import ConfigError, shown

T = TypeVar("T")

LARGEST = 2**26


class Fields:
    """The fields of a config.json; absent or null fields take the architecture's default.

    `spelled` has the names in the file of those fields that it has under another name.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        place: str = "config.json",
        spelled: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.values = values
        self.place = place
        self.spelled = spelled

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def renamed(self, aliases: Mapping[str, str]) -> "Fields":
        """Return the fields by their own names, given the names by which transformers reads them too.

        Raises:
            ConfigError: a field is there under two names, with different values.
        """
        spelled = {name: alias for alias, name in aliases.items() if alias in self and name not in self}
        for alias, name in aliases.items():
            value, other = self.get(name), self.get(alias)
            if value is not None and other is not None and value != other:
                self.refuse(
                    alias, f"another name of {name}, which is {shown(value)}; got {shown(other)}: delete one"
                )
        values = {name: self.values[alias] for name, alias in spelled.items()}
        return Fields({**self.values, **values}, self.place, spelled)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field unchecked."""
        value = self.values.get(name)
        return default if value is None else value

    def whole(self, name: str, default: int | None = None) -> int:
        """Return a whole number from 1 to `LARGEST`."""
        value = self.get(name, default)
        if type(value) is not int or not 1 <= value <= LARGEST:
            self.refuse(name, f"expected a whole number from 1 to {LARGEST:,}; got {shown(value)}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Return a number of at least 0."""
        value = self.get(name, default)
        if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
            self.refuse(name, f"expected a number of at least 0; got {shown(value)}")
        return float(value)

    def positive(self, name: str, default: float | None = None) -> float:
        """Return a number above 0."""
        value = self.number(name, default)
        if value == 0:
            self.refuse(name, "expected a number above 0; got 0")
        return value

    def flag(self, name: str, default: bool | None = None) -> bool:
        """Return a field that is true or false."""
        value = self.get(name, default)
        if type(value) is not bool:
            self.refuse(name, f"expected true or false; got {shown(value)}")
        return value

    def ids(self, name: str) -> list[int]:
        """Return the ids of a field that holds one token's id or a list of them; none if it is absent."""
        value = self.get(name, [])
        ids = value if isinstance(value, list) else [value]
        if not all(type(each) is int for each in ids):
            self.refuse(name, f"expected the id of a token, a whole number; got {shown(value)}")
        return ids

    def choice(self, name: str, default: str | None, table: Mapping[str, T]) -> T:
        """Return the entry of a table that a field names."""
        value = self.get(name, default)
        if not isinstance(value, str) or value not in table:
            self.refuse(name, f"clearformer supports {', '.join(table)}; got {shown(value)}")
        return table[value]

    def only(self, name: str, wanted: Any) -> None:
        """Refuse a field with any other value than the only one that clearformer's model has."""
        if name in self and self.values[name] != wanted:
            self.refuse(name, f"clearformer's model supports only {wanted!r}; got {shown(self.values[name])}")

    def same(self, name: str, other: str, default: Any = None) -> None:
        """Refuse different values of two fields for which clearformer's model has one setting.

        Without a default, an absent field has the value of the other.
        """
        value, second = self.get(name, default), self.get(other, default)
        if value is not None and second is not None and value != second:
            self.refuse(
                other,
                f"clearformer's model has one setting for this and {self.spelled.get(name, name)}; "
                f"got {shown(second)} and {shown(value)}",
            )

    def refuse(self, name: str, why: str) -> NoReturn:
        """Raise ConfigError with a message that names the field."""
        raise ConfigError(f"{self.place}: {self.spelled.get(name, name)}: {why}")
