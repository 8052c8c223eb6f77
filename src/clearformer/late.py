"""Functions that a low-level package offers, but that a higher-level one implements.

`clearformer/__init__.py` registers where they are implemented; they are imported at first use. So `lens.show` can be
called on the lens, which does not import the page that implements it.
"""

from collections.abc import Callable
from typing import Any

_PLACES: dict[str, Callable[[], Callable[..., Any]]] = {}


def say_where(name: str, find: Callable[[], Callable[..., Any]]) -> None:
    """Register where a function is implemented.

    Args:
        name: The name under which it is offered, such as `lens.show`.
        find: Imports it.
    """
    _PLACES[name] = find


def made_above(name: str) -> Callable[..., Any]:
    """Import and return a function that `say_where` registered."""
    return _PLACES[name]()
