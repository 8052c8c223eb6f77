"""WordPiece with longest matches left out: against WordPiece, and against the probabilities of the definition."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearformer.text import WordPieceTokenizer, WordPieceTokenizerSpec
from clearformer.text.match_dropout import MatchDropout

CORPUS = [f"the thin thing that {n} thought is Größe {n}, 23.5" for n in range(40)]
SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LEARNT = WordPieceTokenizerSpec(vocab_size=120).train(CORPUS, SPECIALS)
texts = st.one_of(st.text(max_size=30), st.text("thinkgouz 12.", max_size=40))
OF_ABC = WordPieceTokenizer(["a", "ab", "abc", "##b", "##c", "##bc"])


def drawn(tokenizer: WordPieceTokenizer, tokens: list[int], probability: float, seed: int = 1) -> list[int]:
    rng = np.random.default_rng(seed)
    return MatchDropout(tokenizer, probability).draw(np.array(tokens, np.int64), rng).tolist()


def spelled(tokenizer: WordPieceTokenizer, tokens: list[int]) -> list[str]:
    return [tokenizer.token_label(token) for token in tokens]


@given(texts)
def test_with_none_left_out_it_is_wordpiece(text: str) -> None:
    tokens = LEARNT.encode(text).tolist()

    assert drawn(LEARNT, tokens, 0.0) == tokens


@given(texts)
def test_with_nearly_all_left_out_it_is_the_characters(text: str) -> None:
    tokens = LEARNT.encode(text).tolist()

    pieces = spelled(LEARNT, drawn(LEARNT, tokens, 1 - 1e-12))

    assert all(len(piece.removeprefix("##")) == 1 for piece in pieces if piece != "[UNK]")


@given(texts, st.floats(0, 0.99), st.integers(0, 1000))
def test_a_text_stays_the_text(text: str, probability: float, seed: int) -> None:
    tokens = [LEARNT.bos_id, *LEARNT.encode(text).tolist(), LEARNT.eos_id, LEARNT.pad_id]

    found = drawn(LEARNT, tokens, probability, seed)

    assert LEARNT.decode(found) == LEARNT.decode(tokens)
    assert found == drawn(LEARNT, tokens, probability, seed)
    specials = ~LEARNT.is_plain
    assert [t for t in found if specials[t]] == [t for t in tokens if specials[t]]


def test_every_way_to_cut_a_word_has_its_probability() -> None:
    p, n = 0.3, 20_000
    token = OF_ABC.encode("abc").tolist()
    text = MatchDropout(OF_ABC, p).draw(np.array(token * n), np.random.default_rng(3)).tolist()
    words = "|".join(spelled(OF_ABC, text)).replace("|##", "+").split("|")

    expected = {
        "abc": 1 - p,
        "ab+c": p * (1 - p),
        "a+bc": p**2 * (1 - p),
        "a+b+c": p**3,
    }

    found = Counter(words)
    assert found.keys() == expected.keys()
    for way, probability in expected.items():
        error = (probability * (1 - probability) / n) ** 0.5
        assert found[way] / n == pytest.approx(probability, abs=4 * error)


def test_what_stands_before_a_token_that_is_left_out_stays() -> None:
    tokenizer = WordPieceTokenizer(["x", "##a", "##b", "##ab"])
    tokens = tokenizer.encode("xab x")
    assert spelled(tokenizer, tokens.tolist()) == ["x", "##ab", "x"]

    ways = {tuple(spelled(tokenizer, drawn(tokenizer, tokens.tolist(), 0.5, seed))) for seed in range(40)}

    assert ways == {("x", "##ab", "x"), ("x", "##a", "##b", "x")}


def test_the_rest_of_a_word_that_began_before_stays() -> None:
    tokenizer = WordPieceTokenizer(["b", "bc", "##b", "##c", "##bc"])
    rest, word = (tokenizer.id_of(spelling) for spelling in ("##bc", "bc"))
    assert rest is not None
    assert word is not None

    ways = {tuple(spelled(tokenizer, drawn(tokenizer, [rest, word], 0.5, seed))) for seed in range(40)}

    assert ways == {("##bc", "bc"), ("##bc", "b", "##c")}


def test_a_word_without_another_way_stays() -> None:
    tokenizer = WordPieceTokenizer(["ab", "a", "##c", "abc", "q"])  # after "a" nothing begins with "b"

    ways = {
        tuple(spelled(tokenizer, drawn(tokenizer, tokenizer.encode("abc q z").tolist(), 0.6, seed)))
        for seed in range(60)
    }

    assert ways == {("abc", "q", "[UNK]"), ("ab", "##c", "q", "[UNK]")}
