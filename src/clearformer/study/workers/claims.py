"""Claims on trials, so that only one process computes a trial, across all machines that share a folder of studies.

A claim is a file FOLDER/claims/KEY.N with host, process id and a token; its holder renews its modification time
(`training.store.lock.Claim`). If a claim was released, its process has ended, or it was not renewed for minutes,
another process takes over with a file of the next number. Released claims stay, so that numbers never decrease.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from clearformer.errors import ClearformerError
from clearformer.files import disk_errors, make_folders
from clearformer.study.store import Store
from clearformer.training.store.lock import GIVEN_UP, STALE_SECONDS, Claim, has_ended


class TakenError(ClearformerError):
    """Another process computes the trial."""


@dataclass(frozen=True)
class Holder:
    """The process that has claimed a trial.

    Attributes:
        host: Its machine.
        pid: Its process id there.
        is_alive: False if it is known to have ended, or has not renewed its claim for minutes while others did.
    """

    host: str
    pid: int
    is_alive: bool

    def __str__(self) -> str:
        return f"{self.host} {self.pid}"


@contextmanager
def claimed(store: Store, key: str) -> Iterator[Claim | None]:
    """Claim a trial for the duration of the block; yields None if another process holds it.

    Raises:
        DiskError: the claim cannot be written.
    """
    claim = _claim(store, key)
    try:
        yield claim
    finally:
        if claim is not None:
            claim.release()


def _claim(store: Store, key: str) -> Claim | None:
    with disk_errors(store.claims):
        make_folders(store.claims)
        try:
            return Claim(store.claims, f"{key}.", _taken)
        except (
            TakenError,
            FileNotFoundError,
        ):  # FileNotFoundError: a later holder has just removed the file
            return None


def _taken(folder: Path, _: Callable[[], bytes]) -> TakenError:
    return TakenError(f"{folder}: another process is computing it")


def holders(store: Store) -> dict[str, Holder]:
    """Return the processes that compute trials now, by the trials' keys."""
    return {key: holder for key, holder in claims(store).items() if holder.is_alive}


def claims(store: Store) -> dict[str, Holder]:
    """Return the claims that were not released, by the trials' keys, including those of processes that have ended."""
    newest: dict[str, int] = {}
    for path in store.claims.glob("*.*"):
        key, _, number = path.name.partition(".")
        if number.isdecimal():
            newest[key] = max(int(number), newest.get(key, 0))
    files = {key: store.claims / f"{key}.{number}" for key, number in newest.items()}
    renewed = {key: _renewed(file) for key, file in files.items()}
    # The file system's present time, or earlier if nobody renews a claim any more: no host's clock need be right.
    now = max(renewed.values(), default=0.0)
    found = ((key, _holder(file, now - renewed[key])) for key, file in files.items())
    return {key: holder for key, holder in found if holder is not None}


def _renewed(file: Path) -> float:
    """Return when a claim was made or last renewed; 0 if it has just been removed."""
    with suppress(OSError):
        return file.stat().st_mtime
    return 0.0


def _holder(file: Path, age: float) -> Holder | None:
    with suppress(OSError, ValueError, TypeError, KeyError):
        content = file.read_bytes()
        if not content.startswith(GIVEN_UP.rstrip()):
            about = json.loads(content)
            is_alive = age < STALE_SECONDS and not has_ended(content)
            return Holder(str(about["host"]), int(about["pid"]), is_alive)
    return None
