"""The limits of a run, and what is due at a step."""

from clearformer.training.config import TrainConfig
from clearformer.training.store.checkpoint import Progress


def fraction_done(train: TrainConfig, progress: Progress, without_steps: int = 0) -> float:
    """The part of the run that is done, by the nearer of its limits; leaving out the first steps if asked."""
    by_steps = by_seconds = 0.0
    if train.max_steps is not None:
        done, length = progress.step - without_steps, train.max_steps - without_steps
        by_steps = done / length if length > 0 else 1.0
    if train.max_seconds is not None:
        by_seconds = progress.seconds / train.max_seconds
    return min(1.0, max(by_steps, by_seconds))


def is_finished(train: TrainConfig, progress: Progress) -> bool:
    """Whether the run has reached one of its limits."""
    return fraction_done(train, progress) >= 1


def is_due(train: TrainConfig, progress: Progress, every: int | None) -> bool:
    """Whether something that happens every so many steps, and after the last, happens now."""
    return is_finished(train, progress) or (every is not None and progress.step % every == 0)
