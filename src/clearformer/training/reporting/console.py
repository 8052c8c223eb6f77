"""Progress of a run on a terminal or in a notebook: messages, a line for each evaluation, a progress bar."""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from statistics import fmean
from textwrap import indent
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from clearformer.errors import harmless
from clearformer.training.config import RunConfig
from clearformer.training.limits import seconds_left
from clearformer.training.reporting.report import Reporter, held_out
from clearformer.training.store.checkpoint import Progress as RunProgress

SETTLED_AFTER, FORETOLD_AFTER = 50, 100  # steps; those between them are timed to estimate the total
PROGRESS_FROM_CHARS = 10_000_000  # shorter texts are prepared too quickly to report
IN_A_ROW, RISE = 3, 0.02  # evaluations, and nats by which their mean has risen before it is worth a remark


class ConsoleReporter(Reporter):
    """Messages, a line for each evaluation and a bar with the time left, all on standard error."""

    def __init__(self) -> None:
        self.console = Console(file=sys.stderr, highlight=False, emoji=False, soft_wrap=True)
        self.bar = Progress(
            BarColumn(bar_width=24),
            TextColumn("{task.description}"),
            console=self.console,
            transient=True,
            auto_refresh=False,
        )
        self.task = self.bar.add_task("", total=1.0)
        self.has_bar = self.console.is_terminal
        self.last: dict[str, Any] = {}
        self.explained_tilde = False
        self.evaluations: list[Evaluated] = []

    def say(self, message: str) -> None:
        self.console.print(message, markup=False)

    def preparing(self, doing: str, done: int, total: int | None) -> None:
        if self.console.is_terminal and done >= PROGRESS_FROM_CHARS:
            of = f" of {total / 1e6:,.0f}" if total else ""
            self.console.print(f"{doing}: {done / 1e6:,.0f}{of} million characters", end="\r", markup=False)

    def begin(self, config: RunConfig, progress: RunProgress) -> None:
        self.config = config
        self.first = self.settled = progress
        self.console.print(
            f"{'step':>7} {'seconds':>8} {'loss':>8} {'held-out':>9} {'tokens/s':>9}", style="bold"
        )
        if self.has_bar:
            self.start_bar()

    def stepped(self, progress: RunProgress, metrics: Mapping[str, Any]) -> None:
        self.last |= metrics
        self.foretell_steps(progress)
        if "val_loss" in metrics:
            if "val_accuracy" not in metrics:  # which often rises on while the loss rises too
                self.evaluations.append(Evaluated(progress.step, metrics["val_loss"], metrics["val_share"]))
            self.console.print(
                f"{progress.step:>7} {progress.seconds:>8.1f} {metrics['loss']:>8.4f} "
                f"{held_out(metrics):>9} {metrics['tokens_per_second']:>9,.0f}",
                markup=False,
            )
            if metrics["val_share"] < 1 and not self.explained_tilde:
                self.explained_tilde = True
                self.note("~: measured on a fixed part of the held-out data")
        if metrics and self.has_bar:
            done, left = self.fraction_done(progress)
            self.move_bar(done, self.describe(progress, left))

    def sampled(self, text: str) -> None:
        self.console.print("a sample:", style="bold")
        self.console.print(indent(harmless(text).strip("\n"), "    "), markup=False)

    def end(self) -> None:
        if self.has_bar:
            self.stop_bar()
        if remark := remark_on_rise(self.evaluations):
            self.note(remark)

    def start_bar(self) -> None:
        self.bar.start()

    def move_bar(self, done: float, text: str) -> None:
        """Show the fraction of the run that is done, from 0 to 1."""
        self.bar.update(self.task, completed=done, description=text, refresh=True)

    def stop_bar(self) -> None:
        self.bar.stop()

    def fraction_done(self, progress: RunProgress) -> tuple[float, float]:
        """Return the fraction of the run that is done, and the seconds that are left."""
        train = self.config.train
        estimates = []
        if train.max_seconds is not None:
            estimates.append(train.max_seconds - progress.seconds)
        if train.max_wall_seconds is not None:
            estimates.append(seconds_left(train.max_wall_seconds, progress))
        steps_here = progress.step - self.first.step
        if train.max_steps is not None and steps_here:
            rate = (progress.seconds - self.first.seconds) / steps_here
            estimates.append((train.max_steps - progress.step) * rate)
        left = max(0.0, min(estimates)) if estimates else 0.0
        whole = progress.seconds + left
        return (progress.seconds / whole if whole else 0.0), left

    def foretell_steps(self, progress: RunProgress) -> None:
        """Estimate the number of steps of a run that is limited by time, once the slower first steps are over."""
        steps = progress.step - self.first.step
        if steps == SETTLED_AFTER:
            self.settled = progress
        each = (progress.seconds - self.settled.seconds) / (FORETOLD_AFTER - SETTLED_AFTER)
        if steps == FORETOLD_AFTER and self.config.train.max_steps is None and each:
            n_steps = progress.step + round(self.fraction_done(progress)[1] / each)
            self.note(f"about {n_steps:,} steps in all at the current speed")

    def note(self, text: str) -> None:
        """Print a remark between the lines of the table."""
        self.console.print(f"        ({text})", markup=False)

    def describe(self, progress: RunProgress, left: float) -> str:
        loss = f"  held-out {held_out(self.last)}" if "val_loss" in self.last else ""
        return (
            f"step {progress.step}  loss {self.last['loss']:.4f}{loss}  "
            f"{self.last['tokens_per_second']:,.0f} tokens/s  {clock(left)} left"
        )


