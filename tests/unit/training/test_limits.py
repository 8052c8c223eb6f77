"""How much of a run is done, and the pace of steps, by which the time of the last evaluation is scaled."""

from itertools import pairwise
from typing import Any

import pytest

from clearformer.training.config import TrainConfig
from clearformer.training.limits import STEPS_OF_A_PACE, Pace, fraction_done, is_finished
from clearformer.training.optim.schedules import Cosine
from clearformer.training.step import lr_factor_after
from clearformer.training.store.checkpoint import Progress


def take(pace: Pace, seconds: float, n_steps: int = STEPS_OF_A_PACE) -> None:
    for _ in range(n_steps):
        pace.took(seconds)


def test_slower_steps_are_a_slowdown_until_an_evaluation_is_timed_among_them() -> None:
    pace = Pace()
    take(pace, 0.5, STEPS_OF_A_PACE - 1)
    pace.evaluation_timed()  # too few steps yet to compare with
    assert pace.slowdown == 1
    take(pace, 0.5)
    take(pace, 1.5)
    assert pace.slowdown == 3
    pace.evaluation_timed()
    assert pace.slowdown == 1
    take(pace, 0.75)
    assert pace.slowdown == 1  # faster steps: the next evaluation shows it


def test_a_single_slow_step_is_no_slowdown() -> None:
    pace = Pace()
    take(pace, 0.5)
    pace.took(60.0)
    assert pace.slowdown == 1


EACH, N_STEPS, WARMUP = 0.5, 40, 16
LIMITS: list[dict[str, Any]] = [
    {"max_steps": N_STEPS},
    {"max_seconds": N_STEPS * EACH},
    {"max_wall_seconds": N_STEPS * EACH + 7},
]


def after(step: int, each: float = EACH) -> Progress:
    """The progress of steps of equal length: 4 s after the command began, 3 s before it ends."""
    seconds = step * each
    return Progress(step=step, seconds=seconds, wall_seconds=4 + seconds, wall_before=4, wall_after=3)


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: next(iter(limit)))
def test_a_run_by_the_clock_falls_like_one_of_as_many_steps(limit: dict[str, Any]) -> None:
    """From the peak, where the warm-up ends, whatever share of the run the warm-up took."""
    train = TrainConfig(**limit, warmup_steps=WARMUP, schedule=Cosine(final=0.2))
    by_steps = TrainConfig(max_steps=N_STEPS, warmup_steps=WARMUP, schedule=Cosine(final=0.2))

    factors = [lr_factor_after(train, after(step)) for step in range(N_STEPS + 1)]

    assert factors == pytest.approx([lr_factor_after(by_steps, after(step)) for step in range(N_STEPS + 1)])
    assert factors[WARMUP] == 1
    assert factors[N_STEPS] == pytest.approx(0.2)
    assert [is_finished(train, after(step)) for step in (N_STEPS - 1, N_STEPS)] == [False, True]


@pytest.mark.parametrize("limit", LIMITS[1:], ids=lambda limit: next(iter(limit)))
def test_the_fraction_done_never_falls_when_steps_get_faster_or_slower(limit: dict[str, Any]) -> None:
    train, progress, seconds = TrainConfig(**limit), [], 0.0
    for step in range(1, 60):
        seconds += (0.01, 1.9, 0.1)[step % 3]
        progress.append(after(step, seconds / step))
    fractions = [fraction_done(train, each, without_steps=WARMUP) for each in progress]
    assert fractions[WARMUP - 1] == 0
    assert fractions[-1] == 1
    assert all(one <= other for one, other in pairwise(fractions))
