"""How far the runs of studies are, read from their folder alone, so that every machine that shares it sees the same.

The table on standard error says what runs (by whom, at which step, its loss), what waits, and when all of it ends.
Where standard error is no terminal, a line is written for each run that begins, is done or fails.
"""

import json
import math
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.live import Live
from rich.table import Table

from clearformer.cost.rates import Rate
from clearformer.errors import ClearformerError, count
from clearformer.study.store import Store
from clearformer.study.trials import Trial
from clearformer.study.workers.claims import holders
from clearformer.training.planning.duration import seconds_per_step, steps_and_seconds
from clearformer.training.planning.run_plan import expected_classes, expected_vocabulary
from clearformer.training.reporting.console import clock
from clearformer.training.store.folder import RunFolder

TAIL = 4096  # bytes of a metrics.jsonl, in which its last line stands
PROBE_SECONDS = 1.0  # of work that a probe is taken for, at the nominal rate
NOMINAL = Rate("nominal", "float32", 2e10, "measured", 1.0)
WAITING_SHOWN, FAILED_SHOWN = 4, 6  # rows of the table

State = Literal["done", "failed", "running", "waiting"]


@dataclass(frozen=True)
class Job:
    """A trial and the study that asks for it."""

    study: str
    trial: Trial

    @property
    def name(self) -> str:
        return f"{self.study}: {self.trial.name}"


@dataclass(frozen=True)
class Standing:
    """How far a job is.

    Attributes:
        job: The job.
        state: `done`, `failed`, `running`, or `waiting`.
        worker: Who computes it.
        step: The last step that its metrics tell, of a training.
        steps: How many it has.
        loss: The last training loss.
        problem: Why it failed.
    """

    job: Job
    state: State
    worker: str = ""
    step: int = 0
    steps: int | None = None
    loss: float | None = None
    problem: str = ""

    @property
    def fraction_done(self) -> float:
        if self.state in ("done", "failed"):
            return 1.0
        return min(1.0, self.step / self.steps) if self.steps else 0.0


class Progress:
    """How far some jobs are; what was done once is not read again."""

    def __init__(self, jobs: Sequence[Job], store: Store) -> None:
        self._jobs, self._store = list(jobs), store
        self._done: dict[int, Standing] = {}

    def standings(self) -> list[Standing]:
        """Of every job, in their order."""
        held = holders(self._store)
        return [self._standing(i, job, held) for i, job in enumerate(self._jobs)]

    def _standing(self, i: int, job: Job, held: dict[str, Any]) -> Standing:
        if i in self._done:
            return self._done[i]
        trial, store = job.trial, self._store
        if store.is_done(trial):
            self._done[i] = Standing(job, "done")
            return self._done[i]
        if (problem := store.failure(trial)) is not None:
            return Standing(job, "failed", problem=problem)
        try:
            key = trial.key
        except ClearformerError:  # its worker will say so
            return Standing(job, "waiting")
        state: State = "running" if key in held else "waiting"
        worker = str(held.get(key, ""))
        if trial.config is None:
            return Standing(job, state, worker)
        last = last_metrics(RunFolder(store.runs / key).metrics_file)
        return Standing(
            job, state, worker, last.get("step", 0), trial.config.train.max_steps, last.get("loss")
        )


def last_metrics(file: Path) -> dict[str, Any]:
    """The last whole line of a metrics.jsonl; empty where there is none."""
    try:
        with file.open("rb") as opened:
            opened.seek(max(0, file.stat().st_size - TAIL))
            lines = opened.read().split(b"\n")[:-1]
        return dict(json.loads(lines[-1]))
    except (OSError, ValueError, IndexError, TypeError):
        return {}


def work_of(trial: Trial) -> float:
    """The seconds that a trial would take at the nominal rate: trials are compared by it."""
    if trial.config is None:
        return PROBE_SECONDS
    seconds = estimated_seconds(trial, NOMINAL)
    return PROBE_SECONDS if seconds is None else seconds


def estimated_seconds(trial: Trial, rate: Rate) -> float | None:
    """The seconds that a training takes at a rate; None of a probe, and where nobody can tell."""
    if trial.config is None:
        return None
    run = trial.config
    model = run.model.replace(
        vocab_size=run.model.vocab_size or expected_vocabulary(run), n_classes=expected_classes(run)
    )
    seconds = steps_and_seconds(run.train, seconds_per_step(model, run.train, rate))[1]
    return seconds if seconds is not None and math.isfinite(seconds) else None


