"""Results of computations: named values with a short `repr`."""

import math
from collections.abc import Mapping
from dataclasses import Field, fields, is_dataclass
from html import escape
from typing import Any

MOST_SHOWN = 4  # values of a list; a longer one is shown as its length
LONGEST_TEXT = 48  # characters


class Result:
    """The base of the frozen dataclasses that users receive, with a short `repr` and all values in `to_dict()`.

    Two results are equal if they are of one type and all fields in their `repr` are equal, arrays element by element;
    NaN, which stands for no value, equals NaN. A subclass needs `@dataclass(frozen=True, repr=False, eq=False)`;
    otherwise the decorator would replace these methods.
    """

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(
            equal(getattr(self, field.name), getattr(other, field.name)) for field in _shown_fields(self)
        )

    def __hash__(self) -> int:
        """Hash the strings and numbers; NaN, arrays, lists and mappings are left out."""
        values = (getattr(self, field.name) for field in _shown_fields(self))
        kept = (value for value in values if isinstance(value, str | int | float) and value == value)
        return hash((type(self), *kept))

    def __repr__(self) -> str:
        values = (f"{name}={short(value)}" for name, value in self._values().items())
        return f"{type(self).__name__}({', '.join(values)})"

    def _repr_html_(self) -> str:
        """Return a table for a notebook, with texts in full."""
        values = self._values().items()
        return html_table({name: value if isinstance(value, str) else short(value) for name, value in values})

    def _values(self) -> dict[str, Any]:
        """Return the values to show; by default its fields."""
        return {field.name: getattr(self, field.name) for field in _shown_fields(self)}

    def to_dict(self) -> dict[str, Any]:
        """Return its values in JSON's types; a number that is not finite becomes None."""
        return {field.name: plain(getattr(self, field.name)) for field in _shown_fields(self)}


def equal(one: Any, other: Any) -> bool:
    """Whether two values are equal, arrays and tensors by all their elements; NaN equals NaN."""
    shape = getattr(one, "shape", None)
    if shape is not None and hasattr(one, "tolist"):
        if type(one) is not type(other) or shape != other.shape:
            return False
        return bool(((one == other) | (one != one) & (other != other)).all())
    if isinstance(one, list | tuple) and type(one) is type(other):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    return bool(one == other) or (one != one and other != other)


def _shown_fields(result: Result) -> list[Field[Any]]:
    return [field for field in fields(result) if field.repr]  # type: ignore[arg-type]


def short(value: Any) -> str:
    """Return a value in a few characters."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, str):
        return repr(value if len(value) <= LONGEST_TEXT else f"{value[: LONGEST_TEXT - 3]}...")
    if isinstance(value, list | tuple | dict) and len(value) > MOST_SHOWN:
        return f"<{len(value):,} values>"
    if isinstance(value, list):
        return f"[{', '.join(map(short, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{short(key)}: {short(each)}' for key, each in value.items())}}}"
    if (shape := getattr(value, "shape", None)) is not None:
        return f"<array {list(shape)}>"
    return repr(value)


def html_table(values: Mapping[str, str]) -> str:
    """Return a table in HTML with a row for each value, after its name."""
    left = "style='text-align:left'"
    rows = (
        f"<tr><th {left}>{escape(name)}</th><td {left}>{escape(value)}</td></tr>"
        for name, value in values.items()
    )
    return f"<table>{''.join(rows)}</table>"


def plain(value: Any) -> Any:
    """Return a value in JSON's types; a number that is not finite becomes None."""
    if isinstance(value, Result):
        return value.to_dict()
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    return value
