"""Paths as users write them, JSON from others, and files and folders that appear complete or not at all."""

import errno
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from clearformer.errors import DiskError, UserError, shown

UNFINISHED = ".unfinished-"
UNFINISHED_KEPT_SECONDS = 24 * 3600
PATIENCE = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
"""Seconds between tries to move what another program, such as a virus scanner, has open for a moment."""
CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)
FULL = (errno.ENOSPC, errno.EDQUOT, None)  # None: an error of a library, which gives no number

_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def user_path(name: str | os.PathLike[str]) -> Path:
    """Return the path that a user wrote, with `~` expanded; an unknown user's home stays as written.

    Raises:
        UserError: it is not a path, or empty.
    """
    if not isinstance(name, str | os.PathLike):
        raise UserError(f"expected a path; got {shown(name)}")
    if not os.fspath(name):
        raise UserError("expected a path; got an empty string (is a shell variable unset?)")
    return Path(os.path.expanduser(name))  # noqa: PTH111 (pathlib's raises where there is no such home)


def short_path(path: Path) -> Path:
    """Return a path for a message: relative to the current directory if it is below it."""
    try:
        here = Path.cwd()
    except OSError:  # the current directory is gone
        return path
    return path.relative_to(here) if path != here and path.is_relative_to(here) else path


def whole_path(name: str | Path) -> Path:
    """Return the absolute path with links resolved, but for the last name, which may say what kind of file it is.

    Links that form a loop are left as they are.
    """
    path = user_path(name)
    if path.name in ("", ".."):
        return Path(os.path.realpath(path))
    return Path(os.path.realpath(path.parent)) / path.name


def data_folder() -> Path | None:
    """Return the folder of known data that `$CLEARFORMER_DATA` names, `~` for home; None if it is not set."""
    own = os.environ.get("CLEARFORMER_DATA")
    return user_path(own) if own else None


def runs_folder() -> Path:
    """Return the folder of all runs: `$CLEARFORMER_RUNS`, `~` for home, else `runs` in the current directory."""
    return user_path(os.environ.get("CLEARFORMER_RUNS") or "runs")


def is_file(path: Path) -> bool:
    """Whether there is a file; False too for a name that no file can have, such as one that is too long."""
    return os.path.isfile(path)  # noqa: PTH113 (pathlib's raises for such a name)


@contextmanager
def disk_errors(place: Path) -> Iterator[None]:
    """Turn an OSError in the `with` block into one line about `place`.

    Raises:
        DiskError: the disk is full, or the place may not be written.
    """
    try:
        yield
    except OSError as error:
        fix = "free some space, or choose another folder" if error.errno in FULL else "choose another place"
        raise DiskError(f"{place}: cannot be written: {error.strerror or error}; {fix}") from error


def write_file(path: Path, content: bytes) -> None:
    """Write a whole file, synced and then renamed into place.

    Raises:
        DiskError: it cannot be written; an earlier file is intact.
    """
    with file_made_whole(path) as unfinished, unfinished.open("xb") as file:
        file.write(content)


@contextmanager
def file_made_whole(path: Path) -> Iterator[Path]:
    """Yield a file to write; it becomes `path` if the block succeeds, and is deleted otherwise.

    Links are followed, so that the file behind one gets the content.

    Raises:
        DiskError: it cannot be written, or is a device or a pipe; an earlier file is intact.
    """
    with disk_errors(path):
        # A device would be a file from then on, for every program.
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise DiskError(f"{path} is not a regular file; choose another name")
        place = Path(os.path.realpath(path))
        make_folders(place.parent)
        remove_abandoned(place.parent)
        unfinished = _unfinished_in(place.parent)
        try:
            yield unfinished
            _sync_file(unfinished)
            _moving(unfinished.replace, place)
            sync_folder(place.parent)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise


@contextmanager
def folder_made_whole(
    final: Path, last: str, *, shared: bool = False, parents: bool = True
) -> Iterator[Path]:
    """Yield a folder to fill; it becomes `final` if the block succeeds, and is deleted otherwise.

    All that the block writes is synced here. Links to `final` are followed. If `final` exists and is empty, it is not
    replaced but filled entry by entry, because a mount point, or a folder whose parent may not be written, cannot be
    replaced.

    Args:
        final: A folder that does not exist yet, or is empty.
        last: The file that marks the folder as complete; it is moved into place after all others.
        shared: Whether other processes may make the same folder at the same time; the first complete one is kept.
        parents: Whether the folders above the one it lies in are made if they are missing. A writer in the background
            makes none: whoever moved them away meanwhile would find them again.

    Raises:
        DiskError: it cannot be written, or `final` holds something else when the block ends; that is kept.
    """
    with disk_errors(final):
        place = Path(os.path.realpath(final))
        stays = place.is_dir() and is_free(place)
        parent = place if stays else place.parent
        make_folders(parent, parents=parents)
        remove_abandoned(parent)
        unfinished = _unfinished_in(parent)
        unfinished.mkdir()
        try:
            yield unfinished
            assert (unfinished / last).is_file(), f"nothing says that the folder is whole: no {last}"
            _sync_all(unfinished)
            if stays:
                _move_contents(unfinished, place, last)
            else:
                _give_name(unfinished, place, last if shared else None)
            sync_folder(parent)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise


