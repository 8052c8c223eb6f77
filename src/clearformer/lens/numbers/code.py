"""Where in this project's code a number is computed: a line, found in the source of the function that does it."""

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
        file: Relative to the package; of code of one's own the whole path.
        line: Its number, from 1.
        text: The line, without its indentation.
        function: Whose line it is.
    """

    file: str
    line: int
    text: str
    function: str


@cache
def find_line(function: Callable[..., Any], marker: str) -> CodeLine | None:
    """The first line of a function that holds a marker; None where there is none, or no source is at hand."""
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
