"""Docstrings begin with a verb or a noun: "Parses a line" or "The ids of a text", and never "What a text holds"."""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "clearformer"


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each string that stands by itself: of modules, classes, functions and attributes."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text


def starting_with_what(path: Path) -> list[str]:
    """The places of docstrings that begin with "What"."""
    return [f"{path.name}:{line}" for line, text in docstrings(path) if text.lstrip().startswith("What")]


def test_no_docstring_begins_with_what() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 100
    assert [place for path in files for place in starting_with_what(path)] == []