class Watch:
    """Shows how far jobs are; the base of those that do, which shows nothing."""

    def __init__(self, jobs: Sequence[Job], store: Store) -> None:
        self.progress = Progress(jobs, store)
        self._work = cache(lambda i: work_of(jobs[i].trial))
        self._began: tuple[float, float] | None = None

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *_: object) -> None:
        self.update()

    def update(self) -> list[Standing]:
        """Look anew; returns how far every job is."""
        standings = self.progress.standings()
        if self._began is None:
            self._began = time.monotonic(), self.left(standings)
        self.show(standings)
        return standings

    def show(self, standings: list[Standing]) -> None:
        """Show it."""

    def left(self, standings: list[Standing]) -> float:
        """The work that is left."""
        return sum((1 - each.fraction_done) * self._work(i) for i, each in enumerate(standings))

    def seconds_left(self, standings: list[Standing]) -> float | None:
        """How long all of it still takes, as fast as it went until now; None as long as nothing came of it."""
        assert self._began is not None
        then, left_then = self._began
        left = self.left(standings)
        if left_then - left <= 0:
            return None
        return left * (time.monotonic() - then) / (left_then - left)


def summary(standings: Sequence[Standing]) -> str:
    """`3 of 12 runs done, 2 running, 7 waiting`."""
    n = Counter(each.state for each in standings)
    parts = [f"{n['done']} of {count(len(standings), 'run')} done"]
    parts += [f"{n[state]} {state}" for state in ("running", "waiting", "failed") if n[state]]
    return ", ".join(parts)


class LinesWatch(Watch):
    """A line for each run that begins, is done or fails."""

    def __init__(self, jobs: Sequence[Job], store: Store) -> None:
        super().__init__(jobs, store)
        self._told: dict[int, State] = {}

    def show(self, standings: list[Standing]) -> None:
        is_first = not self._told
        for i, each in enumerate(standings):
            before, self._told[i] = self._told.get(i, "waiting"), each.state
            if each.state == before or (is_first and each.state == "done"):
                continue
            self.say(self.line(each, standings))
        if is_first:
            self.say(summary(standings))

    def line(self, each: Standing, standings: list[Standing]) -> str:
        """The line of a job whose state has changed."""
        told = f"{each.job.name}: "
        if each.state == "running":
            return f"{told}begun by {each.worker}" if each.worker else f"{told}begun"
        if each.state == "failed":
            return f"{told}failed: {each.problem}"
        if each.state == "waiting":
            return f"{told}its worker has gone; it waits for another"
        left = self.seconds_left(standings)
        when = "" if not left or left < 1 else f", about {clock(left)} left"
        return f"{told}done ({summary(standings)}{when})"

    def say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


class TableWatch(Watch):
    """A table that is drawn anew in its place."""

    def __init__(self, jobs: Sequence[Job], store: Store) -> None:
        super().__init__(jobs, store)
        self.live = Live(console=Console(file=sys.stderr, highlight=False), auto_refresh=False)

    def __enter__(self) -> "TableWatch":
        self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self.live.stop()

    def show(self, standings: list[Standing]) -> None:
        self.live.update(self.table(standings), refresh=True)

    def table(self, standings: list[Standing]) -> Table:
        """The runs under way, those that failed and wait, and when all of it ends."""
        table = Table(box=None, pad_edge=False, caption=self.caption(standings), caption_justify="left")
        for head in ("run", "by", "step", "loss"):
            table.add_column(
                head, justify="left" if head in ("run", "by") else "right", no_wrap=head != "run"
            )
        by_state = {
            state: [each for each in standings if each.state == state]
            for state in ("running", "failed", "waiting")
        }
        for each in by_state["running"]:
            table.add_row(each.job.name, each.worker, steps(each), loss(each))
        for each in by_state["failed"][-FAILED_SHOWN:]:
            table.add_row(f"{each.job.name}: {each.problem}", "failed", "", "", style="red")
        for each in by_state["waiting"][:WAITING_SHOWN]:
            table.add_row(each.job.name, "waiting", steps(each) if each.step else "", "", style="dim")
        if (more := len(by_state["waiting"]) - WAITING_SHOWN) > 0:
            table.add_row(f"and {count(more, 'more run')}", "waiting", "", "", style="dim")
        return table

    def caption(self, standings: list[Standing]) -> str:
        """How many are done, and when all are."""
        left = self.seconds_left(standings)
        if not left or left < 1:
            return summary(standings)
        then = time.strftime("%H:%M", time.localtime(time.time() + left))
        return f"{summary(standings)}; about {clock(left)} left, until {then}"


def steps(standing: Standing) -> str:
    """`1,200 of 10,000`."""
    if standing.job.trial.config is None:
        return ""
    return f"{standing.step:,} of {standing.steps:,}" if standing.steps else f"{standing.step:,}"


def loss(standing: Standing) -> str:
    """The last training loss."""
    return "" if standing.loss is None else f"{standing.loss:.4f}"


def watch_here(jobs: Sequence[Job], store: Store) -> Watch:
    """A table where standard error is a terminal, and else lines."""
    return (TableWatch if sys.stderr.isatty() else LinesWatch)(jobs, store)
