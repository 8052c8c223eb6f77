"""One token a character."""

import os
from pathlib import Path

import pytest
import tokenizers

from clearformer.errors import TokenizerError
from clearformer.text import CharTokenizer, CharTokenizerSpec

LECTURE_LINE = "To be, or not to be, that is the question."  # lecture 001, "Tokenisation"


def test_the_lectures_example_has_its_characters_and_ids():
    tokenizer = CharTokenizerSpec().train([LECTURE_LINE])
    assert tokenizer.vocab_size == 16
    assert tokenizer.spellings == tuple(" ,.Tabehinoqrstu")
    assert tokenizer.encode(LECTURE_LINE)[:10].tolist() == [3, 10, 0, 5, 6, 1, 0, 10, 12, 0]
    assert tokenizer.decode(tokenizer.encode(LECTURE_LINE)[:20]) == "To be, or not to be,"


def test_tiny_shakespeare_has_65_characters():
    if not (data := os.environ.get("CLEARFORMER_DATA")):
        pytest.skip("CLEARFORMER_DATA is not set")
    text = (Path(data) / "shakespeare" / "input.txt").read_text(encoding="utf-8")
    tokenizer = CharTokenizerSpec(bos=True).train([text])
    assert tokenizer.vocab_size == 65 + 1
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_characters_are_sorted_by_code_point_whatever_the_order_of_the_texts():
    one = CharTokenizerSpec().train(["z\U0001f600a", "é\x00"])
    other = CharTokenizerSpec().train(["\x00é\U0001f600", "", "az"])
    assert one.spellings == other.spellings == ("\x00", "a", "z", "é", "\U0001f600")


def test_special_tokens_move_no_plain_id():
    plain = CharTokenizerSpec().train([LECTURE_LINE])
    special = CharTokenizerSpec(bos=True, eos=True, unk=True).train([LECTURE_LINE])
    assert special.encode(LECTURE_LINE).tolist() == plain.encode(LECTURE_LINE).tolist()
    assert (special.bos_id, special.eos_id, special.unk_id) == (16, 17, 18)


@pytest.mark.parametrize(
    ("character", "name"), [("é", "'é' (U+00E9)"), ("!", "'!' (U+0021)"), ("\U0001f600", "(U+1F600)")]
)
def test_an_unknown_character_is_named_with_its_place_and_both_ways_out(character: str, name: str):
    tokenizer = CharTokenizerSpec().train(["abc\n", "x\u0100"])
    with pytest.raises(TokenizerError) as caught:
        tokenizer.encode(f"abc\nab{character}{character}")
    message = str(caught.value)
    assert name in message
    assert "line 2, column 3" in message
    assert "6 characters" in message
    assert "tokenizer.unk=true" in message
    assert "tokenizer.kind=byte or bpe" in message
    assert "\n" not in message


def test_each_unknown_character_is_one_unk():
    tokenizer = CharTokenizerSpec(unk=True).train(["ab"])
    assert tokenizer.encode("a??b\U0001f600").tolist() == [0, 2, 2, 1, 2]
    assert tokenizer.decode([0, 2, 2, 1, 2]) == "ab"


def test_unknown_characters_are_unk_for_tokenizers_too(tmp_path: Path):
    tokenizer = CharTokenizerSpec(unk=True, eos=True).train(["ab"])
    tokenizer.save(tmp_path / "tokenizer.json")
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert theirs.encode("a??b\U0001f600").ids == tokenizer.encode("a??b\U0001f600").tolist()


@pytest.mark.parametrize("texts", [[], [""], ["", ""]])
def test_no_text_gives_no_vocabulary(texts: list[str]):
    with pytest.raises(TokenizerError, match="no text to take the characters from"):
        CharTokenizerSpec().train(texts)


def test_a_corpus_with_half_a_surrogate_pair_is_refused():
    with pytest.raises(TokenizerError, match=r"U\+DC80 at line 1, column 2"):
        CharTokenizerSpec().train(["ok", "a\udc80"])


@pytest.mark.parametrize("characters", ["", "aa", ["a", "bc"], ["a", ""]])
def test_a_vocabulary_of_anything_but_distinct_characters_is_refused(characters):
    with pytest.raises(TokenizerError, match="each only once"):
        CharTokenizer(characters)
