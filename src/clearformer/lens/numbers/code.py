"""The line of this project's code that computes a number, found in the source of its function."""

import ast
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import dedent
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
    """Return the first line of code in a function that contains a marker, its docstring and comments left out.

    None if there is none, or no source is available.
    """
    function = inspect.unwrap(function)
    try:
        lines, first = inspect.getsourcelines(function)
        path = Path(inspect.getsourcefile(function) or "").resolve()
    except (OSError, TypeError):
        return None
    begin = lines_before_code(lines)
    code = ((i, line.strip()) for i, line in enumerate(lines) if i >= begin)
    at = next((i for i, line in code if marker in line and not line.startswith("#")), None)
    if at is None:
        return None
    file = path.relative_to(PACKAGE) if path.is_relative_to(PACKAGE) else path
    return CodeLine(file.as_posix(), first + at, lines[at].strip(), function.__qualname__)


def lines_before_code(lines: list[str]) -> int:
    """Return the number of lines of a function up to the end of its docstring; 0 if it has none."""
    try:
        function = ast.parse(dedent("".join(lines))).body[0]
    except SyntaxError:  # a lambda's lines need not be a whole statement
        return 0
    if not isinstance(function, ast.FunctionDef) or ast.get_docstring(function) is None:
        return 0
    return function.body[0].end_lineno or 0
