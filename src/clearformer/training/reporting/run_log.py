"""The log of a run under way: the lines of metrics.jsonl, and the reporter that shows them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from clearformer.training.config import RunConfig
from clearformer.training.reporting.loggers import LoggingReporter, TensorBoard
from clearformer.training.reporting.report import Reporter
from clearformer.training.step import StepResult
from clearformer.training.store.checkpoint import Progress
from clearformer.training.store.folder import Metrics, RunFolder


class RunLog:
    """Writes the metrics of a run, and passes them on to its reporter.

    Attributes:
        reporter: Of the run.
        metrics: metrics.jsonl; None before `open`, and in processes that do not write.
    """

    def __init__(self, reporter: Reporter) -> None:
        self.reporter = reporter
        self.metrics: Metrics | None = None
        self.last = Progress()  # at the last line that was due

    def open(self, config: RunConfig, folder: RunFolder, progress: Progress) -> Metrics:
        """Open metrics.jsonl, and TensorBoard where the run asks for it, to go on from `progress`."""
        self.metrics = Metrics(folder.metrics_file, progress.step)
        if config.train.tensorboard:
            board = TensorBoard(folder.path / "tensorboard", purge_step=progress.step + 1)
            self.reporter = LoggingReporter(self.reporter, [board])
        return self.metrics

    @contextmanager
    def reporting(self, config: RunConfig, progress: Progress) -> Iterator[None]:
        """Tell the reporter that training begins, and that it is over, for whatever reason."""
        self.last = progress
        try:
            self.reporter.begin(config, progress)
            yield
        finally:
            self.reporter.end()

    def describe(self, progress: Progress, result: StepResult) -> dict[str, Any]:
        """A step's line in metrics.jsonl; its rate is that since the last line that was due."""
        seconds = progress.seconds - self.last.seconds
        tokens = progress.tokens - self.last.tokens
        return {
            "step": progress.step,
            "tokens": progress.tokens,
            "seconds": round(progress.seconds, 4),
            "loss": result.loss,
            "lr": result.lr,
            "grad_norm": result.grad_norm,
            "tokens_per_second": round(tokens / max(seconds, 1e-9), 1),
        }

    def write(self, line: dict[str, Any]) -> None:
        """Append a line to metrics.jsonl, if it is not empty and this process writes."""
        if line and self.metrics:
            self.metrics.append(line)

    def step(self, progress: Progress, line: dict[str, Any]) -> None:
        """Write the line of a step, and report the step."""
        self.write(line)
        self.reporter.stepped(progress, line)
