"""Commands of this program as lines for a terminal, called as the user called it."""

import os
import shlex
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

_imported: list[Path] = []  # the files that the present command was given with --import


def begin_imports() -> None:
    """Forget what an earlier command of this process was given with --import."""
    _imported.clear()


def remember_imports(files: Iterable[Path]) -> None:
    """Record files that the present command was given with --import, after its name or after its group's."""
    _imported.extend(files)


def to_type(command: str, program: str | None = None) -> str:
    """Return the line for a terminal that runs a command of this program, with the parts that this one imported.

    Args:
        command: The command and its arguments.
        program: How the program is started; by default as this process was.
    """
    imported = "".join(f" --import {shlex.quote(_from_here(file))}" for file in _imported)
    return f"{program or program_as_called()} {command}{imported}"


def _from_here(file: Path) -> str:
    try:
        return os.path.relpath(file)
    except ValueError:  # on another drive
        return str(file)


def program_as_called() -> str:
    """Return what a user types to call this program: its name, or its path if the name is not on the PATH."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return "python -m clearformer"
    return called.name if shutil.which(called.name) else shlex.quote(str(called))
