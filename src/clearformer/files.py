"""Paths as users write them, and writing to disk so that a thing is complete or is not there."""

import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clearformer.errors import DiskError

UNFINISHED = ".unfinished-"
UNFINISHED_KEPT_SECONDS = 24 * 3600


def user_path(name: str | Path) -> Path:
    """A path as a user wrote it, `~` for home; the home of nobody known stays as it is written."""
    return Path(os.path.expanduser(name))  # noqa: PTH111 (pathlib's raises where there is no such home)


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
    """Tells what goes wrong with writing at `place` as one line.

    Raises:
        DiskError: the disk is full, or the place may not be written.
    """
    try:
        yield
    except OSError as error:
        raise DiskError(f"{place}: cannot be written: {error.strerror or error}; {fix}") from error


def write_file(path: Path, content: bytes) -> None:
    """Writes a whole file, synced and then renamed into place."""
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = _unfinished_in(path.parent)
        try:
            with unfinished.open("xb") as file:
                file.write(content)
                sync(file.fileno())
            unfinished.replace(path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise


@contextmanager
def folder_made_whole(final: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `final` when the block ends well and is gone when it does not.

    Where another process has made `final` in the meantime, that one stays.
    """
    with disk_errors(final):
        final.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(final.parent)
        unfinished = _unfinished_in(final.parent)
        unfinished.mkdir()
        try:
            yield unfinished
            sync_folder(unfinished)
            if not _renamed(unfinished, final):
                shutil.rmtree(unfinished)
            sync_folder(final.parent)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise


def discard(folder: Path) -> None:
    """Takes a folder out of the way in one move, then deletes it; another process may have done so first."""
    aside = _unfinished_in(folder.parent)
    aside.mkdir()
    _renamed(folder, aside / folder.name)
    shutil.rmtree(aside, ignore_errors=True)


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


def remove_abandoned(folder: Path, after_seconds: float = UNFINISHED_KEPT_SECONDS) -> None:
    """Deletes what a killed process left half-made here, that long ago or more."""
    for path in folder.glob(f"{UNFINISHED}*"):
        try:
            abandoned = time.time() - path.stat().st_mtime >= after_seconds
        except FileNotFoundError:
            continue
        if abandoned and path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif abandoned:
            path.unlink(missing_ok=True)


def _unfinished_in(folder: Path) -> Path:
    """A new name; what is made under it has the user's usual permissions, which tempfile's would not."""
    return folder / f"{UNFINISHED}{secrets.token_hex(8)}"


def _renamed(source: Path, target: Path) -> bool:
    try:
        source.rename(target)
    except OSError:
        if target.exists() or not source.exists():
            return False
        raise
    return True


def give_usual_mode(path: Path) -> None:
    """Let a file be read by whom the umask says; safetensors writes files that only their owner may read."""
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)
