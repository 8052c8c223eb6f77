"""The log of a run in progress: metrics.jsonl, learning rates and threads, and the reporter that shows the metrics."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from clearformer.training.config import RunConfig
from clearformer.training.reporting.loggers import LoggingReporter, TensorBoard
from clearformer.training.reporting.report import Reporter
from clearformer.training.step import StepResult
from clearformer.training.store.checkpoint import Progress
from clearformer.training.store.folder import LrFactors, Metrics, Record, RunFolder, ThreadCounts


class RunLog:
    """Writes the metrics, learning rates and threads of a run, and passes the metrics on to its reporter.

    Attributes:
        reporter: The run's reporter.
        metrics: metrics.jsonl; None before `open`, and in processes that do not write.
        lr_factors: lr_factors.f64; likewise.
        threads: threads.u16; likewise.
    """

    def __init__(self, reporter: Reporter) -> None:
        self.reporter = reporter
        self.metrics: Metrics | None = None
        self.lr_factors: LrFactors | None = None
        self.threads: ThreadCounts | None = None
        self.last = Progress()  # as of the last line that `train.log_every` asked for

    def open(self, config: RunConfig, folder: RunFolder, progress: Progress) -> list[Record]:
        """Open the run's records to append after `progress`, and TensorBoard if the run asks for it.

        Returns:
            The records that must be on the disk before a checkpoint is.
        """
        self.metrics = Metrics(folder.metrics_file, progress.step)
        self.lr_factors = LrFactors(folder.lr_factors_file, progress.step)
        self.threads = ThreadCounts(folder.threads_file, progress.step)
        if config.train.tensorboard:
            board = TensorBoard(folder.path / "tensorboard", purge_step=progress.step + 1)
            self.reporter = LoggingReporter(self.reporter, [board])
        return [self.metrics, self.lr_factors, self.threads]

    @contextmanager
    def ended(self) -> Iterator[None]:
        """Call the reporter's `end` after the `with` block, however it ends."""
        try:
            yield
        finally:
            self.reporter.end()

    def begin(self, config: RunConfig, progress: Progress) -> None:
        """Call the reporter's `begin`."""
        self.last = progress
        self.reporter.begin(config, progress)

    def describe(self, progress: Progress, result: StepResult) -> dict[str, Any]:
        """Return a step's line for metrics.jsonl, with the tokens per second since the last regular line."""
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
            **{f"grad_norm/{layer}": norm for layer, norm in layer_norms(result.parameter_norms).items()},
        }

    def took(self, result: StepResult) -> None:
        """Record a step's factor of the learning rates and its number of threads, if this process writes."""
        if self.lr_factors and self.threads:
            self.lr_factors.append(result.lr_factor)
            self.threads.append(result.n_threads)

    def write(self, line: dict[str, Any]) -> None:
        """Append a line to metrics.jsonl, if it is not empty and this process writes."""
        if line and self.metrics:
            self.metrics.append(line)

    def step(self, progress: Progress, line: dict[str, Any]) -> None:
        """Write a step's line, and report the step."""
        self.write(line)
        self.reporter.stepped(progress, line)


def layer_norms(parameter_norms: Mapping[str, float]) -> dict[str, float]:
    """Return the gradient's norm in each layer, the root of the sum of its parameters' squared norms.

    A layer is a block (`blocks.0`, `decoder_blocks.3`) or another part of the model by its name (`embed`, `head`).
    """
    squares: dict[str, float] = {}
    for name, norm in parameter_norms.items():
        module, _, rest = name.partition(".")
        layer = f"{module}.{rest.partition('.')[0]}" if module.endswith("blocks") else module
        squares[layer] = squares.get(layer, 0.0) + norm**2
    return {layer: math.sqrt(total) for layer, total in squares.items()}
