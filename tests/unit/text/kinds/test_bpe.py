"""Byte pair encoding: training, encoding in pieces, and the merges one by one."""

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from clearformer.errors import ConfigError, DataError, TokenizerError
from clearformer.text import BPETokenizer, BPETokenizerSpec, ByteTokenizer, backend, merge_steps

CORPUS = "the cat the hen\nthe naïve owl's nest, 42 eggs; " * 3


def test_the_most_frequent_pair_is_merged_first():
    tokenizer = BPETokenizerSpec(vocab_size=256 + 3).train(["aab aab aab", "aab xyz"])
    assert tokenizer.merges == (("a", "a"), ("aa", "b"), ("Ġ", "aab"))
    assert tokenizer.spellings[256:] == ("aa", "aab", "Ġaab")
    assert tokenizer.encode("aab aab").tolist() == [257, 258]


@pytest.mark.parametrize("specials", [{}, {"bos": True}, {"bos": True, "eos": True}])
def test_vocab_size_counts_bytes_merges_and_special_tokens(specials: dict[str, Any]):
    tokenizer = BPETokenizerSpec(vocab_size=271, **specials).train([CORPUS])
    assert tokenizer.vocab_size == 271
    assert len(tokenizer.merges) == 271 - 256 - len(specials)
    assert len(tokenizer.specials) == len(specials)


def test_a_small_corpus_gives_fewer_tokens():
    tokenizer = BPETokenizerSpec(vocab_size=5000, eos=True).train(["abab cd ef"])
    assert tokenizer.spellings[256:] == ("ab", "<eos>")


def test_single_digits_are_tokens_of_their_own_whatever_was_learned_from():
    corpus = ["le 14 juillet 1789, le 14 juillet 1790, 1789 fois"] * 3
    joined, single = (
        BPETokenizerSpec(vocab_size=330, digits=digits).train(corpus) for digits in ("joined", "single")
    )
    assert "Ġ1789" in [joined.token_label(token).replace(" ", "Ġ") for token in joined.encode("le 1789")]
    for text in ("le 1789", "1789", "4215", "x1789y"):
        labels = [single.token_label(token) for token in single.encode(text)]
        assert [label for label in labels if any(c.isdigit() for c in label)] == [
            c for c in text if c.isdigit()
        ]
        assert single.decode(single.encode(text)) == text
    assert len(single.encode(" juillet")) == 1  # words are joined all the same


def test_single_digits_do_not_depend_on_how_the_text_is_cut(monkeypatch: pytest.MonkeyPatch):
    corpus = "a 1  2 34\n5 b6 \n 7c 8 " * 5
    whole = BPETokenizerSpec(vocab_size=300, digits="single").train([corpus])
    ids = whole.encode(corpus).tolist()
    for n_chars in (3, 5, 7):
        monkeypatch.setattr(backend, "CHUNK_CHARS", n_chars)
        assert whole.encode(corpus).tolist() == ids
        assert BPETokenizerSpec(vocab_size=300, digits="single").train([corpus]).to_json() == whole.to_json()


def test_no_merges_leave_bytes():
    tokenizer = BPETokenizerSpec(vocab_size=256).train([CORPUS])
    ids = tokenizer.encode("naïve\n")
    assert [tokenizer.token_bytes(token) for token in ids] == [bytes([b]) for b in "naïve\n".encode()]


@pytest.mark.parametrize(
    ("settings", "smallest"),
    [
        ({"vocab_size": 255}, 256),
        ({"vocab_size": 257, "bos": True, "eos": True}, 258),
        ({"vocab_size": -1}, 256),
    ],
)
def test_too_small_a_vocabulary_is_refused_with_the_smallest(settings: dict, smallest: int):
    with pytest.raises(ConfigError, match=rf"vocab_size={settings['vocab_size']} .* need {smallest}"):
        BPETokenizerSpec(**settings)


def test_training_gives_the_same_file_in_every_process():
    program = (
        "from clearformer.text import BPETokenizerSpec; "
        f"print(BPETokenizerSpec(vocab_size=300, bos=True).train([{CORPUS!r}]).fingerprint())"
    )
    runs = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) for _ in range(2)]
    prints = {run.communicate()[0].decode().strip() for run in runs}
    assert prints == {BPETokenizerSpec(vocab_size=300, bos=True).train([CORPUS]).fingerprint()}


def test_training_does_not_depend_on_how_the_text_is_cut(monkeypatch: pytest.MonkeyPatch):
    whole = BPETokenizerSpec(vocab_size=300).train([CORPUS])
    monkeypatch.setattr(backend, "CHUNK_CHARS", 7)
    in_pieces = BPETokenizerSpec(vocab_size=300).train([CORPUS])
    assert in_pieces.to_json() == whole.to_json()


@pytest.mark.parametrize("texts", [[], [""]])
def test_no_text_teaches_no_merges(texts: list[str]):
    with pytest.raises(TokenizerError, match="no text to learn tokens from"):
        BPETokenizerSpec().train(texts)


def test_an_error_while_the_corpus_is_read_comes_through():
    def corpus() -> Iterator[str]:
        yield "some text"
        raise DataError("page 2 is missing")

    with pytest.raises(DataError, match="page 2 is missing"):
        BPETokenizerSpec().train(corpus())


def test_a_corpus_with_half_a_surrogate_pair_is_refused():
    with pytest.raises(TokenizerError, match=r"U\+D800 at line 1, column 3"):
        BPETokenizerSpec().train(["fine", "no\ud800"])


def test_a_corpus_that_names_special_tokens_does_not_make_them():
    tokenizer = BPETokenizerSpec(vocab_size=400, bos=True, eos=True).train(["<bos><eos> <bos> " * 50])
    assert tokenizer.bos_id == tokenizer.vocab_size - 2
    assert tokenizer.bos_id not in tokenizer.encode("<bos><eos> <bos>").tolist()


