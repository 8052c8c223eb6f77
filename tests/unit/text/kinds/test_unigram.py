"""Unigram: what is learned, the likeliest way to cut a text, and bytes where characters end."""

import math
import subprocess
import sys
from collections import Counter, defaultdict
from itertools import combinations

import numpy as np
import pytest

from clearformer.errors import TokenizerError
from clearformer.text import UnigramTokenizer, UnigramTokenizerSpec, backend, specials_of
from clearformer.text.kinds import unigram_training as training
from clearformer.text.kinds.unigram import READ_AS_BYTES, SPACE, SPELL_BYTE_PIECES

CORPUS = "the hens then, thin hen\nthe naïve owl " * 3
N_BYTES = 256
FIRST = [(character, -9.0) for character in SPELL_BYTE_PIECES]


def small(*pieces: tuple[str, float], **options) -> UnigramTokenizer:
    return UnigramTokenizer([*FIRST, *pieces], **options)


def spelled(tokenizer: UnigramTokenizer, text: str) -> list[str]:
    return [tokenizer.spellings[token] for token in tokenizer.encode(text)]


def test_the_likeliest_of_all_ways_is_taken():
    tokenizer = small((SPACE, -2.0), ("a", -3.0), ("b", -3.0), ("ab", -4.0), ("▁a", -4.5), ("▁ab", -7.5))
    assert spelled(tokenizer, "ab a ab") == ["ab", "▁a", "▁", "ab"]  # -2 - 4 beats -4.5 - 3 and -7.5


def test_a_character_without_a_token_is_its_bytes():
    tokenizer = small(("a", -3.0), (SPACE, -2.0))
    assert spelled(tokenizer, "aé a\t") == ["a", "<0xC3>", "<0xA9>", "▁", "a", "<0x09>"]
    assert tokenizer.decode(tokenizer.encode("aé a\t日")) == "aé a\t日"
    assert tokenizer.unk_id is None


def test_a_text_that_spells_a_byte_is_not_that_byte():
    tokenizer = small((SPACE, -2.0))
    assert tokenizer.decode(tokenizer.encode("<0x41> <0x00>")) == "<0x41> <0x00>"
    assert tokenizer.encode("<0x41>").tolist() == [N_BYTES + SPELL_BYTE_PIECES.index(c) for c in "<0x41>"]


def test_a_byte_is_spelled_in_capitals_alone():
    tokenizer = small((SPACE, -2.0), ("a", -2.0), ("b", -2.0), ("<0xab>", -1.0))
    ids = tokenizer.encode("<0xab>")
    assert [tokenizer.spellings[token] for token in ids] == ["<0xab>"]
    assert tokenizer.decode(ids) == "<0xab>"


def test_a_line_end_is_no_part_of_a_word():
    tokenizer = UnigramTokenizerSpec(vocab_size=331).train(["ab\nab\nab\ncd\n" * 5])
    assert not [spelling for spelling in tokenizer.spellings if "\n" in spelling and spelling != "\n"]


def test_a_token_is_found_by_its_text_as_a_text_is_encoded():
    tokenizer = UnigramTokenizerSpec(vocab_size=331).train(["ab\nab\nab\ncd\n" * 5])
    for text in ("\n", "a", "<", " "):
        ids = tokenizer.encode(f"a{text}").tolist()
        assert tokenizer.id_of(text) == ids[-1], text
    assert tokenizer.id_of("~") == ord("~")  # which has no token but its byte's


@pytest.mark.parametrize(
    ("options", "text", "back"),
    [
        ({}, "Ⅳ ﬁ É", "Ⅳ ﬁ É"),
        ({"normalize": "nfkc"}, "Ⅳ ﬁ E\u0301", "IV fi É"),
        ({"lowercase": True}, "ﬁ É", "ﬁ é"),
        ({"normalize": "nfkc", "lowercase": True}, "Ⅳ É", "iv é"),
        ({}, "a▁b", "a b"),
    ],
)
def test_what_comes_back_is_the_normalized_text(options: dict, text: str, back: str):
    tokenizer = UnigramTokenizerSpec(vocab_size=331, **options).train([CORPUS])
    assert tokenizer.decode(tokenizer.encode(text)) == back
    assert tokenizer.normalized(text) == back
    assert tokenizer.lossless == (not options)


