"""Paths as users write them, JSON that others wrote, and writing so that a thing is complete or is not there."""

import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from clearformer.errors import DiskError, UserError, shown

UNFINISHED = ".unfinished-"
UNFINISHED_KEPT_SECONDS = 24 * 3600

_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def user_path(name: str | os.PathLike[str]) -> Path:
    """A path as a user wrote it, `~` for home; the home of nobody known stays as it is written.

    Raises:
        UserError: it is no path, or empty.
    """
    if not isinstance(name, str | os.PathLike):
        raise UserError(f"a path is wanted; got {shown(name)}")
    if not os.fspath(name):
        raise UserError("a path is wanted, and nothing is given (is a variable of the shell unset?)")
    return Path(os.path.expanduser(name))  # noqa: PTH111 (pathlib's raises where there is no such home)


def short_path(path: Path) -> Path:
    """A path for a message: from the current directory, where it lies below it."""
    try:
        here = Path.cwd()
    except OSError:  # the current directory is gone
        return path
    return path.relative_to(here) if path != here and path.is_relative_to(here) else path


def whole_path(name: str | Path) -> Path:
    """The same path from any folder, without links; one that leads in a circle stays as it is."""
    return Path(os.path.realpath(user_path(name)))


def data_folder() -> Path | None:
    """The folder of known data that `$CLEARFORMER_DATA` names, `~` for home; None where it names none."""
    own = os.environ.get("CLEARFORMER_DATA")
    return user_path(own) if own else None


def runs_folder() -> Path:
    """Where runs are kept: `$CLEARFORMER_RUNS`, `~` for home, else `runs` here."""
    return user_path(os.environ.get("CLEARFORMER_RUNS") or "runs")


def is_file(path: Path) -> bool:
    """Whether there is a file; a name that no file can have, such as one that is too long, is none."""
    return os.path.isfile(path)  # noqa: PTH113 (pathlib's raises for such a name)


@contextmanager
def disk_errors(place: Path, fix: str = "free some space, or choose another folder") -> Iterator[None]:
    """Words an error of writing at `place` as one line.

    Raises:
        DiskError: the disk is full, or the place may not be written.
    """
    try:
        yield
    except OSError as error:
        raise DiskError(f"{place}: cannot be written: {error.strerror or error}; {fix}") from error


def write_file(path: Path, content: bytes) -> None:
    """Writes a whole file, synced and then renamed into place.

    Raises:
        DiskError: it cannot be written; what stood there before is whole.
    """
    with file_made_whole(path) as unfinished, unfinished.open("xb") as file:
        file.write(content)


@contextmanager
def file_made_whole(path: Path) -> Iterator[Path]:
    """A file to write, which becomes `path` when the block ends well and is gone when it does not.

    Raises:
        DiskError: it cannot be written; what stood there before is whole.
    """
    with disk_errors(path):
        make_folders(path.parent)
        unfinished = _unfinished_in(path.parent)
        try:
            yield unfinished
            with unfinished.open("r+b") as file:
                sync(file.fileno())
            unfinished.replace(path)
            sync_folder(path.parent)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise


@contextmanager
def folder_made_whole(final: Path, last: str, *, shared: bool = False) -> Iterator[Path]:
    """A folder to fill, which becomes `final` when the block ends well and is gone when it does not.

    Links to `final` are followed. Where it is there and empty it stays the folder that it is, for a mount point, or
    a folder whose parent may not be written, cannot be replaced: it is filled entry by entry. Who fills the folder
    syncs its files; the folders are synced here.

    Args:
        final: A folder that is not there yet, or is empty.
        last: The file that says that the others are there too; it is moved into place after them.
        shared: Whether other processes may make the same folder at the same time: then the first whole one stays.

    Raises:
        DiskError: it cannot be written, or something else is in `final` when the block ends; that stays.
    """
    with disk_errors(final):
        place = Path(os.path.realpath(final))
        stays = place.is_dir() and not any(place.iterdir())
        parent = place if stays else place.parent
        make_folders(parent)
        remove_abandoned(parent)
        unfinished = _unfinished_in(parent)
        unfinished.mkdir()
        try:
            yield unfinished
            assert (unfinished / last).is_file(), f"nothing says that the folder is whole: no {last}"
            _sync_folders(unfinished)
            if stays:
                _move_contents(unfinished, place, last)
            else:
                _give_name(unfinished, place, last if shared else None)
            sync_folder(parent)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise


def _give_name(unfinished: Path, place: Path, whole_with: str | None) -> None:
    """Renames a folder; where there is one with the file `whole_with`, that one stays in its stead."""
    try:
        unfinished.rename(place)
    except OSError:
        if not place.exists():
            raise
        if whole_with is None or not (place / whole_with).is_file():
            raise _taken(place) from None
        shutil.rmtree(unfinished)


def _move_contents(source: Path, target: Path, last: str) -> None:
    """Moves all that is in a folder into the one it stands in, `last` when the rest is on the disk."""
    if any(path != source for path in target.iterdir()):
        raise _taken(target)
    moved: list[Path] = []
    try:
        for path in sorted(source.iterdir(), key=lambda path: path.name == last):
            if path.name == last:
                sync_folder(target)
            path.rename(target / path.name)
            moved.append(target / path.name)
        source.rmdir()
    except BaseException:
        for path in reversed(moved):
            _remove(path)
        raise


def _taken(place: Path) -> DiskError:
    return DiskError(
        f"{place}: something was written there in the meantime, and stays; choose another folder"
    )


def make_folders(folder: Path) -> None:
    """Makes a folder and those above it that are missing, and syncs those that they are in."""
    if not folder.is_dir():
        make_folders(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def discard(folder: Path) -> None:
    """Takes a folder out of the way in one move, then deletes it; another process may have done so first."""
    aside = _unfinished_in(folder.parent)
    aside.mkdir()
    try:
        with suppress(FileNotFoundError):
            folder.rename(aside / folder.name)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    sync_folder(folder.parent)


def sync(descriptor: int) -> None:
    """Waits until what was written is on the disk."""
    os.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """Waits until a folder's entries are on the disk, where the system can do so (Windows cannot)."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            sync(descriptor)
        finally:
            os.close(descriptor)


def _sync_folders(top: Path) -> None:
    for folder, _, _ in os.walk(top, topdown=False):
        sync_folder(Path(folder))


def remove_abandoned(folder: Path, after_seconds: float = UNFINISHED_KEPT_SECONDS) -> None:
    """Deletes what a killed process left half-made here, that long ago or more."""
    for path in folder.glob(f"{UNFINISHED}*"):
        with suppress(OSError):  # another process has done so, or it is another user's
            if time.time() - path.stat().st_mtime >= after_seconds:
                _remove(path)


def _remove(path: Path) -> None:
    """Deletes a file or a folder, as far as that can be done."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def _unfinished_in(folder: Path) -> Path:
    """A new name; what is made under it has the user's usual permissions, which tempfile's would not."""
    return folder / f"{UNFINISHED}{secrets.token_hex(8)}"


def parse_json(text: str) -> Any:
    """Parses a JSON text of which all can be written to a file again.

    Raises:
        ValueError: it is no JSON, or holds half of a surrogate pair.
    """
    try:
        document = json.loads(text)
        if _ESCAPED_SURROGATE.search(text):
            json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("JSON, but with half of a surrogate pair in it, which is no character") from None
    except (ValueError, RecursionError):
        raise ValueError("not JSON") from None
    return document


def give_usual_mode(path: Path) -> None:
    """Let a file be read by whom the umask says; safetensors writes files that only their owner may read."""
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)
