"""A user's own code: the files that `--import` runs, and the modules that installed packages name.

No settings, weights or other data name code to run. What such a module registers is in `registry`.
"""

import importlib.util
import os
import sys
from collections.abc import Container
from functools import cache
from hashlib import blake2b
from importlib import metadata
from pathlib import Path

from clearformer.errors import ConfigError, shown
from clearformer.files import user_path

ENTRY_POINTS = "clearformer.parts"
"""The entry points where an installed package names the modules of its kinds."""

IMPORTED_AS = "clearformer_parts_"
"""The beginning of the name of a module that `import_parts` runs."""


def import_parts(file: str | Path) -> None:
    """Run a Python file that registers parts; a file that has been run already is skipped.

    Raises:
        ConfigError: there is no such file, or it raises an error.
    """
    path = user_path(file).resolve()
    # Named by its path too: two files may have one name, in different folders.
    name = f"{IMPORTED_AS}{path.stem}_{blake2b(os.fsencode(path), digest_size=8).hexdigest()}"
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ConfigError(f"--import: {file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # annotations are looked up there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        sys.modules.pop(name)
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"--import: {file} failed: {type(error).__name__}: {shown(str(error))}") from error


def imported_files() -> list[Path]:
    """Return the files that `import_parts` has run, so that another process can import the same parts."""
    files = (
        getattr(module, "__file__", None)
        for name, module in sys.modules.items()
        if name.startswith(IMPORTED_AS)
    )
    return [Path(file) for file in files if file]


def is_known(name: str, known: Container[str]) -> bool:
    """Whether a name is registered, also by a part that an installed package brings.

    Raises:
        ConfigError: an installed package's part cannot be imported.
    """
    return name in known or (load_installed_parts() and name in known)


@cache
def load_installed_parts() -> bool:
    """Import the parts that installed packages name in their entry points, once; return whether there are any.

    Raises:
        ConfigError: one of them cannot be imported.
    """
    entry_points = metadata.entry_points(group=ENTRY_POINTS)
    for entry_point in entry_points:
        try:
            entry_point.load()
        except Exception as error:
            raise ConfigError(
                f"the plugin {entry_point.value!r} of an installed package cannot be imported: {type(error).__name__}: "
                f"{shown(str(error))}"
            ) from error
    return bool(entry_points)