def _give_name(unfinished: Path, place: Path, whole_with: str | None) -> None:
    """Rename a folder to `place`, unless another one is there that has the file `whole_with`."""
    try:
        _moving(unfinished.rename, place)
    except OSError:
        if not place.exists():
            raise
        if whole_with is None or not (place / whole_with).is_file():
            raise _taken(place) from None
        shutil.rmtree(unfinished)


def _moving(move: Callable[[Path], Path], target: Path) -> None:
    """Rename or replace a file or folder; on Windows again and again, while another program has a file of it open."""
    for seconds in PATIENCE if os.name == "nt" else ():
        if target.is_dir():
            break
        with suppress(PermissionError):
            move(target)
            return
        time.sleep(seconds)
    move(target)


def _move_contents(source: Path, target: Path, last: str) -> None:
    """Move all entries of a folder into its parent `target`; `last` is moved once the others are on the disk."""
    if not is_free(target):
        raise _taken(target)
    moved: list[Path] = []
    try:
        for path in sorted(source.iterdir(), key=lambda path: path.name == last):
            if path.name == last:
                sync_folder(target)
            _moving(path.rename, target / path.name)
            moved.append(target / path.name)
        source.rmdir()
    except BaseException:
        for path in reversed(moved):
            _remove(path)
        raise


def _taken(place: Path) -> DiskError:
    return DiskError(
        f"{place}: something else was written there meanwhile and was kept; choose another folder"
    )


def is_free(folder: Path) -> bool:
    """Whether a folder holds nothing but unfinished files, which killed processes leave."""
    return all(path.name.startswith(UNFINISHED) for path in folder.iterdir())


def make_folders(folder: Path, *, parents: bool = True) -> None:
    """Make a folder and, if asked, its missing parents, and sync every folder that gets a new entry."""
    if not folder.is_dir():
        if parents and folder.parent != folder:  # as a drive that is not there is its own
            make_folders(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def discard(folder: Path) -> None:
    """Rename a folder out of the way, then delete it; it may be gone already."""
    aside = _unfinished_in(folder.parent)
    aside.mkdir()
    try:
        with suppress(FileNotFoundError):
            _moving(folder.rename, aside / folder.name)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    sync_folder(folder.parent)


def sync(descriptor: int) -> None:
    """Wait until all writes to an open file are on the disk."""
    os.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """Wait until a folder's entries are on the disk; does nothing where that cannot be done, as on Windows."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            sync(descriptor)
        except OSError as error:
            if error.errno not in CANNOT_SYNC:  # some network file systems sync files alone
                raise
        finally:
            os.close(descriptor)


def _sync_file(path: Path) -> None:
    with path.open("r+b") as file:  # to be written, or Windows would not sync it
        sync(file.fileno())


def _sync_all(top: Path) -> None:
    """Sync all files below a folder, and each folder after its contents; links have none."""
    for folder, _, files in os.walk(top, topdown=False):
        for path in (Path(folder, name) for name in files):
            if not path.is_symlink():
                _sync_file(path)
        sync_folder(Path(folder))


def remove_abandoned(folder: Path, after_seconds: float = UNFINISHED_KEPT_SECONDS) -> None:
    """Delete unfinished files and folders that killed processes left here at least that long ago."""
    for path in folder.glob(f"{UNFINISHED}*"):
        with suppress(OSError):  # another process has deleted it, or it belongs to another user
            if time.time() - path.stat().st_mtime >= after_seconds:
                _remove(path)


def _remove(path: Path) -> None:
    """Delete a file or a folder, ignoring errors."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def _unfinished_in(folder: Path) -> Path:
    """Return a new name. It is not tempfile's, as its files would not have the user's usual permissions."""
    return folder / f"{UNFINISHED}{secrets.token_hex(8)}"


def parse_json(text: str) -> Any:
    """Parse JSON, refusing values that could not be written to a file again.

    Raises:
        ValueError: it is not JSON, or holds half of a surrogate pair.
    """
    try:
        document = json.loads(text)
        if _ESCAPED_SURROGATE.search(text):
            json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("JSON, but it contains half of a surrogate pair, which is not a character") from None
    except (ValueError, RecursionError):
        raise ValueError("not JSON") from None
    return document
