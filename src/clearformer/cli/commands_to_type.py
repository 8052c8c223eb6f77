"""Commands of this program as lines for a terminal, called as the user called it."""

import os
import shlex
import shutil
import sys
from pathlib import Path


def to_type(command: str) -> str:
    """Return the line for a terminal that runs a command of this program with the parts that were imported here."""
    imported = "".join(f" --import {shlex.quote(os.path.relpath(file))}" for file in _imported_files())
    return f"{program_as_called()} {command}{imported}"


def _imported_files() -> list[Path]:
    if (
        "clearformer.registry" not in sys.modules
    ):  # it imports torch, and without it nothing was imported here
        return []
    from clearformer.registry import imported_files

    return imported_files()


def program_as_called() -> str:
    """Return what a user types to call this program: its name, or its path if the name is not on the PATH."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return "python -m clearformer"
    return called.name if shutil.which(called.name) else str(called)
