"""The order of the data is a function of (seed, step, row), and of nothing else."""

from typing import Literal

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from clearformer.data import Batches, Split

Order = Literal["random", "epochs"]
orders = st.sampled_from(["random", "epochs"])
seeds = st.integers(0, 2**64 - 1)
few = settings(max_examples=40)
batch_sizes, seq_lens, steps = st.integers(1, 13), st.integers(1, 11), st.integers(0, 10**9)


def batches(order: Order, batch_size: int, seq_len: int, seed: int, n_tokens: int = 211) -> Batches:
    split = Split("train", [np.arange(n_tokens, dtype=np.uint16)], n_tokens, n_tokens)
    return Batches(split, order, batch_size, seq_len, seed)


def starts(drawn: Batches, step: int) -> list[int]:
    return drawn.batch(step)[0][:, 0].tolist()


@few
@given(orders, batch_sizes, seq_lens, seeds, st.lists(steps, min_size=1, max_size=5))
def test_a_step_is_the_same_whatever_was_drawn_before(
    order: Order, batch_size: int, seq_len: int, seed: int, asked: list[int]
) -> None:
    """So a run that resumes at a step needs to know the step alone."""
    used = batches(order, batch_size, seq_len, seed)
    for step in asked:
        fresh = batches(order, batch_size, seq_len, seed)
        for drawn, expected in zip(used.batch(step), fresh.batch(step), strict=True):
            np.testing.assert_array_equal(drawn, expected)


@few
@given(orders, batch_sizes, seq_lens, seeds, steps, st.integers(1, 5))
def test_processes_that_take_some_rows_each_see_the_whole_batch(
    order: Order, batch_size: int, seq_len: int, seed: int, step: int, n_processes: int
) -> None:
    inputs, targets = batches(order, batch_size, seq_len, seed).batch(step)
    for rank in range(n_processes):
        own = batches(order, batch_size, seq_len, seed)
        for rows in (
            slice(rank, None, n_processes),
            slice(rank * batch_size // n_processes, (rank + 1) * batch_size // n_processes),
        ):
            own_inputs, own_targets = own.batch(step, rows)
            np.testing.assert_array_equal(own_inputs, inputs[rows])
            np.testing.assert_array_equal(own_targets, targets[rows])


@few
@given(batch_sizes, seq_lens, seeds, st.integers(12, 60), st.integers(0, 1000))
def test_every_epoch_is_each_window_once(
    batch_size: int, seq_len: int, seed: int, n_tokens: int, epoch: int
) -> None:
    drawn = batches("epochs", batch_size, seq_len, seed, n_tokens)
    n_windows = (n_tokens - 1) // seq_len
    first = epoch * n_windows
    reached = range(first // batch_size, (first + n_windows - 1) // batch_size + 1)
    rows = [start for step in reached for start in starts(drawn, step)]
    skipped = first - reached.start * batch_size
    assert sorted(rows[skipped : skipped + n_windows]) == [seq_len * window for window in range(n_windows)]


@few
@given(orders, seeds, seeds, steps, steps)
def test_other_seeds_and_other_steps_draw_something_else(
    order: Order, seed: int, other_seed: int, step: int, other_step: int
) -> None:
    # 31 of the 210 windows of one token: that two such rows agree by chance is out of the question.
    drawn = starts(batches(order, 31, 1, seed), step)
    if other_seed != seed:
        assert starts(batches(order, 31, 1, other_seed), step) != drawn
    if other_step != step:
        assert starts(batches(order, 31, 1, seed), other_step) != drawn


@few
@given(batch_sizes, seq_lens, seeds, steps)
def test_random_crops_stay_inside_the_text(batch_size: int, seq_len: int, seed: int, step: int) -> None:
    inputs, targets = batches("random", batch_size, seq_len, seed, n_tokens=13).batch(step)
    assert inputs.min() >= 0
    assert targets.max() <= 12
