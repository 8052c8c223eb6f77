"""The limits of a run, and what is due at a step."""

import time
from collections import deque
from dataclasses import dataclass
from statistics import median

from clearformer.training.config import TrainConfig
from clearformer.training.store.checkpoint import Progress

SECONDS_TO_REPORT = 1.0
"""Of the clock, behind the last evaluation: the last checkpoint, a sample, the report and the process's end."""

STEPS_OF_A_PACE = 16


@dataclass(frozen=True)
class WallClock:
    """The seconds of a run by the clock, whatever they go by for.

    Attributes:
        began: When the command began, by `time.perf_counter`.
        earlier: Seconds of the processes that this one goes on from.
    """

    began: float
    earlier: float = 0.0

    def seconds(self) -> float:
        """Those so far."""
        return self.earlier + time.perf_counter() - self.began


class Pace:
    """How much longer a step takes than when evaluations were last timed.

    On a machine that others slow down in the middle of a run, the last evaluation takes as much longer.
    """

    def __init__(self) -> None:
        self.recent: deque[float] = deque(maxlen=STEPS_OF_A_PACE)  # seconds of the latest steps
        self.then: float | None = None

    def took(self, seconds: float) -> None:
        """Count a step."""
        self.recent.append(seconds)
        if self.then is None and len(self.recent) == STEPS_OF_A_PACE:
            self.then = median(self.recent)

    def evaluation_timed(self) -> None:
        """Compare with the steps of now from here on."""
        if self.then is not None:
            self.then = median(self.recent)

    @property
    def slowdown(self) -> float:
        """The ratio, at least 1; a faster machine shows at the next evaluation."""
        return 1.0 if self.then is None else max(1.0, median(self.recent) / self.then)


def fraction_done(train: TrainConfig, progress: Progress, without_steps: int = 0) -> float:
    """The part of the run that is done, by the nearest of its limits; leaving out the first steps if asked."""
    fractions = [0.0]
    if train.max_steps is not None:
        done, length = progress.step - without_steps, train.max_steps - without_steps
        fractions.append(done / length if length > 0 else 1.0)
    if train.max_seconds is not None:
        fractions.append(progress.seconds / train.max_seconds)
    if train.max_wall_seconds is not None and progress.step:  # one step is always taken
        left = seconds_left(train.max_wall_seconds, progress)
        done_by_clock = progress.wall_seconds - progress.wall_before
        fractions.append(done_by_clock / (done_by_clock + left) if left > 0 else 1.0)
    return min(1.0, max(fractions))


def seconds_left(max_wall_seconds: float, progress: Progress) -> float:
    """Seconds for steps and what stands between them, until the run must come to its end; below 0, it is late."""
    return max_wall_seconds - progress.wall_after - progress.wall_seconds


def is_finished(train: TrainConfig, progress: Progress) -> bool:
    """Whether the run has reached one of its limits."""
    return fraction_done(train, progress) >= 1


def is_due(train: TrainConfig, progress: Progress, every: int | None) -> bool:
    """Whether something that happens every so many steps, and after the last, happens now."""
    return is_finished(train, progress) or (every is not None and progress.step % every == 0)
