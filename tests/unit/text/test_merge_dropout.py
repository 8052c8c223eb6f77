"""BPE with merges left out: against BPE without, and against the probabilities that the definition gives."""

from collections import Counter
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearformer.text import BPETokenizer, BPETokenizerSpec
from clearformer.text import merge_dropout as module
from clearformer.text.kinds.byte import BYTE_SPELLINGS
from clearformer.text.merge_dropout import MergeDropout

CORPUS = [f"the thin thing that {n} thought is Größe {n}, 23.5" for n in range(40)]
TOKENIZERS = {
    "plain": BPETokenizerSpec(vocab_size=330).train(CORPUS, specials=("<pad>",)),
    "lower case": BPETokenizerSpec(vocab_size=330, lowercase=True).train(CORPUS),
    "single digits": BPETokenizerSpec(vocab_size=330, digits="single").train(CORPUS),
    "no merges": BPETokenizerSpec(vocab_size=256).train(CORPUS),
}
every_tokenizer = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)
texts = st.lists(st.one_of(st.text(max_size=30), st.text("thinkgouÖ 12.", max_size=40)), max_size=8)


def drawn(tokenizer: BPETokenizer, rows: list[str], probability: float, seed: int = 1) -> list[list[int]]:
    tokens, ends = MergeDropout(tokenizer, rows, probability).draw(np.random.default_rng(seed))
    assert len(ends) == len(rows)
    return [part.tolist() for part in np.split(tokens, ends)[: len(rows)]]


@every_tokenizer
@given(texts)
def test_with_none_left_out_it_is_bpe(tokenizer: BPETokenizer, rows: list[str]) -> None:
    assert drawn(tokenizer, rows, 0.0) == [tokenizer.encode(row).tolist() for row in rows]


@every_tokenizer
@given(texts)
def test_with_all_left_out_it_is_the_bytes(tokenizer: BPETokenizer, rows: list[str]) -> None:
    found = drawn(tokenizer, rows, 1.0)

    for row, tokens in zip(rows, found, strict=True):
        assert b"".join(map(tokenizer.token_bytes, tokens)) == tokenizer.normalized(row).encode()
        assert len(tokens) == len(tokenizer.normalized(row).encode())


@every_tokenizer
@given(texts, st.floats(0, 1), st.integers(0, 1000))
def test_a_text_stays_the_text(
    tokenizer: BPETokenizer, rows: list[str], probability: float, seed: int
) -> None:
    found = drawn(tokenizer, rows, probability, seed)

    assert [tokenizer.decode(tokens) for tokens in found] == list(map(tokenizer.normalized, rows))
    assert found == drawn(tokenizer, rows, probability, seed)


def test_each_draw_is_another() -> None:
    dropout, rng = MergeDropout(TOKENIZERS["plain"], CORPUS, 0.3), np.random.default_rng(1)

    (one, _), (other, _) = dropout.draw(rng), dropout.draw(rng)

    assert one.tolist() != other.tolist()


def test_blocks_are_joined_each_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK_TOKENS", 11)

    assert drawn(TOKENIZERS["plain"], CORPUS, 0.0) == [
        TOKENIZERS["plain"].encode(row).tolist() for row in CORPUS
    ]


# --- the probabilities ------------------------------------------------------------------------------------

MERGES = [("b", "c"), ("a", "b"), ("a", "bc"), ("bc", "b"), ("c", "a")]
MADE = BPETokenizer([*BYTE_SPELLINGS, *dict.fromkeys(a + b for a, b in MERGES)], MERGES)


def probabilities(pieces: tuple[str, ...], left_out: float) -> Counter[tuple[str, ...]]:
    """Of every way in which a word may end up, by the definition: over all choices of places to leave out."""
    places = [(MERGES.index(pair), at) for at, pair in enumerate(pairwise(pieces)) if pair in MERGES]
    found: Counter[tuple[str, ...]] = Counter()
    for kept in product([False, True], repeat=len(places)):
        chance = (1 - left_out) ** sum(kept) * left_out ** (len(kept) - sum(kept))
        if not any(kept):
            found[pieces] += chance  # type: ignore[assignment]
            continue
        _, at = min(place for place, is_kept in zip(places, kept, strict=True) if is_kept)
        joined = (*pieces[:at], pieces[at] + pieces[at + 1], *pieces[at + 2 :])
        for end, share in probabilities(joined, left_out).items():
            found[end] += chance * share  # type: ignore[assignment]
    return found


@pytest.mark.parametrize("left_out", [0.1, 0.5])
def test_words_fall_apart_as_often_as_the_definition_says(left_out: float) -> None:
    n = 40_000
    expected = probabilities(tuple("abcbca"), left_out)

    found = Counter(
        tuple(MADE.spellings[token] for token in tokens) for tokens in drawn(MADE, ["abcbca"] * n, left_out)
    )

    assert sum(expected.values()) == pytest.approx(1)
    assert found.keys() <= expected.keys()
    for end, share in expected.items():
        assert abs(found[end] - n * share) <= 5 * (n * share * (1 - share)) ** 0.5 + 1
