"""The identity of files: their contents if these are quick to read, else their sizes and modification times."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clearformer.errors import DataError

# This much is read in a fraction of a second; more would delay every command on prepared data.
COMPARED_BYTES = 100_000_000
PARTS = "parts"  # of an identity that is made of several, by name
BY_CONTENTS, BY_TIMES = "contents", "sizes and times of change"


def identity_of_files(files: Mapping[str, Path]) -> dict[str, Any]:
    """Identify named files by values for JSON that are equal if the files are.

    Up to `COMPARED_BYTES` in total, only names and contents count. Above that, sizes and modification times stand in
    for contents: a rewritten file with the same size and time passes for the old one (see `assumption`).

    Raises:
        DataError: one of them cannot be read.
    """
    sizes_and_times = {name: _size_and_time(path) for name, path in files.items()}
    total = sum(size for size, _ in sizes_and_times.values())
    compared = BY_CONTENTS if total <= COMPARED_BYTES else BY_TIMES
    listing = hashlib.sha256()
    for name, path in files.items():
        size, changed = sizes_and_times[name]
        state = _sha256(path) if compared == BY_CONTENTS else str(changed)
        listing.update(f"{name}\0{size}\0{state}\n".encode("utf-8", "surrogateescape"))
    return {
        "n_files": len(files),
        "size": total,
        "compared_by": compared,
        "listing_sha256": listing.hexdigest(),
    }


def assumption(identity: Mapping[str, Any]) -> str:
    """Describe the assumption under which prepared data are reused; empty if file contents were compared."""
    parts: Mapping[str, Any] = identity.get(PARTS, {"all": identity})
    if all(part.get("compared_by") != BY_TIMES for part in parts.values()):
        return ""
    return (
        f"assumed unchanged: sizes and modification times are the same (over {COMPARED_BYTES / 1e6:,.0f} MB, "
        "contents are not compared); touch a file to have all of it read again"
    )


def _size_and_time(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise _unreadable(path, error) from None
    return status.st_size, status.st_mtime_ns


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: OSError) -> DataError:
    return DataError(f"{path}: cannot be read: {error.strerror or error}")
