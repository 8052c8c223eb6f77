"""Loggers, which receive a run's metrics: TensorBoard, Weights & Biases, a file, or one of your own.

    cf.train("quick", loggers=[WandB(project="mine"), my_logger])

A logger is any object with the three methods of `Logger`. If it also has `resume(config, step)`, that is called
instead of `start` when a run is resumed.
"""

import json
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from clearformer.errors import ClearformerError, ConfigError, needs_extra, shortened, shown
from clearformer.files import user_path, write_file
from clearformer.training.config import RunConfig
from clearformer.training.reporting.report import Reporter
from clearformer.training.store.checkpoint import Progress

logger = logging.getLogger(__name__)


@runtime_checkable
class Logger(Protocol):
    """Receives a run's metrics, in the process that writes the run's folder."""

    def start(self, config: RunConfig) -> None:
        """Called when training begins or is resumed."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Called with each line of metrics.jsonl: every `train.log_every` steps, and at every evaluation."""

    def finish(self, summary: Mapping[str, float]) -> None:
        """Called when training ends, for whatever reason, with the last value of each name."""


class JSONLines:
    """Writes one JSON object a line to a new file.

    A resumed run keeps the lines up to the step at which it resumes, as it makes the later ones again.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = user_path(path)

    def start(self, config: RunConfig) -> None:
        self.path.write_text("", encoding="utf-8")

    def resume(self, config: RunConfig, step: int) -> None:
        """Keep the lines up to the step at which training resumes.

        Raises:
            DiskError: the file cannot be written; it is intact.
        """
        lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True) if self.path.is_file() else []
        write_file(self.path, "".join(line for line in lines if _step_of(line) <= step).encode())

    def log(self, step: int, values: Mapping[str, float]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")

    def finish(self, summary: Mapping[str, float]) -> None:
        return


def _step_of(line: str) -> float:
    """Return the step of a line of `JSONLines`; infinity if the line was cut off."""
    try:
        return json.loads(line)["step"] if line.endswith("\n") else math.inf
    except (ValueError, TypeError, KeyError):
        return math.inf


class TensorBoard:
    """Writes scalars to a folder for TensorBoard (needs the extra `tensorboard`).

    Args:
        folder: The folder to write to.
        purge_step: Hide earlier values from this step on, which a resumed run writes again.
    """

    def __init__(self, folder: str | Path, purge_step: int | None = None) -> None:
        self.folder, self.purge_step = str(user_path(folder)), purge_step

    def start(self, config: RunConfig) -> None:
        self.writer = summary_writer_type()(self.folder, purge_step=self.purge_step)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def finish(self, summary: Mapping[str, float]) -> None:
        self.writer.close()


def summary_writer_type() -> type[Any]:
    """Return the class of TensorBoard's writer.

    Raises:
        MissingPackageError: TensorBoard is not installed.
    """
    with needs_extra("tensorboard", "train.tensorboard: logging curves needs TensorBoard"):
        from torch.utils.tensorboard import SummaryWriter
    return SummaryWriter


class WandB:
    """Logs to Weights & Biases (needs the extra `wandb`); `mode="offline"` sends nothing and needs no account.

    Args:
        **settings: Arguments of `wandb.init`: `project`, `name`, `mode`, `dir`, ...
    """

    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    def start(self, config: RunConfig) -> None:
        with needs_extra("wandb", "logging there needs Weights & Biases"):
            import wandb  # type: ignore[import-not-found]
        self.run = wandb.init(config=config.model_dump(mode="json"), **self.settings)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=step)

    def finish(self, summary: Mapping[str, float]) -> None:
        self.run.summary.update(dict(summary))
        self.run.finish()


def checked_loggers(loggers: Any) -> list[Logger]:
    """Return the loggers of any iterable as a list.

    Raises:
        ConfigError: it is not iterable, or something in it is not a logger.
    """
    try:
        chosen = list(loggers)
    except TypeError:
        raise ConfigError(f"loggers takes a list of loggers; got {shown(loggers)}") from None
    for logger in chosen:
        check_logger(logger)
    return chosen


def check_logger(logger: object) -> None:
    """Raise ConfigError if an object is not a logger."""
    if isinstance(logger, type):
        name = logger.__name__
        raise ConfigError(f"loggers: {name} is a class; pass an instance, such as {name}(...)")
    if not isinstance(logger, Logger):
        raise ConfigError(
            f"loggers: {type(logger).__name__} is not a logger: it needs start(config), log(step, values) and "
            "finish(summary)"
        )


class LoggingReporter(Reporter):
    """Passes a run's reports to another reporter, and its metrics to loggers.

    A logger that cannot start ends the run before it begins. One that fails later is reported and left out from then
    on, so that it does not end a run of hours.
    """

    def __init__(self, reporter: Reporter, loggers: Sequence[Logger]) -> None:
        self.reporter, self.loggers = reporter, list(loggers)
        self.is_started = False
        self.summary: dict[str, float] = {}
        self.say, self.preparing, self.sampled = reporter.say, reporter.preparing, reporter.sampled

    def opening(self, config: RunConfig) -> None:
        self.start(config)
        self.reporter.opening(config)

    def begin(self, config: RunConfig, progress: Progress) -> None:
        self.start(config, progress.step)
        self.reporter.begin(config, progress)

    def start(self, config: RunConfig, step: int = 0) -> None:
        """Start the loggers, unless they are started already; in a resumed run call their `resume` if they have it.

        Raises:
            ClearformerError: a logger cannot start; those started before it are finished.
        """
        if self.is_started:
            return
        for number, each in enumerate(self.loggers):
            resume = getattr(each, "resume", None)
            try:
                if step and resume is not None:
                    resume(config, step)
                else:
                    each.start(config)
            except Exception as error:
                self.loggers = self.loggers[:number]
                self._call("finish", self.summary)
                if isinstance(error, ClearformerError):
                    raise
                raise ClearformerError(
                    f"loggers: {type(each).__name__} cannot start: {type(error).__name__}: {shortened(str(error))}"
                ) from error
        self.is_started = True

    def stepped(self, progress: Progress, metrics: Mapping[str, Any]) -> None:
        if metrics:
            values = {name: value for name, value in metrics.items() if name != "step"}
            self.summary |= values
            self._call("log", progress.step, values)
        self.reporter.stepped(progress, metrics)

    def end(self) -> None:
        if self.is_started:
            self._call("finish", self.summary)
        self.reporter.end()

    def _call(self, method: str, *arguments: Any) -> None:
        for each in list(self.loggers):
            try:
                getattr(each, method)(*arguments)
            except Exception as error:
                self.loggers.remove(each)
                # A warning rather than a report: it must be seen of a quiet run too.
                logger.warning(
                    "%s disabled for the rest of the run: %s: %s",
                    type(each).__name__,
                    type(error).__name__,
                    shortened(str(error)),
                )
