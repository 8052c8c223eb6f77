"""Draws cases, tries them, and tells of each that fails the line that tries it again.

In the long form a case runs in a process of its own kind: one with a limit on its memory, which may die or stop
answering without ending the others.
"""

import itertools
import json
import os
import random
import resource
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from clearformer.cli import COMMANDS

from .cases import Case, Target
from .oracle import SECONDS, in_place, verdict
from .targets import TARGETS

MEMORY = 8 * 2**30  # bytes that a process may take, torch's own included
BATCH = 100  # cases that one process tries
PATIENCE = 2 * SECONDS  # for a process that its alarm does not wake


@dataclass(frozen=True)
class Failure:
    """A case, and what is wrong with how it ends."""

    case: Case
    wrong: str

    def told(self) -> str:
        """For a person: what is wrong, and how to see it again."""
        return f"{self.case.target}: {self.wrong}\n  make fuzz CASE={quoted(self.case.line())}"


def quoted(line: str) -> str:
    """A line as make and a shell hand it on."""
    return "'" + line.replace("'", "'\\''").replace("$", "$$") + "'"


def prepared(home: Path, names: list[str] | None = None) -> Path:
    """A folder with the originals of some targets, or of all."""
    for name in names or list(TARGETS):
        folder = home / name
        if not folder.exists():
            folder.mkdir(parents=True)
            with in_place(folder):
                TARGETS[name].prepare(folder)
    return home


def drawn(target: Target, seed: int, number: int, home: Path) -> Case:
    """The case of a number: a pure function of it and of the seed."""
    return target.draw(random.Random(f"{seed} {target.name} {number}"), home / target.name)


def failures(target: Target, seed: int, n: int, home: Path) -> Iterator[Failure]:
    """Those of the first cases of a target that fail, in this process."""
    for number in range(n):
        case = drawn(target, seed, number, home)
        if wrong := verdict(target, case, home):
            yield Failure(case, wrong)


def minimised(failure: Failure, home: Path) -> Failure:
    """The same failure by fewer steps, where fewer do."""
    for case in failure.case.simpler():
        if case.steps and (wrong := verdict_in_child(case, home)):
            return minimised(Failure(case, wrong), home)
    return failure


# --- the long form ----------------------------------------------------------------------------------------


class Campaign:
    """Cases of some targets in turn, until the time is over.

    Attributes:
        n_tried: Cases so far.
    """

    def __init__(self, seconds: float, seed: int, home: Path, names: list[str]) -> None:
        self.end = time.monotonic() + seconds
        self.seed, self.home, self.targets = seed, home, [TARGETS[name] for name in names]
        self.n_tried = 0
        for command in COMMANDS:  # once, and not in every process
            import_module(f"clearformer.cli.commands.{command}")

    def failures(self) -> Iterator[Failure]:
        """Those that fail, minimised; of several that say the same, one."""
        seen = set()
        for number in itertools.count(step=BATCH):
            for target in self.targets:
                for failure in self._batch(target, number):
                    if (kind := (target.name, failure.wrong[:100])) not in seen:
                        seen.add(kind)
                        yield minimised(failure, self.home)
                if time.monotonic() > self.end:
                    return

    def _batch(self, target: Target, first: int) -> Iterator[Failure]:
        cases = [drawn(target, self.seed, first + offset, self.home) for offset in range(BATCH)]
        for case, wrong in in_child(cases, self.home, self.end):
            self.n_tried += 1
            if wrong:
                yield Failure(case, wrong)


def in_child(cases: list[Case], home: Path, end: float) -> Iterator[tuple[Case, str | None]]:
    """Some cases and the verdicts on them, tried by processes: one after another, each going on where one died."""
    while cases and time.monotonic() < end:
        told, died = _try_in_child(cases, home, end)
        yield from zip(cases, told, strict=False)
        if died is None:
            return
        yield cases[len(told)], died
        cases = cases[len(told) + 1 :]


def verdict_in_child(case: Case, home: Path) -> str | None:
    """What is wrong with how a case ends, though it may end the process."""
    return next(wrong for _, wrong in in_child([case], home, time.monotonic() + PATIENCE))


def _try_in_child(cases: list[Case], home: Path, end: float) -> tuple[list[str | None], str | None]:
    """The verdicts on the first cases, and why the process died at the next one; None where it did not."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _tell_verdicts(cases, home, writing, end)
        os._exit(0)
    os.close(writing)
    told: list[str | None] = []
    waiting = _Waiting(child)
    with os.fdopen(reading, "rb") as verdicts, waiting:
        for line in verdicts:
            told.append(json.loads(line))
            waiting.again()
    _, status = os.waitpid(child, 0)
    if status == 0:
        return told, None
    if waiting.over:
        return told, f"hangs: more than {PATIENCE} s, and no signal ends it"
    ended = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"status {status >> 8}"
    return told, f"the process died: {ended}"


class _Waiting:
    """Kills a process from which nothing is heard."""

    def __init__(self, child: int) -> None:
        self.child, self.over = child, False

    def __enter__(self) -> "_Waiting":
        self.before = signal.signal(signal.SIGALRM, self._kill)
        self.again()
        return self

    def again(self) -> None:
        """It has been heard from."""
        signal.alarm(PATIENCE)

    def __exit__(self, *_: object) -> None:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, self.before)

    def _kill(self, *_: object) -> None:
        self.over = True
        os.kill(self.child, signal.SIGKILL)


def _tell_verdicts(cases: list[Case], home: Path, writing: int, end: float) -> None:
    """Try cases in a process of their own, and write the verdict on each."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for case in cases:
        os.write(writing, json.dumps(verdict(TARGETS[case.target], case, home)).encode() + b"\n")
        if time.monotonic() > end:
            return
