"""The line of this project's code that computes a number, found in the source of its function."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[2]


@dataclass(frozen=True)
class CodeLine:
    """One line of code.

    Attributes:
        file: The path relative to the package; the whole path for a user's code.
        line: Its number, from 1.
        text: The line, without its indentation.
        function: The function that contains it.
    """

    file: str
    line: int
    text: str
    function: str


@cache
def find_line(function: Callable[..., Any], marker: str) -> CodeLine | None:
    """Return the first line of a function that contains a marker; None if there is none, or no source is available."""
    function = inspect.unwrap(function)
    try:
        lines, first = inspect.getsourcelines(function)
        path = Path(inspect.getsourcefile(function) or "").resolve()
    except (OSError, TypeError):
        return None
    at = next((i for i, line in enumerate(lines) if marker in line), None)
    if at is None:
        return None
    file = path.relative_to(PACKAGE) if path.is_relative_to(PACKAGE) else path
    return CodeLine(file.as_posix(), first + at, lines[at].strip(), function.__qualname__)
