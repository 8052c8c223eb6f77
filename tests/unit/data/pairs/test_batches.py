"""Batches of pairs: what a model gets, how they are cut, and the order of an epoch."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearformer.data import PairBatch, PairBatches, PairSplit, batches_in_order
from clearformer.data.pairs.files import PairSide
from clearformer.errors import TokenizerError
from clearformer.text import CharTokenizerSpec, Tokenizer
from clearformer.text.kinds.char import CharTokenizer

TOKENIZER = CharTokenizerSpec().train(["abcdefg"], specials=("<pad>", "<bos>", "<eos>"))
PAD, BOS, EOS = TOKENIZER.pad_id, TOKENIZER.bos_id, TOKENIZER.eos_id


def split_of(lengths: list[tuple[int, int]]) -> PairSplit:
    """Pairs of these lengths; the tokens of pair i run up from i, so that no two rows are alike."""

    def side(own: list[int]) -> PairSide:
        rows = [(np.arange(n) + i) % 7 for i, n in enumerate(own)]
        tokens = np.concatenate([np.empty(0, np.int64), *rows]).astype("<u2")
        return PairSide(tokens, np.cumsum(own, dtype=np.int64), list)

    sources, targets = zip(*lengths, strict=True)
    return PairSplit("train", (side(list(sources)), side(list(targets))), np.arange(len(lengths)) + 1)


def random_lengths(n: int, most: int = 41) -> list[tuple[int, int]]:
    sources = np.random.default_rng(5).integers(1, most, n)
    targets = np.maximum(1, sources + np.random.default_rng(6).integers(-5, 6, n))
    return list(zip(sources.tolist(), targets.tolist(), strict=True))


def epoch(batches: PairBatches, number: int = 0) -> list[PairBatch]:
    n = batches.batches_per_epoch
    return [batches.batch(step) for step in range(number * n, (number + 1) * n)]


def test_rows_are_as_a_model_takes_them() -> None:
    split = split_of([(2, 3), (1, 4)])
    [batch] = epoch(PairBatches(split, TOKENIZER, 100, seed=1, multiple=1))
    order = np.argsort(batch.indices)
    assert batch.source[order].tolist() == [[0, 1, EOS], [1, EOS, PAD]]
    assert batch.source_padding[order].tolist() == [[True, True, True], [True, True, False]]
    assert batch.tokens[order].tolist() == [[BOS, 0, 1, 2, PAD], [BOS, 1, 2, 3, 4]]
    assert batch.targets[order].tolist() == [[0, 1, 2, EOS, -100], [1, 2, 3, 4, EOS]]
    assert batch.padding[order].tolist() == [[True, True, True, True, False], [True] * 5]
    assert batch.n_target_tokens == 9
    assert {array.dtype for array in (batch.source, batch.tokens, batch.targets)} == {np.dtype(np.int64)}
    assert {array.dtype for array in (batch.source_padding, batch.padding)} == {np.dtype(bool)}


def test_widths_are_rounded_up() -> None:
    [batch] = epoch(PairBatches(split_of([(2, 3), (1, 4)]), TOKENIZER, 100, seed=1, multiple=8))
    assert batch.source.shape == batch.tokens.shape == (2, 8)
    assert (batch.source_padding.sum(), batch.padding.sum()) == (5, 9)


def test_no_width_is_rounded_up_beyond_what_the_model_reads() -> None:
    split = split_of([(2, 3), (1, 4)])
    [batch] = epoch(PairBatches(split, TOKENIZER, 100, seed=1, multiple=4, max_tokens=6))
    [in_order] = batches_in_order(split, TOKENIZER, 100, multiple=4, max_tokens=6)
    for each in (batch, in_order):
        assert (each.source.shape, each.tokens.shape) == ((2, 4), (2, 6))
        assert (each.source_padding.sum(), each.padding.sum()) == (5, 9)


lengths = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=60)
multiples, budgets = st.integers(1, 8), st.integers(1, 300)
seeds, steps = st.integers(0, 2**64 - 1), st.integers(0, 10**6)


@given(lengths, budgets, multiples, seeds, st.integers(0, 1000))
def test_an_epoch_is_every_pair_once(
    pairs: list[tuple[int, int]], batch_tokens: int, multiple: int, seed: int, number: int
) -> None:
    drawn = epoch(PairBatches(split_of(pairs), TOKENIZER, batch_tokens, seed, multiple), number)
    assert sorted(index for batch in drawn for index in batch.indices.tolist()) == list(range(len(pairs)))
    assert sum(batch.n_target_tokens for batch in drawn) == sum(target + 1 for _, target in pairs)


@given(lengths, budgets, multiples, seeds)
def test_no_batch_is_larger_than_asked_unless_one_pair_is(
    pairs: list[tuple[int, int]], batch_tokens: int, multiple: int, seed: int
) -> None:
    for batch in epoch(PairBatches(split_of(pairs), TOKENIZER, batch_tokens, seed, multiple)):
        width = max(batch.source.shape[1], batch.tokens.shape[1])
        assert len(batch) == 1 or len(batch) * width <= batch_tokens
        assert width % multiple == 0


@given(lengths, budgets, multiples, seeds, st.lists(steps, min_size=1, max_size=5))
def test_a_step_is_the_same_whatever_was_drawn_before(
    pairs: list[tuple[int, int]], batch_tokens: int, multiple: int, seed: int, asked: list[int]
) -> None:
    """So a run that resumes at a step needs to know the step alone."""
    used = PairBatches(split_of(pairs), TOKENIZER, batch_tokens, seed, multiple)
    for step in asked:
        fresh = PairBatches(split_of(pairs), TOKENIZER, batch_tokens, seed, multiple)
        drawn, expected = used.batch(step), fresh.batch(step)
        for name in ("indices", "source", "source_padding", "tokens", "targets", "padding"):
            np.testing.assert_array_equal(getattr(drawn, name), getattr(expected, name))
        assert drawn.n_target_tokens == expected.n_target_tokens == used.n_target_tokens(step)


@given(lengths, budgets, seeds, steps, st.integers(1, 5))
def test_parts_together_are_the_batch(
    pairs: list[tuple[int, int]], batch_tokens: int, seed: int, step: int, n_parts: int
) -> None:
    batches = PairBatches(split_of(pairs), TOKENIZER, batch_tokens, seed)
    whole = batches.batch(step)
    for part in range(n_parts):
        own = batches.batch(step, part, n_parts)
        assert own.n_target_tokens == whole.n_target_tokens
        for name in ("indices", "source", "source_padding", "tokens", "targets", "padding"):
            np.testing.assert_array_equal(getattr(own, name), getattr(whole, name)[part::n_parts])


@given(lengths, budgets, multiples)
def test_reading_in_order_is_every_pair_once_and_none_too_large(
    pairs: list[tuple[int, int]], batch_tokens: int, multiple: int
) -> None:
    split = split_of(pairs)
    read = list(batches_in_order(split, TOKENIZER, batch_tokens, multiple))
    assert sorted(index for batch in read for index in batch.indices.tolist()) == list(range(len(pairs)))
    for batch in read:
        assert (
            len(batch) == 1 or len(batch) * max(batch.source.shape[1], batch.tokens.shape[1]) <= batch_tokens
        )
        for row, index in enumerate(batch.indices.tolist()):
            assert batch.source[row, batch.source_padding[row]].tolist() == [*split.source(index), EOS]
            assert batch.targets[row, batch.padding[row]].tolist() == [*split.target(index), EOS]
            assert batch.tokens[row, batch.padding[row]].tolist() == [BOS, *split.target(index)]
            assert (batch.targets[row, ~batch.padding[row]] == -100).all()
            assert (batch.tokens[row, ~batch.padding[row]] == PAD).all()


@pytest.fixture(scope="module")
def many() -> PairSplit:
    return split_of(random_lengths(1999))


def test_shapes_are_the_same_in_every_epoch_and_their_pairs_are_not(many: PairSplit) -> None:
    batches = PairBatches(many, TOKENIZER, 503, seed=3)
    first, second = epoch(batches, 0), epoch(batches, 1)

    def shapes(drawn: list[PairBatch]) -> Counter:
        return Counter((batch.source.shape, batch.tokens.shape) for batch in drawn)

    assert shapes(first) == shapes(second)
    members = [{frozenset(batch.indices.tolist()) for batch in drawn} for drawn in (first, second)]
    assert len(members[0] & members[1]) < len(first) / 5


def test_the_order_of_the_batches_is_not_that_of_their_lengths(many: PairSplit) -> None:
    for number in range(2):
        widths = [batch.tokens.shape[1] for batch in epoch(PairBatches(many, TOKENIZER, 503, seed=3), number)]
        assert abs(np.corrcoef(widths, np.arange(len(widths)))[0, 1]) < 0.3


def test_other_seeds_draw_something_else(many: PairSplit) -> None:
    one, other = (PairBatches(many, TOKENIZER, 503, seed).batch(0).indices.tolist() for seed in (1, 2))
    assert one != other


def test_batches_are_the_same_tomorrow(many: PairSplit) -> None:
    """Fixed for good: a run that resumes must draw what it would have drawn."""
    assert PairBatches(many, TOKENIZER, 127, seed=7).batch(1009).indices.tolist() == [964, 1065, 1201]


def test_batches_are_full_and_about_equal(many: PairSplit) -> None:
    """A batch of one short pair would weigh as much in training as a full one."""
    drawn = epoch(PairBatches(many, TOKENIZER, 997, seed=3))
    areas = [len(batch) * max(batch.source.shape[1], batch.tokens.shape[1]) for batch in drawn]
    assert np.median(areas) > 0.95 * 997
    assert min(areas) > 0.5 * 997
    real = sum(int(batch.padding.sum() + batch.source_padding.sum()) for batch in drawn)
    assert real / sum(batch.tokens.size + batch.source.size for batch in drawn) > 0.85


def test_the_rest_is_spread_over_all_batches() -> None:
    """Seven pairs, five of which would fit into one batch, are four and three."""
    drawn = epoch(PairBatches(split_of([(3, 3)] * 7), TOKENIZER, 20, seed=0, multiple=1))
    assert sorted(map(len, drawn)) == [3, 4]


def test_a_pair_longer_than_a_batch_is_one_by_itself() -> None:
    drawn = epoch(PairBatches(split_of([(2, 2), (50, 2), (2, 2)]), TOKENIZER, 8, seed=0, multiple=1))
    assert sorted(len(batch) for batch in drawn) == [1, 2]


def test_an_epoch_is_counted(many: PairSplit) -> None:
    batches = PairBatches(many, TOKENIZER, 503, seed=3)
    assert batches.tokens_per_epoch == sum(batch.n_target_tokens for batch in epoch(batches))
    assert batches.epochs(3 * batches.batches_per_epoch) == 3.0


@pytest.mark.parametrize("specials", [("<bos>", "<eos>"), ("<pad>", "<eos>"), ("<pad>", "<bos>")])
def test_a_tokenizer_without_what_translating_needs_is_refused(specials: tuple[str, ...]) -> None:
    tokenizer: Tokenizer = CharTokenizerSpec().train(["a"], specials=specials)
    [absent] = {"<pad>", "<bos>", "<eos>"} - set(specials)
    with pytest.raises(TokenizerError, match=f"has no {absent}, but translation needs"):
        PairBatches(split_of([(1, 1)]), tokenizer, 100, seed=0)


class OpensTexts(CharTokenizer):
    """A vocabulary whose texts begin with <bos>, as BART's do."""

    @property
    def before_pair(self) -> tuple[int, ...]:
        assert self.bos_id is not None
        return (self.bos_id,)


def test_what_stands_before_the_texts_of_a_pair_is_in_the_batch() -> None:
    plain = [spelling for spelling in TOKENIZER.spellings if spelling not in TOKENIZER.specials]
    tokenizer = OpensTexts(plain, TOKENIZER.specials)
    [batch] = batches_in_order(split_of([(2, 3), (1, 4)]), tokenizer, 100, multiple=1)
    order = np.argsort(batch.indices)
    assert batch.source[order].tolist() == [[BOS, 0, 1, EOS], [BOS, 1, EOS, PAD]]
    assert batch.source_padding[order].tolist() == [[True] * 4, [True, True, True, False]]
    assert batch.tokens[order].tolist() == [[BOS, BOS, 0, 1, 2, PAD], [BOS, BOS, 1, 2, 3, 4]]
    assert batch.targets[order].tolist() == [[BOS, 0, 1, 2, EOS, -100], [BOS, 1, 2, 3, 4, EOS]]
    assert batch.n_target_tokens == 11
