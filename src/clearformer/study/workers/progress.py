"""The progress of studies, read from their folder alone, so that every machine that shares it sees the same.

A table on standard error shows the runs under way (worker, step, loss), those that wait, and the estimated end. If
standard error is no terminal, one line is written for each run that starts, finishes or fails.
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
from clearformer.training.planning.run_plan import expected_model
from clearformer.training.reporting.console import clock
from clearformer.training.store.folder import RunFolder

TAIL = 4096  # bytes at the end of metrics.jsonl that contain its last line
# Assumed duration of a probe, or of a training that cannot be estimated, at the nominal rate.
PROBE_SECONDS = 1.0
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
    """The progress of a job.

    Attributes:
        job: The job.
        state: `done`, `failed`, `running`, or `waiting`.
        worker: The host and process that compute it.
        step: The last step in the metrics of a training.
        steps: The number of steps it will take.
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
    """The progress of some jobs; a job that is done is not read again."""

    def __init__(self, jobs: Sequence[Job], store: Store) -> None:
        self._jobs, self._store = list(jobs), store
        self._done: dict[int, Standing] = {}

    def standings(self) -> list[Standing]:
        """Return the progress of every job, in order."""
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
        except ClearformerError:  # its worker will report it
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
    """Return the last complete line of a metrics.jsonl; empty if there is none."""
    try:
        with file.open("rb") as opened:
            opened.seek(max(0, file.stat().st_size - TAIL))
            lines = opened.read().split(b"\n")[:-1]
        return dict(json.loads(lines[-1]))
    except (OSError, ValueError, IndexError, TypeError):
        return {}


def work_of(trial: Trial) -> float:
    """Return the seconds that a trial would take at the nominal rate, to weigh trials against each other."""
    seconds = estimated_seconds(trial, NOMINAL)
    return PROBE_SECONDS if seconds is None else seconds


def estimated_seconds(trial: Trial, rate: Rate) -> float | None:
    """Estimate the seconds that a training takes at a rate; None for a probe, or if they cannot be estimated."""
    if trial.config is None:
        return None
    run = trial.config
    seconds = steps_and_seconds(run.train, seconds_per_step(expected_model(run), run.train, rate))[1]
    return seconds if seconds is not None and math.isfinite(seconds) else None


class Watch:
    """The base of classes that show the progress of jobs; it shows nothing itself."""

    def __init__(self, jobs: Sequence[Job], store: Store) -> None:
        self.progress = Progress(jobs, store)
        self._work = cache(lambda i: work_of(jobs[i].trial))
        self._began: tuple[float, float] | None = None

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *_: object) -> None:
        self.update()

    def update(self) -> list[Standing]:
        """Read and show the progress of every job; returns it."""
        standings = self.progress.standings()
        if self._began is None:
            self._began = time.monotonic(), self.left(standings)
        self.show(standings)
        return standings

    def show(self, standings: list[Standing]) -> None:
        """Show the progress."""

    def left(self, standings: list[Standing]) -> float:
        """Return the work that is left, in seconds at the nominal rate."""
        return sum((1 - each.fraction_done) * self._work(i) for i, each in enumerate(standings))

    def seconds_left(self, standings: list[Standing]) -> float | None:
        """Extrapolate the seconds left from the speed so far; None until some work is done."""
        assert self._began is not None
        then, left_then = self._began
        left = self.left(standings)
        if left_then - left <= 0:
            return None
        return left * (time.monotonic() - then) / (left_then - left)


def summary(standings: Sequence[Standing]) -> str:
    """Return a line such as `3 of 12 runs done, 2 running, 7 waiting`."""
    n = Counter(each.state for each in standings)
    parts = [f"{n['done']} of {count(len(standings), 'run')} done"]
    parts += [f"{n[state]} {state}" for state in ("running", "waiting", "failed") if n[state]]
    return ", ".join(parts)


class LinesWatch(Watch):
    """Prints a line for each run that starts, finishes or fails."""

    def __init__(self, jobs: Sequence[Job], store: Store) -> None:
        super().__init__(jobs, store)
        self._told: dict[int, State] = {}
        self._problems: set[str] = set()

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
        """Return the line of a job whose state has changed."""
        told = f"{each.job.name}: "
        if each.state == "running":
            return f"{told}started by {each.worker}" if each.worker else f"{told}started"
        if each.state == "failed":
            known = each.problem in self._problems
            self._problems.add(each.problem)
            return f"{told}failed: {'for the same reason' if known else each.problem}"
        if each.state == "waiting":
            return f"{told}its worker is gone; waiting for another"
        left = self.seconds_left(standings)
        when = "" if not left or left < 1 else f", about {clock(left)} left"
        return f"{told}done ({summary(standings)}{when})"

    def say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


class TableWatch(Watch):
    """Shows a table that is updated in place."""

    def __init__(self, jobs: Sequence[Job], store: Store) -> None:
        super().__init__(jobs, store)
        # Names and reasons are shown as they are: brackets in them are no markup.
        console = Console(file=sys.stderr, highlight=False, markup=False, emoji=False)
        self.live = Live(console=console, auto_refresh=False)

    def __enter__(self) -> "TableWatch":
        self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            super().__exit__()
        finally:
            self.live.stop()  # which shows the cursor again

    def show(self, standings: list[Standing]) -> None:
        self.live.update(self.table(standings), refresh=True)

    def table(self, standings: list[Standing]) -> Table:
        """Return the table: runs under way, failed and waiting, with the estimated end as its caption."""
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
        """Return how many runs are done, and when all are expected to be."""
        left = self.seconds_left(standings)
        if not left or left < 1:
            return summary(standings)
        then = time.strftime("%H:%M", time.localtime(time.time() + left))
        return f"{summary(standings)}; about {clock(left)} left, done at {then}"


def steps(standing: Standing) -> str:
    """Return the steps as `1,200 of 10,000`; empty for a probe."""
    if standing.job.trial.config is None:
        return ""
    return f"{standing.step:,} of {standing.steps:,}" if standing.steps else f"{standing.step:,}"


def loss(standing: Standing) -> str:
    """Return the last training loss as text; empty if there is none."""
    return "" if standing.loss is None else f"{standing.loss:.4f}"


def watch_here(jobs: Sequence[Job], store: Store) -> Watch:
    """Return a table if standard error is a terminal, else lines."""
    return (TableWatch if sys.stderr.isatty() else LinesWatch)(jobs, store)
