"""The pace of steps, by which the time of the last evaluation is scaled."""

from clearformer.training.limits import STEPS_OF_A_PACE, Pace


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
