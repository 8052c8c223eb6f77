"""The end of a run, foretold while it goes on: its number of steps, and its held-out loss."""

import math
from collections.abc import Sequence
from itertools import pairwise

from clearformer.training.config import TrainConfig
from clearformer.training.optim.schedules import WarmupStableDecay

FALLS_FROM = 0.5  # the least part of a run in which the rate falls, for its loss to be foretold


def steps_at_the_end(steps_done: int, seconds_done: float, seconds_left: float) -> int:
    """The number of steps that a run by the clock will have, by the time of those that are done."""
    return steps_done + round(steps_done * seconds_left / seconds_done)


def is_foretold(train: TrainConfig) -> bool:
    """Whether a run's rate falls to 0 over most of it, which `loss_at_the_end` rests on."""
    return isinstance(train.schedule, WarmupStableDecay) and train.schedule.decay >= FALLS_FROM


def loss_at_the_end(evaluations: Sequence[tuple[float, float]]) -> float | None:
    """The held-out loss that a run will end with: its second half gains what the second quarter did.

    That is a rule of thumb for rates that fall to 0 over most of a run (benchmarks/RESULTS.md has how far it holds).

    Args:
        evaluations: The part of the run that was done and the loss then, one after the other.

    Returns:
        None before the middle of the run, and where nothing was evaluated in its first quarter.
    """
    quarter, half = loss_at(evaluations, 0.25), loss_at(evaluations, 0.5)
    return None if quarter is None or half is None else half - (quarter - half)


def loss_at(evaluations: Sequence[tuple[float, float]], part: float) -> float | None:
    """The loss at a part of the run, between the evaluations around it: a line over the logarithm of the part."""
    for (before, loss_before), (after, loss_after) in pairwise(evaluations):
        if before <= part <= after and before < after:
            share = math.log(part / before) / math.log(after / before)
            return loss_before + share * (loss_after - loss_before)
    return None
