"""Docstrings begin with a verb or a noun: "Parses a line" or "The ids of a text", and never "What a text holds"."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "clearformer"
NOT_YET = ("cli/commands/translate.py", "config.py", "decoding", "device.py", "lens", "run.py")
"""Files and folders whose docstrings are still to be rewritten; to become empty."""


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each string that stands by itself: of modules, classes, functions and attributes."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text


def starting_with_what(path: Path) -> list[str]:
    """The places of docstrings that begin with "What"."""
    return [f"{path.name}:{line}" for line, text in docstrings(path) if text.lstrip().startswith("What")]


def is_left_for_later(path: Path) -> bool:
    """Whether a file is in `NOT_YET`, or in a folder that is."""
    name = path.relative_to(PACKAGE).as_posix()
    return any(name == entry or name.startswith(f"{entry}/") for entry in NOT_YET)


def test_no_docstring_begins_with_what() -> None:
    files = [path for path in sorted(PACKAGE.rglob("*.py")) if not is_left_for_later(path)]
    assert len(files) > 100
    assert [place for path in files for place in starting_with_what(path)] == []


@pytest.mark.parametrize("entry", NOT_YET)
def test_the_list_of_those_left_for_later_has_no_entry_too_many(entry: str) -> None:
    place = PACKAGE / entry
    files = sorted(place.rglob("*.py")) if place.is_dir() else [place]
    assert any(starting_with_what(path) for path in files), f"{entry} is done: take it off the list"


def test_a_docstring_is_found_wherever_it_stands(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text(
        '"""Fine."""\nclass A:\n    """What a."""\n    b: int\n    """What b."""\n    c = "What"\n'
    )
    assert starting_with_what(file) == ["a.py:3", "a.py:5"]
