import numpy as np
import pytest

from clearformer.data.labelled.batches import (
    LabelledBatches,
    check_lengths,
    fitted_lengths,
    in_length_order,
    padded,
    padded_length,
)
from clearformer.data.labelled.preparing import LabelledSplit
from clearformer.data.shards import Split
from clearformer.errors import DataError

CLS, SEP, PAD = 100, 101, 102


def split_of(lengths: list[int]) -> LabelledSplit:
    """Text i holds the token i again and again, and has the label i mod 3."""
    rows = [[CLS, *[i] * (length - 2), SEP] for i, length in enumerate(lengths)]
    tokens = np.array([token for row in rows for token in row], np.uint16)
    return LabelledSplit(
        "train",
        [f"text {i}" for i in range(len(rows))],
        np.arange(len(rows)) % 3,
        Split("train", [tokens], 1, 1),
        np.cumsum(lengths),
        np.arange(2, len(rows) + 2),
        "a.tsv",
    )


def random_lengths(n: int, most: int = 40) -> list[int]:
    return np.random.default_rng(0).integers(3, most + 1, n).tolist()


def batches_of(n: int, batch_size: int, seed: int = 7) -> LabelledBatches:
    return LabelledBatches(split_of(random_lengths(n)), batch_size, max_length=61, seed=seed, pad_id=PAD)


@pytest.mark.parametrize(("n", "batch_size"), [(97, 7), (97, 1), (5, 7), (7, 7), (13, 4), (1, 3)])
def test_an_epoch_is_every_text_once(n: int, batch_size: int) -> None:
    batches = batches_of(n, batch_size)
    steps = batches.steps_per_epoch
    orders = []
    for epoch in range(3):
        rows = [batches.indices(step) for step in range(epoch * steps, (epoch + 1) * steps)]
        assert sorted(np.concatenate(rows)) == list(range(n))
        sizes = {len(row) for row in rows}
        assert max(sizes) <= batch_size
        assert max(sizes) - min(sizes) <= 1
        orders.append(np.concatenate(rows).tolist())
    assert steps == 1 or len({tuple(order) for order in orders}) == 3
    assert batches.epochs(3 * steps) == 3


def test_a_row_is_its_text_with_its_label_and_padding() -> None:
    batches = batches_of(31, 5)
    for step in range(9):
        indices = batches.indices(step)
        tokens, padding, labels = batches.batch(step)
        assert tokens.dtype == np.int64
        assert tokens.shape == padding.shape
        assert tokens.shape[1] % 8 == 0
        assert tokens.shape[1] - 8 < batches.lengths[indices].max() <= tokens.shape[1]
        assert labels.tolist() == (indices % 3).tolist()
        for index, row, real in zip(indices, tokens, padding, strict=True):
            assert row[real].tolist() == batches.split.row(index).tolist()
            assert (row[~real] == PAD).all()
            assert (np.diff(real.astype(int)) <= 0).all()  # the padding is on the right


def test_a_batch_hangs_on_seed_and_step_alone() -> None:
    forwards = [batches_of(53, 5).indices(step).tolist() for step in range(30)]
    batches = batches_of(53, 5)
    assert [batches.indices(step).tolist() for step in reversed(range(30))] == forwards[::-1]
    assert [batches_of(53, 5, seed=8).indices(step).tolist() for step in range(30)] != forwards


def test_the_order_is_the_same_tomorrow() -> None:
    """Fixed for good: a run that resumes must draw what it would have drawn."""
    assert batches_of(53, 5).indices(13).tolist() == [2, 12, 46, 17, 35]


def test_texts_of_like_length_come_together() -> None:
    batches = batches_of(1009, 8)
    filled = np.mean([batches.batch(step).padding.mean() for step in range(batches.steps_per_epoch)])
    assert filled > 0.8  # rows drawn without regard to length would fill 0.55
    longest = [batches.lengths[batches.indices(step)].max() for step in range(50)]
    assert abs(np.corrcoef(longest, np.arange(50))[0, 1]) < 0.5  # and short and long ones alternate