class NotebookReporter(ConsoleReporter):
    """The same for a notebook: lines below the cell, and a bar that IPython updates in place."""

    def __init__(self) -> None:
        super().__init__()
        self.console = Console(
            file=sys.stdout, force_jupyter=False, highlight=False, emoji=False, soft_wrap=True
        )
        self.has_bar = True
        self.display: Any = None

    def start_bar(self) -> None:
        from IPython.display import display

        self.display = display(as_html(0.0, "the first steps"), raw=True, display_id=True)

    def move_bar(self, done: float, text: str) -> None:
        self.display.update(as_html(done, text), raw=True)

    def stop_bar(self) -> None:
        if self.display is not None:
            self.display.update({"text/html": "", "text/plain": ""}, raw=True)


class Evaluated(NamedTuple):
    """An evaluation: the step, the held-out loss in nats, and the share of the held-out data that was read."""

    step: int
    loss: float
    share: float


def remark_on_rise(evaluations: Sequence[Evaluated]) -> str | None:
    """Return a remark if the held-out loss has risen since its lowest; None if it has not, or hardly.

    Losses of different parts of the data cannot be compared, so only those of the part that was read most often count;
    means of several in a row, because those of a small part vary from one evaluation to the next.
    """
    if not evaluations:
        return None
    [(share, _)] = Counter(each.share for each in evaluations).most_common(1)
    same = [each for each in evaluations if each.share == share]
    means = [fmean(each.loss for each in same[i : i + IN_A_ROW]) for i in range(len(same) - IN_A_ROW + 1)]
    if not means or means[-1] - min(means) < RISE:
        return None
    lowest = same[means.index(min(means)) + IN_A_ROW // 2]
    return (
        f"the held-out loss was lowest around step {lowest.step:,} and has risen by {means[-1] - min(means):.2f} nats "
        "since; fewer steps or more dropout may generalise better"
    )


def as_html(done: float, text: str) -> dict[str, str]:
    """Return a progress bar as HTML and as plain text, by MIME type."""
    bar = f"<progress value='{done:.4f}' max='1'></progress> <code>{escape(text)}</code>"
    return {"text/html": bar, "text/plain": f"{done:.0%} {text}"}


def reporter_here() -> ConsoleReporter:
    """Return the reporter for a notebook if the code runs in one, else the one for a terminal."""
    return NotebookReporter() if Console().is_jupyter else ConsoleReporter()


def clock(seconds: float) -> str:
    """Return seconds as `m:ss` or `h:mm:ss`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