def test_a_text_of_many_batches_is_encoded_as_one(monkeypatch: pytest.MonkeyPatch):
    tokenizer = BPETokenizerSpec(vocab_size=300).train([CORPUS])
    text = CORPUS * 11 + "\n \n\u2003 x\x1c y\x85 z"
    whole = tokenizer._backend.encode(text).ids
    monkeypatch.setattr(backend, "CHUNK_CHARS", 5)
    monkeypatch.setattr(backend, "CHUNKS_AT_ONCE", 3)
    assert tokenizer.encode(text).tolist() == whole


@pytest.mark.parametrize(
    "run", ["ACGT" * 30_000, " " * 120_000, "a b " * 9_000 + "GATTACA" * 20_000 + " c d" * 9_000]
)
def test_no_pre_token_is_too_long_to_learn_from(run: str):
    """A trainer takes the square of its length: DNA without a line's end would never be done."""
    pieces = list(backend.training_pieces([run]))
    assert "".join(pieces) == run
    words = [word for piece in pieces for word in re.findall(r"\s+|\S+", piece)]
    assert max(map(len, words)) <= backend.LONGEST_LEARNED


def test_a_text_with_spaces_is_learned_from_uncut():
    text = "the cat and the hen " * 10_000
    assert list(backend.training_pieces([text])) == list(backend.recut(backend.chunks(text)))


def test_recut_cuts_only_before_a_space_or_newline_after_something_visible():
    assert list(backend.recut(["one tw", "o  three\n\nfo", "ur", " "])) == ["one", " two  three", "\n\nfour "]
    assert list(backend.recut(["   ", "\n\n", "日本語"])) == ["   \n\n日本語"]
    assert list(backend.recut([])) == []
    assert list(backend.recut(["", ""])) == []


def test_lower_case_is_learned_and_comes_back():
    tokenizer = BPETokenizerSpec(vocab_size=271, lowercase=True).train(["THE the tHE " * 3])
    assert tokenizer.spellings[256:259] == ("he", "the", "Ġthe")
    assert tokenizer.encode("THE Éclair İ").tolist() == tokenizer.encode("the éclair i\u0307").tolist()
    assert tokenizer.decode(tokenizer.encode("THE É")) == tokenizer.normalized("THE É") == "the é"
    assert not tokenizer.lossless
    assert BPETokenizerSpec(vocab_size=271).train(["THE"]).lossless
    assert [len(word[-1]) for word in merge_steps(tokenizer, "THE THE")] == [1, 1]


def test_a_vocabulary_without_a_byte_is_refused():
    tokens = list(ByteTokenizer().spellings)
    with pytest.raises(TokenizerError, match="byte 0x41 is not a token"):
        BPETokenizer([token for token in tokens if token != "A"], [])


@pytest.mark.parametrize("token", ["日", "a b", ""])
def test_a_token_in_foreign_spelling_is_refused(token: str):
    with pytest.raises(TokenizerError, match="not spelled in GPT-2's characters"):
        BPETokenizer([*ByteTokenizer().spellings, token], [])


@pytest.mark.parametrize("merge", [("a", "b"), ("a", "bc"), ("xy", "a")])
def test_a_merge_of_or_to_something_unknown_is_refused(merge: tuple[str, str]):
    with pytest.raises(TokenizerError, match=f"merge '{merge[0]} {merge[1]}'"):
        BPETokenizer([*ByteTokenizer().spellings, "bc"], [merge])


def test_merges_happen_one_by_one_the_earliest_learned_first():
    tokens = [*ByteTokenizer().spellings, "he", "Ġt", "Ġthe"]
    tokenizer = BPETokenizer(tokens, [("h", "e"), ("Ġ", "t"), ("Ġt", "he")])
    steps = [
        [[tokenizer.spellings[token] for token in row] for row in word]
        for word in merge_steps(tokenizer, "a the")
    ]
    assert steps == [
        [["a"]],
        [["Ġ", "t", "h", "e"], ["Ġ", "t", "he"], ["Ġt", "he"], ["Ġthe"]],
    ]


def test_the_leftmost_of_equal_merges_is_first_even_where_that_matters():
    # "abc" is made in two ways, and what uses it stands between them: merging all places at once would differ.
    tokens = [*ByteTokenizer().spellings, "bc", "abc", "abca"]
    tokenizer = BPETokenizer(tokens, [("b", "c"), ("abc", "a"), ("a", "bc")])
    *_, last = next(iter(merge_steps(tokenizer, "abcabc")))
    assert [tokenizer.spellings[token] for token in last] == ["abca", "bc"]
    assert list(last) == tokenizer.encode("abcabc").tolist()


def test_the_last_steps_are_the_tokens():
    tokenizer = BPETokenizerSpec(vocab_size=290).train([CORPUS])
    text = f"{CORPUS}  日本 <bos>\n\n 1234"
    ends = [word[-1] for word in merge_steps(tokenizer, text)]
    assert np.concatenate(ends).tolist() == tokenizer.encode(text).tolist()


def test_an_empty_text_has_no_pre_tokens():
    assert list(merge_steps(BPETokenizerSpec(vocab_size=260).train([CORPUS]), "")) == []


def test_the_fingerprint_of_a_training_does_not_drift():
    # Prepared data is found again by it. A new release of `tokenizers` that learns other merges shows here.
    fingerprint = BPETokenizerSpec(vocab_size=300).train([CORPUS]).fingerprint()
    assert fingerprint == "4bee8e1b03ae01ffd8e99aed53e737fb5b23ba590786def5e12080caabe58227"
