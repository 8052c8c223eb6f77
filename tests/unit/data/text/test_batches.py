import numpy as np
import pytest

from clearformer.data import Batches, Split
from clearformer.errors import DataError


def counting(n_tokens: int) -> Split:
    """Token i is i, in shards of 29."""
    tokens = np.arange(n_tokens, dtype=np.uint16)
    return Split("train", np.split(tokens, range(29, n_tokens, 29)), n_tokens, n_tokens)


@pytest.mark.parametrize("order", ["random", "epochs"])
def test_targets_are_the_inputs_one_token_on(order) -> None:
    inputs, targets = Batches(counting(101), order, batch_size=5, seq_len=7, seed=1).batch(3)
    assert inputs.shape == targets.shape == (5, 7)
    assert inputs.dtype == targets.dtype == np.int64
    assert inputs.flags.c_contiguous
    assert targets.flags.c_contiguous
    assert (targets == inputs + 1).all()
    assert (np.diff(inputs, axis=1) == 1).all()


def test_random_crops_reach_both_ends_of_the_text() -> None:
    batches = Batches(counting(23), "random", batch_size=11, seq_len=19, seed=0)
    starts = np.concatenate([batches.batch(step)[0][:, 0] for step in range(50)])
    assert sorted(set(starts.tolist())) == [0, 1, 2, 3]
    assert np.bincount(starts).min() > 550 / 4 * 0.7
    last_targets = [batches.batch(step)[1][:, -1].max() for step in range(50)]
    assert max(last_targets) == 22


def test_random_crops_are_the_same_tomorrow() -> None:
    """Fixed for good: a run that resumes must draw what it would have drawn."""
    inputs, _ = Batches(counting(997), "random", batch_size=5, seq_len=3, seed=7).batch(11)
    assert inputs[:, 0].tolist() == [415, 784, 682, 172, 559]


def test_shuffled_windows_are_the_same_tomorrow() -> None:
    inputs, _ = Batches(counting(101), "epochs", batch_size=5, seq_len=3, seed=7).batch(11)
    assert inputs[:, 0].tolist() == [72, 96, 24, 66, 3]


def test_an_epoch_is_every_window_once() -> None:
    batches = Batches(counting(101), "epochs", batch_size=4, seq_len=7, seed=3)
    starts = np.concatenate([batches.batch(step)[0][:, 0] for step in range(7)])  # 14 windows an epoch
    assert sorted(starts[:14]) == sorted(starts[14:]) == list(range(0, 98, 7))
    assert starts[:14].tolist() != starts[14:].tolist()
    assert batches.tokens_per_epoch == 98
    assert batches.epochs(7) == 2.0


def test_a_batch_may_be_larger_than_an_epoch() -> None:
    inputs, _ = Batches(counting(11), "epochs", batch_size=13, seq_len=3, seed=3).batch(1)
    assert sorted(inputs[2:5, 0].tolist()) == [0, 3, 6]  # 13 = 4 epochs of 3 and one more


@pytest.mark.parametrize("order", ["random", "epochs"])
def test_a_text_as_long_as_one_row_is_enough(order) -> None:
    inputs, targets = Batches(counting(8), order, batch_size=2, seq_len=7, seed=0).batch(5)
    assert inputs.tolist() == [list(range(7))] * 2
    assert targets.tolist() == [list(range(1, 8))] * 2


@pytest.mark.parametrize("order", ["random", "epochs"])
def test_a_text_shorter_than_the_context_is_refused(order) -> None:
    with pytest.raises(DataError) as caught:
        Batches(counting(7), order, batch_size=2, seq_len=7, seed=0)
    assert str(caught.value) == (
        "the train split has 7 tokens, but model.max_seq_len=7 needs 8 (the last is a target only): "
        "set model.max_seq_len=6 or less, or give a longer text"
    )
    with pytest.raises(DataError, match=r"target only\): give a longer text"):
        Batches(counting(1), order, batch_size=2, seq_len=1, seed=0)
