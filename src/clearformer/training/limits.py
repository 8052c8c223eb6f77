"""The limits of a run, and what is due at a step."""

import time
from collections import deque
from dataclasses import dataclass
from statistics import median

from clearformer.errors import ConfigError
from clearformer.training.config import TrainConfig
from clearformer.training.store.checkpoint import Progress

SECONDS_TO_REPORT = 0.6
"""Allowed for what follows the last evaluation, but for the sample: the last checkpoint, the report, the exit."""
SECONDS_TO_WRITE = 0.3
"""Of these, for the checkpoint; one of a large model takes longer."""

STEPS_OF_A_PACE = 16


@dataclass(frozen=True)
class WallClock:
    """The wall-clock time of a run, whatever it is spent on.

    Attributes:
        began: When the command began, by `time.perf_counter`.
        earlier: The seconds of the earlier processes of a resumed run.
    """

    began: float
    earlier: float = 0.0

    def seconds(self) -> float:
        """Return the seconds so far."""
        return self.earlier + time.perf_counter() - self.began


class Pace:
    """How much longer a step takes than when evaluations were last timed.

    If other programs slow the machine down during a run, the last evaluation slows down by the same factor.
    """

    def __init__(self) -> None:
        self.recent: deque[float] = deque(maxlen=STEPS_OF_A_PACE)  # seconds of the latest steps
        self.then: float | None = None

    def took(self, seconds: float) -> None:
        """Record the time of a step."""
        self.recent.append(seconds)
        if self.then is None and len(self.recent) == STEPS_OF_A_PACE:
            self.then = median(self.recent)

    def evaluation_timed(self) -> None:
        """From now on compare with the latest steps."""
        if self.then is not None:
            self.then = median(self.recent)

    @property
    def slowdown(self) -> float:
        """The factor, at least 1: a machine that got faster is noticed at the next evaluation."""
        return 1.0 if self.then is None else max(1.0, median(self.recent) / self.then)


def fraction_done(train: TrainConfig, progress: Progress, without_steps: int = 0) -> float:
    """Return the fraction of the run that is done, by its nearest limit; `without_steps` first steps do not count.

    By the clock, each of these is taken to have lasted as long as the mean step so far.
    """
    fractions, left_out = [0.0], min(1.0, without_steps / max(1, progress.step))
    if train.max_steps is not None:
        done, length = progress.step - without_steps, train.max_steps - without_steps
        fractions.append(done / length if length > 0 else 1.0)
    if train.max_seconds is not None:
        fractions.append(fraction_of_time(progress.seconds, train.max_seconds, left_out))
    if train.max_wall_seconds is not None and progress.step:  # one step is always taken
        left = seconds_left(train.max_wall_seconds, progress)
        done_by_clock = progress.wall_seconds - progress.wall_before
        fractions.append(fraction_of_time(done_by_clock, done_by_clock + left, left_out))
    return min(1.0, max(fractions))


def fraction_of_time(done: float, whole: float, left_out: float) -> float:
    """Return the fraction of some seconds that is done, where a part `left_out` of those so far does not count."""
    return done * (1 - left_out) / (whole - done * left_out) if done < whole else 1.0


def seconds_left(max_wall_seconds: float, progress: Progress) -> float:
    """Return the seconds left before the run must begin to end (`wall_after`); negative if it is late."""
    return max_wall_seconds - progress.wall_after - progress.wall_seconds


def is_finished(train: TrainConfig, progress: Progress) -> bool:
    """Whether the run has reached one of its limits."""
    return fraction_done(train, progress) >= 1 or is_out_of_patience(train, progress)


def is_out_of_patience(train: TrainConfig, progress: Progress) -> bool:
    """Whether the checkpoint of this step is the last of `train.patience` without a lower held-out loss.

    False at steps that are not compared with the best one.
    """
    return train.patience is not None and progress.val_loss is not None and progress.n_worse >= train.patience


def check_not_past_its_end(train: TrainConfig, progress: Progress) -> None:
    """Raise ConfigError if a run has taken more steps than it may."""
    if train.max_steps is not None and progress.step > train.max_steps:
        raise ConfigError(
            f"train.max_steps: the run has taken {progress.step} steps already; give as many or more, or omit it"
        )


def is_due(train: TrainConfig, progress: Progress, every: int | None) -> bool:
    """Whether something that happens every `every` steps, and after the last step, is due now."""
    return is_finished(train, progress) or (every is not None and progress.step % every == 0)
