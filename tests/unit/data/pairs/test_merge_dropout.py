"""Pairs that every epoch reads in other tokens: what an epoch holds, and how it is cut into batches."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearformer.data import PairBatches, PairDataset, PairsData, PairSplit, prepare_pairs
from clearformer.data.pairs.batches import _starts_of
from clearformer.data.pairs.merge_dropout import ReadAnew
from clearformer.errors import TokenizerError
from clearformer.text import BPETokenizerSpec, CharTokenizerSpec

ROOM = 60


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> PairDataset:
    folder = tmp_path_factory.mktemp("pairs")
    words = ["one house", "two houses", "three small houses", "a house of stone", "houses"]
    lines = [f"{words[n % 5]} {n}\t{words[n * n % 5]}, {words[n % 3]} {n}\n" for n in range(97)]
    (folder / "pairs.tsv").write_text("".join(lines))
    config = PairsData(path=str(folder / "pairs.tsv"), val_fraction=0.0)
    return prepare_pairs(config, BPETokenizerSpec(vocab_size=300), cache_dir=folder / "cache")


def rows_of(split: PairSplit) -> list[tuple[list[int], list[int]]]:
    return [(split.source(i).tolist(), split.target(i).tolist()) for i in range(len(split))]


def test_each_epoch_reads_other_tokens_of_the_same_texts(dataset: PairDataset) -> None:
    split, tokenizer = dataset.splits["train"], dataset.tokenizer
    read = ReadAnew(split, tokenizer, 0.3, 1, ROOM)

    one, other = read(0), read(1)

    assert rows_of(one) != rows_of(other)
    assert rows_of(one) == rows_of(ReadAnew(split, tokenizer, 0.3, 1, ROOM)(0))
    assert rows_of(one) != rows_of(ReadAnew(split, tokenizer, 0.3, 2, ROOM)(0))
    for each in (one, other):
        assert [tokenizer.decode(source) for source, _ in rows_of(each)] == split.source_texts
        assert [tokenizer.decode(target) for _, target in rows_of(each)] == split.target_texts
        assert (each.source_texts, each.target_texts) == (split.source_texts, split.target_texts)
        assert (each.name, each.place(5)) == (split.name, split.place(5))


def test_with_none_left_out_it_is_as_it_was_prepared(dataset: PairDataset) -> None:
    split = dataset.splits["train"]

    assert rows_of(ReadAnew(split, dataset.tokenizer, 0.0, 1, ROOM)(3)) == rows_of(split)


def test_what_would_be_too_long_is_read_with_every_merge(dataset: PairDataset) -> None:
    split = dataset.splits["train"]
    room = int(max(split.source_lengths.max(), split.target_lengths.max())) + 3

    anew, unlimited = (ReadAnew(split, dataset.tokenizer, 0.3, 1, most)(0) for most in (room, 1000))

    for side, prepared in zip(anew.sides, split.sides, strict=True):
        assert side.lengths.max() <= room
        assert (side.lengths > prepared.lengths).any()
    too_long = 0
    for side, free, prepared in zip(anew.sides, unlimited.sides, split.sides, strict=True):
        for i in range(len(split)):
            expected = prepared if free.lengths[i] > room else free
            assert side.row(i).tolist() == expected.row(i).tolist()
            too_long += expected is prepared
    assert too_long


def test_a_tokenizer_without_merges_is_refused(dataset: PairDataset) -> None:
    letters = CharTokenizerSpec().train(["abc"], specials=("<pad>", "<bos>", "<eos>"))

    with pytest.raises(TokenizerError, match=r"bpe_dropout needs the merges of a BPE .* this one is char"):
        ReadAnew(dataset.splits["train"], letters, 0.1, 1, ROOM)


# --- batches ----------------------------------------------------------------------------------------------


def batches_of(dataset: PairDataset, probability: float = 0.3, batch_tokens: int = 120) -> PairBatches:
    split, tokenizer = dataset.splits["train"], dataset.tokenizer
    read = ReadAnew(split, tokenizer, probability, 5, ROOM)
    return PairBatches(split, tokenizer, batch_tokens, 5, read=read)


def test_every_epoch_is_every_pair_once_in_its_own_tokens(dataset: PairDataset) -> None:
    batches, read = batches_of(dataset), ReadAnew(dataset.splits["train"], dataset.tokenizer, 0.3, 5, ROOM)
    n = batches.batches_per_epoch
    for epoch in range(3):
        found = {}
        for step in range(epoch * n, (epoch + 1) * n):
            batch = batches.batch(step)
            assert batches.n_target_tokens(step) == batch.n_target_tokens == (batch.targets >= 0).sum()
            width = max(batch.source.shape[1], batch.tokens.shape[1])
            assert len(batch) == 1 or len(batch) * width <= (120 if epoch == 0 else 150)
            for row, index in enumerate(batch.indices.tolist()):
                source = batch.source[row, batch.source_padding[row]][:-1].tolist()
                found[index] = (source, batch.tokens[row, batch.padding[row]][1:].tolist())
        assert [found[index] for index in range(len(found))] == rows_of(read(epoch))


def test_a_step_is_the_same_whatever_was_drawn_before(dataset: PairDataset) -> None:
    used = batches_of(dataset)
    for step in (200, 3, 77, 4):
        drawn, expected = used.batch(step), batches_of(dataset).batch(step)
        for name in ("indices", "source", "source_padding", "tokens", "targets", "padding"):
            np.testing.assert_array_equal(getattr(drawn, name), getattr(expected, name))


def test_parts_together_are_the_batch(dataset: PairDataset) -> None:
    batches = batches_of(dataset)
    whole, parts = batches.batch(31), [batches.batch(31, part, 3) for part in range(3)]

    assert {part.n_target_tokens for part in parts} == {whole.n_target_tokens}
    for number, part in enumerate(parts):
        np.testing.assert_array_equal(part.source, whole.source[number::3])
        np.testing.assert_array_equal(part.targets, whole.targets[number::3])


def test_with_none_left_out_batches_are_those_of_prepared_pairs(dataset: PairDataset) -> None:
    plain = PairBatches(dataset.splits["train"], dataset.tokenizer, 120, 5)
    anew = batches_of(dataset, 0.0)

    assert anew.batches_per_epoch == plain.batches_per_epoch
    assert anew.tokens_per_epoch == plain.tokens_per_epoch
    for step in (0, 7, 100):
        np.testing.assert_array_equal(anew.batch(step).tokens, plain.batch(step).tokens)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=60), st.data())
def test_rows_are_cut_into_as_many_batches_as_asked(widths: list[int], data: st.DataObject) -> None:
    n_batches = data.draw(st.integers(1, len(widths)))

    starts = _starts_of(np.array(sorted(widths))[:, None], n_batches)

    assert len(starts) == n_batches + 1
    assert (starts[0], starts[-1]) == (0, len(widths))
    assert (np.diff(starts) > 0).all()
