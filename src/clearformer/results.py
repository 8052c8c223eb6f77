"""Results of computations: values by name, short to look at."""

import math
from dataclasses import fields
from typing import Any

from clearformer.errors import shortened

MOST_SHOWN = 4  # values of a list; of more, how many there are is said
LONGEST_TEXT = 48  # characters


class Result:
    """The base of frozen dataclasses that a user is handed: short to look at, whole as `to_dict()`."""

    def __repr__(self) -> str:
        values = (f"{field.name}={short(getattr(self, field.name))}" for field in fields(self) if field.repr)  # type: ignore[arg-type]
        return f"{type(self).__name__}({', '.join(values)})"

    def to_dict(self) -> dict[str, Any]:
        """Its values as `json.dumps` takes them; a number that is not finite becomes None."""
        return {field.name: plain(getattr(self, field.name)) for field in fields(self) if field.repr}  # type: ignore[arg-type]


def short(value: Any) -> str:
    """A value in a few characters."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, str):
        return repr(shortened(value, LONGEST_TEXT))
    if isinstance(value, list | tuple | dict) and len(value) > MOST_SHOWN:
        return f"<{len(value):,} values>"
    if isinstance(value, list):
        return f"[{', '.join(map(short, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{short(key)}: {short(each)}' for key, each in value.items())}}}"
    if (shape := getattr(value, "shape", None)) is not None:
        return f"<array {list(shape)}>"
    return repr(value)


def plain(value: Any) -> Any:
    """A value in JSON's types."""
    if isinstance(value, Result):
        return value.to_dict()
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    return value