def twice_or_thrice(row: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Every token between [CLS] and [SEP] again, twice or three times."""
    return np.concatenate((row[:1], np.repeat(row[1:-1], rng.integers(2, 4)), row[-1:]))


def test_rows_drawn_anew_hang_on_seed_and_step_alone_and_stand_in_the_same_order() -> None:
    def drawing(seed: int) -> LabelledBatches:
        return LabelledBatches(split_of([4, 5, 6] * 9), 4, 61, seed, PAD, draw=twice_or_thrice)

    plain, batches = LabelledBatches(split_of([4, 5, 6] * 9), 4, 61, 7, PAD), drawing(7)
    lengths = set()
    for step in reversed(range(30)):
        tokens, padding, labels = batches.batch(step)
        assert batches.indices(step).tolist() == plain.indices(step).tolist()
        assert labels.tolist() == plain.batch(step).labels.tolist()
        assert tokens.shape[1] % 8 == 0
        for row, real, whole in zip(tokens, padding, plain.batch(step).tokens, strict=True):
            assert set(row[real]) == set(whole) - {PAD}
            lengths.add(int(real.sum()))
    assert lengths == {2 + n * times for n in (2, 3, 4) for times in (2, 3)}
    assert any(
        (drawing(7).batch(3).tokens.shape != drawing(seed).batch(3).tokens.shape) for seed in (8, 9, 10)
    )
    assert np.array_equal(drawing(7).batch(3).tokens, batches.batch(3).tokens)


def test_a_row_that_would_be_too_long_is_not_drawn_anew() -> None:
    batches = LabelledBatches(split_of([4, 9]), 2, 10, 0, PAD, draw=twice_or_thrice)

    lengths = [sorted(batches.batch(step).padding.sum(1).tolist()) for step in range(9)]

    assert all(longer == 9 and shorter in (6, 8) for shorter, longer in lengths)


def test_a_text_that_is_too_long_is_named() -> None:
    split = split_of([5, 12, 7, 15])
    with pytest.raises(DataError) as caught:
        fitted_lengths(split, 10, "refuse")
    assert str(caught.value) == (
        "a.tsv, line 3: 12 tokens with [CLS] and [SEP], but the model reads 10 (1 more too long): "
        "set model.max_seq_len=15 or more, or data.too_long=truncate to cut them"
    )
    with pytest.raises(DataError, match=r"the model reads 14: set model"):
        LabelledBatches(split, 2, 14, 0, PAD)
    with pytest.raises(DataError, match=r"the model reads 14: shorten it, or remove it$"):
        next(in_length_order(split, 2, 14, PAD))


def test_a_text_that_is_cut_keeps_its_end() -> None:
    split = split_of([5, 12, 7, 15])
    batches = LabelledBatches(split, 4, 10, 0, PAD, "truncate")
    tokens, padding, _ = batches.batch(0)
    assert tokens.shape == (4, 10)  # no more than the model reads, though 10 is no multiple of 8
    row = tokens[batches.indices(0) == 3][0]
    assert row.tolist() == [CLS, *[3] * 8, SEP]
    assert padding.sum() == 5 + 10 + 7 + 10


def test_how_many_texts_of_each_split_are_cut_is_said(caplog: pytest.LogCaptureFixture) -> None:
    split = split_of([5, 12, 7, 15])
    check_lengths([split], 15, "refuse")
    assert not caplog.records
    check_lengths([split, split_of([3]), split], 10, "truncate")
    assert [record.message for record in caplog.records] == [
        "2 of 4 texts in the train split are longer than the model's 10 tokens and are truncated"
    ] * 2
    with pytest.raises(DataError, match=r"the model reads 10 \(1 more too long\): shorten it"):
        check_lengths([split], 10, "refuse", is_trained=True)


def test_a_whole_split_in_order_of_length() -> None:
    split = split_of(random_lengths(29))
    found = list(in_length_order(split, 6, 61, PAD))
    assert [len(indices) for indices, _ in found] == [6, 6, 6, 6, 5]
    assert sorted(np.concatenate([indices for indices, _ in found])) == list(range(29))
    lengths = split.lengths[np.concatenate([indices for indices, _ in found])]
    assert (np.diff(lengths) <= 0).all()
    for indices, batch in found:
        assert batch.labels.tolist() == (indices % 3).tolist()
        assert batch.padding.sum(1).tolist() == split.lengths[indices].tolist()


def test_padding_rows_by_hand() -> None:
    tokens, padding = padded([np.array([1, 2]), np.array([3, 4, 5, 6])], 3, PAD)
    assert tokens.tolist() == [[1, 2, PAD], [3, 4, 6]]
    assert padding.tolist() == [[True, True, False], [True, True, True]]


def test_lengths_are_rounded_up_as_far_as_the_model_reads() -> None:
    assert [padded_length(n, 30) for n in (1, 8, 9, 24, 25, 30)] == [8, 8, 16, 24, 30, 30]