def test_vocab_size_counts_bytes_pieces_and_special_tokens():
    tokenizer = UnigramTokenizerSpec(vocab_size=293).train([CORPUS], specials_of("encoder-decoder"))
    assert tokenizer.vocab_size == 293
    assert tokenizer.specials == ("<pad>", "<bos>", "<eos>")
    assert UnigramTokenizerSpec(vocab_size=5000).train([CORPUS]).vocab_size < 400


@pytest.mark.parametrize("text", ["日本語", "naïve"])
def test_the_smallest_vocabulary_may_have_no_piece_of_the_corpus(text: str):
    tokenizer = UnigramTokenizerSpec(vocab_size=276).train([text])
    assert set(tokenizer.spellings[N_BYTES:]) == {*SPELL_BYTE_PIECES, SPACE}
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode(tokenizer.encode("<0x41>")) == "<0x41>"


def test_the_smallest_vocabulary_has_no_room_for_the_corpus_and_still_takes_any_text():
    tokenizer = UnigramTokenizerSpec(vocab_size=276).train([CORPUS])
    assert set(tokenizer.spellings[N_BYTES:]) == {*SPELL_BYTE_PIECES, SPACE}
    assert tokenizer.decode(tokenizer.encode(CORPUS)) == CORPUS


def test_what_is_a_special_token_or_a_byte_becomes_no_piece():
    text = "<pad> <0x41> " * 50
    tokenizer = UnigramTokenizerSpec(vocab_size=400).train([text], specials_of("encoder-decoder"))
    assert tokenizer.pad_id == tokenizer.vocab_size - 3
    assert tokenizer.pad_id not in tokenizer.encode(text).tolist()
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("texts", [[], [""]])
def test_no_text_teaches_nothing(texts: list[str]):
    with pytest.raises(TokenizerError, match="no text to learn tokens from"):
        UnigramTokenizerSpec().train(texts)


@pytest.mark.parametrize("text", ["a", "\n", " ", "<", "日"])
def test_one_character_is_a_corpus(text: str):
    tokenizer = UnigramTokenizerSpec(vocab_size=293).train([text])
    assert tokenizer.decode(tokenizer.encode(f"{text} {text}")) == f"{text} {text}"


def test_training_does_not_depend_on_the_process_or_on_how_the_text_is_cut(monkeypatch: pytest.MonkeyPatch):
    program = (
        "from clearformer.text import UnigramTokenizerSpec; "
        f"print(UnigramTokenizerSpec(vocab_size=307).train([{CORPUS!r}]).fingerprint())"
    )
    other = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True)
    monkeypatch.setattr(backend, "CHUNK_CHARS", 7)
    here = UnigramTokenizerSpec(vocab_size=307).train([CORPUS]).fingerprint()
    assert other.stdout.decode().strip() == here
    assert (
        here == "a4bdc191da713f8efa3a273b53508684f71c2ad493c5fc6ea2a8453cfc2d92ef"
    )  # prepared data is found again by it


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([("a", -1.0)], "'0' is not a token"),
        ([*FIRST, ("a", -1.0), ("a", -2.0)], "twice"),
        ([*FIRST, ("<0x41>", -1.0)], "twice"),
        ([*FIRST, ("", -1.0)], "empty"),
        ([*FIRST, ("a", math.nan)], "not a number"),
        ([*FIRST, ("a", -math.inf)], "not a number"),
    ],
)
def test_a_vocabulary_that_will_not_do_is_refused(pieces: list, message: str):
    with pytest.raises(TokenizerError, match=message):
        UnigramTokenizer(pieces)


def test_labels_tell_a_byte_from_the_character():
    tokenizer = small(("▁the", -2.0))
    assert tokenizer.token_label(0x41) == "<0x41>"
    assert tokenizer.token_label(tokenizer.encode(" the")[0]) == " the"
    assert tokenizer.token_bytes(0x41) == b"A" == tokenizer.token_bytes(tokenizer.encode("A")[0])


# --- training, against the definition ---------------------------------------------------------------------

WORDS = Counter({"abab": 3, "aba": 5, "bb": 2, "cabbage": 2, "a": 7})


def ways(word: str) -> list[list[str]]:
    """All ways to cut a word."""
    places = [cut for n in range(len(word)) for cut in combinations(range(1, len(word)), n)]
    return [[word[i:j] for i, j in zip((0, *cut), (*cut, len(word)), strict=True)] for cut in places]


