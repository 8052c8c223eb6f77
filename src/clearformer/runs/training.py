"""Training a run in its folder, under another name if another process takes its free name first."""

from dataclasses import dataclass

from clearformer.errors import RunInUseError, RunLostError
from clearformer.files import short_path
from clearformer.runs.folders import free_name, new_run
from clearformer.training.config import RunConfig
from clearformer.training.loop import TrainResult, train
from clearformer.training.reporting.report import Reporter
from clearformer.training.store.folder import RunFolder


@dataclass
class RunStart:
    """A run to train.

    Attributes:
        config: Its configuration.
        folder: Its folder; replaced if another process takes its free name before training begins.
        resume: Whether the run in that folder is resumed.
        is_named: Whether the user chose its name.
        preset: The preset that a new run begins with, if any.
        began: When the command began, by `time.perf_counter`, for `train.max_wall_seconds`; None is when training does.
    """

    config: RunConfig
    folder: RunFolder
    resume: bool
    is_named: bool
    preset: str | None = None
    began: float | None = None


def train_run(start: RunStart, reporter: Reporter, summary: str = "") -> TrainResult:
    """Train a run; if another process has taken its free name meanwhile, use the next free one.

    Args:
        start: The run; afterwards its `folder` is the one that was trained in.
        reporter: Receives the run's folder, once its data are prepared, and all that `training.loop.train` reports.
        summary: Reported with the folder.

    Raises:
        RunInUseError: another process trains the run of the name that the user chose.
        RunLostError: the run's folder was taken away while it was trained.
        ClearformerError: see `training.loop.train`.
    """
    about = f": {summary}" if summary else ""
    while True:
        headline = f"run {short_path(start.folder.path)}{about}"
        try:
            return train(
                start.config, start.folder, reporter, start.resume, start.preset, start.began, headline
            )
        except RunInUseError as error:
            if start.is_named or isinstance(error, RunLostError):
                raise
            start.folder = new_run(free_name(start.folder.path.name))
