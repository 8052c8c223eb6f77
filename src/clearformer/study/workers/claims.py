"""Claims of trials: of all processes on all machines that share a folder of studies, one computes a trial.

A claim is a file FOLDER/claims/KEY.N with host, process and a token, whose time its holder renews
(`training.store.lock.Claim`). A claim that was given up, whose process has ended, or that was not renewed for minutes
is taken over by the file of the next number. Claims that were given up stay, so that numbers never fall.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from clearformer.errors import ClearformerError
from clearformer.files import disk_errors, make_folders
from clearformer.study.store import Store
from clearformer.training.store.lock import GIVEN_UP, Claim, has_ended


class TakenError(ClearformerError):
    """Another process computes a trial."""


@dataclass(frozen=True)
class Holder:
    """The process that has claimed a trial.

    Attributes:
        host: Its machine.
        pid: Its number there.
        is_alive: Whether it is not known to have ended.
    """

    host: str
    pid: int
    is_alive: bool

    def __str__(self) -> str:
        return f"{self.host} {self.pid}"


@contextmanager
def claimed(store: Store, key: str) -> Iterator[Claim | None]:
    """Claim a trial for as long as the block lasts; None where another process has it.

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
        ):  # or its successor has just removed the file that was looked at
            return None


def _taken(folder: Path, _: Callable[[], bytes]) -> TakenError:
    return TakenError(f"{folder}: another process computes it")


def holders(store: Store) -> dict[str, Holder]:
    """Who computes which trial now, by the trials' keys."""
    return {key: holder for key, holder in claims(store).items() if holder.is_alive}


def claims(store: Store) -> dict[str, Holder]:
    """The claims that were not given up, by the trials' keys; also those of processes that have ended."""
    newest: dict[str, int] = {}
    for path in store.claims.glob("*.*"):
        key, _, number = path.name.partition(".")
        if number.isdecimal():
            newest[key] = max(int(number), newest.get(key, 0))
    found = ((key, _holder(store.claims / f"{key}.{number}")) for key, number in newest.items())
    return {key: holder for key, holder in found if holder is not None}


def _holder(file: Path) -> Holder | None:
    with suppress(OSError, ValueError, TypeError, KeyError):
        content = file.read_bytes()
        if not content.startswith(GIVEN_UP.rstrip()):
            about = json.loads(content)
            return Holder(str(about["host"]), int(about["pid"]), not has_ended(content))
    return None
