"""Functions that a part offers under its own name, and a part above it makes.

The package itself says where they are made, as it does for its public names; they are imported at their first use. So
`lens.show` can be asked of the lens, which knows nothing of the page that shows it.
"""

from collections.abc import Callable
from typing import Any

_PLACES: dict[str, Callable[[], Callable[..., Any]]] = {}


def say_where(name: str, find: Callable[[], Callable[..., Any]]) -> None:
    """Say how a function is found.

    Args:
        name: Under which a part offers it, such as `lens.show`.
        find: Imports it.
    """
    _PLACES[name] = find


def made_above(name: str) -> Callable[..., Any]:
    """A function that a part above makes."""
    return _PLACES[name]()
