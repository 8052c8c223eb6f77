import math

import pytest

from clearformer.training.optim.schedules import (
    Constant,
    Cosine,
    InverseSqrt,
    Schedule,
    WarmupStableDecay,
    lr_factor,
)

ALL = [Constant(), InverseSqrt(), Cosine(), WarmupStableDecay()]


def kind(schedule: Schedule) -> str:
    return schedule.kind


@pytest.mark.parametrize("schedule", ALL, ids=kind)
def test_every_schedule_warms_up_on_a_straight_line_from_the_first_step(schedule: Schedule) -> None:
    factors = [lr_factor(schedule, step, 5, progress=0.0) for step in range(5)]

    assert factors == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])


@pytest.mark.parametrize("schedule", ALL, ids=kind)
def test_every_schedule_is_at_its_peak_where_the_warm_up_ends(schedule: Schedule) -> None:
    peak = (5 / 6) ** 0.5 if schedule.kind == "inverse_sqrt" else 1.0
    assert lr_factor(schedule, 5, 5, progress=0.0) == pytest.approx(peak)
    assert lr_factor(schedule, 0, 0, progress=0.0) == 1.0


def test_constant_stays() -> None:
    assert [Constant().after_warmup(step, 3, step / 100) for step in (3, 50, 99)] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("step", [1, 2, 3999, 4000, 4001, 100_000])
def test_inverse_sqrt_is_the_formula_of_the_paper(step: int) -> None:
    d_model, warmup = 512, 4000
    lr = (d_model * warmup) ** -0.5
    paper = d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)  # its steps are counted from 1

    assert lr * lr_factor(InverseSqrt(), step - 1, warmup, progress=0.5) == pytest.approx(paper, rel=1e-12)


def nanogpt_learning_rate(it: int, lr: float, min_lr: float, warmup: int, decay_iters: int) -> float:
    """After the warm-up, as nanoGPT's users know it: written anew from its description."""
    ratio = (it - warmup) / (decay_iters - warmup)
    return min_lr + 0.5 * (1 + math.cos(math.pi * ratio)) * (lr - min_lr)


@pytest.mark.parametrize("step", [100, 101, 1050, 1999])
def test_cosine_is_nanogpts(step: int) -> None:
    progress = (step - 100) / (2000 - 100)

    ours = 1e-3 * lr_factor(Cosine(final=0.1), step, 100, progress)

    assert ours == pytest.approx(nanogpt_learning_rate(step, 1e-3, 1e-4, 100, 2000), rel=1e-12)


@pytest.mark.parametrize(
    ("progress", "factor"), [(0.0, 1.0), (0.59, 1.0), (0.6, 1.0), (0.8, 0.55), (0.9, 0.325), (1.0, 0.1)]
)
def test_warmup_stable_decay_falls_on_a_straight_line_at_the_end(progress: float, factor: float) -> None:
    schedule = WarmupStableDecay(decay=0.4, final=0.1)

    assert schedule.after_warmup(7, 0, progress) == pytest.approx(factor)