def lattice_with(seeds: int = 1000) -> tuple[training._Lattice, np.ndarray]:
    lattice = training._lattice(WORDS, seeds, ())
    weights = 1.0 + np.arange(len(lattice.pieces)) % 7
    return lattice, weights / weights.sum()


def test_pieces_to_begin_with_are_characters_and_the_substrings_that_occur_twice():
    substrings: Counter[str] = Counter()
    for word, count in WORDS.items():
        for i, j in combinations(range(len(word) + 1), 2):
            substrings[word[i:j]] += count
    lattice, _ = lattice_with()
    assert len(lattice.pieces) == len(set(lattice.pieces))
    assert set(lattice.pieces) == {
        piece for piece, count in substrings.items() if len(piece) == 1 or count >= 2
    }
    assert dict(zip(lattice.pieces, training._occurrences(lattice), strict=True)) == {
        piece: count for piece, count in substrings.items() if piece in lattice.pieces
    }
    fewer = training._lattice(WORDS, 2, ())
    assert fewer.pieces[fewer.n_characters :] == ["ab", "aba"]  # of all, these cover most


def test_expected_occurrences_are_those_over_all_ways():
    lattice, probabilities = lattice_with()
    p = dict(zip(lattice.pieces, probabilities, strict=True))
    expected: defaultdict[str, float] = defaultdict(float)
    for word, count in WORDS.items():
        likelihoods = [math.prod(p.get(piece, 0.0) for piece in way) for way in ways(word)]
        for way, likelihood in zip(ways(word), likelihoods, strict=True):
            for piece in way:
                expected[piece] += count * likelihood / sum(likelihoods)
    found = training._expected(lattice, probabilities)
    np.testing.assert_allclose(found, [expected[piece] for piece in lattice.pieces], rtol=1e-12)


def test_the_loss_of_a_piece_is_what_its_best_other_way_costs():
    lattice, probabilities = lattice_with()
    p = dict(zip(lattice.pieces, probabilities, strict=True))
    losses = training._losses(lattice, probabilities, np.full(len(p), 3.0))
    for piece, loss in zip(lattice.pieces, losses, strict=True):
        others = [math.prod(p.get(part, 0.0) for part in way) for way in ways(piece) if len(way) > 1]
        assert loss == pytest.approx(3 * math.log(p[piece] / max(others)) if others else 0)


def test_a_step_of_expectation_maximisation_makes_the_text_likelier():
    lattice, probabilities = lattice_with()

    def likelihood(p: np.ndarray) -> float:
        of = dict(zip(lattice.pieces, p, strict=True))
        return sum(
            count * math.log(sum(math.prod(of.get(piece, 0.0) for piece in way) for way in ways(word)))
            for word, count in WORDS.items()
        )

    values = [likelihood(probabilities)]
    for _ in range(5):
        expected = training._expected(lattice, probabilities)
        probabilities = expected / expected.sum()
        values.append(likelihood(probabilities))
    assert values == sorted(values)
    assert values[-1] > values[0] + 1


def test_pieces_are_as_many_as_asked_and_their_probabilities_one_in_all():
    pieces = training.learn_pieces(WORDS, 7, required=())
    assert len(pieces) == 7
    assert {"a", "b", "c", "e", "g"} < {piece for piece, _ in pieces}
    assert sum(math.exp(score) for _, score in pieces) == pytest.approx(1)
    assert [score for _, score in pieces] == sorted((score for _, score in pieces), reverse=True)


def test_rare_characters_are_left_to_bytes_and_long_words_taken_in_parts():
    words = Counter({"ab" * 200: 50, "z": 1, "q": 2})
    pieces = dict(training.learn_pieces(words, 30, required=("x",)))
    assert "z" not in pieces
    assert {"a", "b", "x", "abab"} < pieces.keys()
    assert max(len(piece) for piece in pieces) <= training.LONGEST_PIECE


def test_no_piece_is_learned_that_other_programs_read_as_a_byte():
    tokenizer = UnigramTokenizerSpec(vocab_size=400).train(["<0xab> <0x+f> <0xAB>\n"] * 500)
    assert not READ_AS_BYTES & set(tokenizer.spellings[256:])
    assert tokenizer.decode(tokenizer.encode("<0xab>")) == "<0xab>"
