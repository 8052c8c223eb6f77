"""How finely a text is cut."""

import pytest

from clearformer.text import ByteTokenizer, Cut, WordPieceTokenizer, cut_of


def test_what_is_counted():
    cut = cut_of(ByteTokenizer(), ["the naïve", "", " \t", "hen "])
    assert cut == Cut(n_lines=2, n_words=3, n_bytes=14, n_tokens=14, n_unknown=0)
    assert (cut.tokens_per_word, cut.tokens_per_line, cut.bytes_per_token) == (14 / 3, 7, 1)
    assert cut.to_json()["unknown_share"] == 0


def test_unknown_tokens_are_a_share_of_all():
    cut = cut_of(WordPieceTokenizer(["the", "hen", "##s"], ["[UNK]"]), ["the hens owl", "the owl"])
    assert (cut.n_tokens, cut.n_unknown) == (6, 2)
    assert cut.unknown_share == pytest.approx(1 / 3)


def test_nothing_has_no_ratios():
    cut = cut_of(ByteTokenizer(), ["", " "])
    assert set(cut.to_json().values()) == {0, None}
