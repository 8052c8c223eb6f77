"""The judge: a case ends well, or is refused in one line, soon, and touches nothing but its own folder."""

import contextlib
import io
import logging
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from unittest.mock import patch

import torch

import clearformer
from clearformer.cli import main
from clearformer.errors import ClearformerError

from .cases import Case, Target, Violation

PACKAGE = Path(clearformer.__file__).parent
SECONDS = 30  # for one case; on a busy machine too
DEFECT = "bug in clearformer"  # how the command line tells an error that is no user's


class Hang(BaseException):
    """A case took too long."""


def verdict(target: Target, case: Case, home: Path) -> str | None:
    """What is wrong with how a case ends; None where nothing is.

    Args:
        target: What is fed.
        case: One of its cases.
        home: Where `prepared` put the originals.
    """
    originals, place = home / target.name, home / "case"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    beside = sorted(home.iterdir())
    clock, wrong = Clock(), None
    try:
        with in_place(place), limited(SECONDS, clock):
            target.run(case, originals, place)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a panic of Rust is no Exception
        wrong = fault(error)
    if clock.rang:
        wrong = f"hangs: more than {SECONDS} s"
    if sorted(home.iterdir()) != beside:
        wrong = f"writes outside its folder: {sorted(set(home.iterdir()) - set(beside))}"
    shutil.rmtree(place, ignore_errors=True)
    return wrong


def fault(error: BaseException) -> str | None:
    """What is wrong with an error; None where a user may see it."""
    if isinstance(error, ClearformerError):
        return wrong_line(str(error))
    if isinstance(error, Violation):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if Path(frame.filename).is_relative_to(PACKAGE)]
    where = f"at {Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else "in the fuzzing itself"
    return f"{type(error).__name__} {where}: {str(error)[:300]!r}"


def wrong_line(line: str) -> str | None:
    """What is wrong with an error's message."""
    if not line.strip():
        return "an error without a message"
    if len(line.splitlines()) > 1:
        return f"an error of several lines: {line[:300]!r}"
    return f"a defect, by its own words: {line[:400]}" if DEFECT in line else None


@dataclass
class Clock:
    """Whether the time was up: what is raised for that may have been caught on the way."""

    rang: bool = False


@contextlib.contextmanager
def limited(seconds: int, clock: Clock) -> Iterator[None]:
    """End what takes longer, and set the clock then."""

    def ring(number: int, frame: FrameType | None) -> None:
        clock.rang = True
        raise Hang

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def in_place(place: Path) -> Iterator[None]:
    """Everything that has a usual place is in the folder, and nothing is compiled."""
    folders = {"HOME": place, "CLEARFORMER_RUNS": place / "runs", "CLEARFORMER_CACHE": place / "cache"}
    environment = {name: str(folder) for name, folder in folders.items()}
    with (
        patch.dict(os.environ, environment),
        contextlib.chdir(place),
        torch._dynamo.config.patch(disable=True),
        torch.random.fork_rng(devices=[]),
    ):
        yield


# --- commands ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """How a command ended."""

    status: int
    out: str
    err: str


def call(*arguments: str, stdin: bytes = b"") -> Answer:
    """Run a command as typed, and check how it ends.

    Raises:
        Violation: it ends otherwise than with 0, or with 1 or 2 and one line.
    """
    out, err = (
        io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace", write_through=True)
        for _ in range(2)
    )
    given = io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
    with quiet_logging(), patch.multiple(sys, stdin=given, stdout=out, stderr=err):
        status = main(list(arguments))
    answer = Answer(status, written_to(out), written_to(err))
    if wrong := wrong_ending(answer):
        raise Violation(wrong)
    return answer


def stream_of(content: bytes) -> io.TextIOWrapper:
    """A stream in memory, as a terminal's is."""
    return io.TextIOWrapper(io.BytesIO(content), encoding="utf-8", write_through=True)


def written_to(stream: io.TextIOWrapper) -> str:
    """What a stream in memory holds."""
    stream.seek(0)
    return stream.read()


@contextlib.contextmanager
def quiet_logging() -> Iterator[None]:
    """Leave the root logger as it was: a handler that a command adds would write to a stream that is gone."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def wrong_ending(answer: Answer) -> str | None:
    """What is wrong with how a command ended."""
    lines = [line for line in answer.err.splitlines() if line.startswith("clearformer")]
    if answer.status not in (0, 1, 2):
        return f"exit status {answer.status}: {answer.err[-300:]!r}"
    if "Traceback" in answer.err:
        return f"a traceback: {answer.err[-600:]!r}"
    if answer.status == 0:
        return f"an error, and status 0: {lines}" if lines else None
    if len(lines) != 1 or not answer.err.rstrip("\n").endswith(lines[0]):
        return f"status {answer.status}, and not one line at the end: {answer.err[-600:]!r}"
    return wrong_line(lines[0])


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a folder, and what they hold."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def unchanged(before: dict[str, bytes], folder: Path) -> None:
    """Check that what was in a folder still is.

    Raises:
        Violation: a file is gone or changed.
    """
    now = contents(folder)
    if changed := sorted(name for name, content in before.items() if now.get(name) != content):
        raise Violation(f"it was refused, and changed {', '.join(changed)}")
