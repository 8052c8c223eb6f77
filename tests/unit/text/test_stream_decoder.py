"""Text as its tokens arrive."""

from clearformer.text import (
    ByteTokenizer,
    ByteTokenizerSpec,
    CharTokenizer,
    StreamDecoder,
    WordPieceTokenizer,
)


def test_a_character_appears_with_its_last_byte():
    stream = StreamDecoder(ByteTokenizer())
    assert [stream.push(byte) for byte in "a日!".encode()] == ["a", "", "", "日", "!"]
    assert stream.flush() == ""


def test_a_character_left_unfinished_comes_out_at_the_end_and_the_next_text_starts_afresh():
    stream = StreamDecoder(ByteTokenizer())
    assert [stream.push(byte) for byte in "日".encode()[:2]] == ["", ""]
    assert stream.flush() == "\ufffd"
    assert [stream.push(byte) for byte in "é".encode()] == ["", "é"]
    assert stream.flush() == ""


def test_a_special_token_is_silent_and_breaks_no_character():
    tokenizer = ByteTokenizerSpec(eos=True).train()
    stream = StreamDecoder(tokenizer)
    assert [stream.push(token) for token in (0xC3, 256, 0xA9)] == ["", "", "é"]
    assert tokenizer.decode([0xC3, 256, 0xA9]) == "é"


def test_characters_come_at_once():
    stream = StreamDecoder(CharTokenizer("a日"))
    assert [stream.push(token) for token in (1, 0)] == ["日", "a"]


def test_words_stream_with_a_space_between_them_and_none_before_the_first():
    tokenizer = WordPieceTokenizer(["the", "hen", "##s"], ["[CLS]", "[UNK]"])
    stream = StreamDecoder(tokenizer)
    for _ in range(2):  # the second text starts as the first did
        assert [stream.push(token) for token in (3, 0, 1, 2, 0)] == ["", "the", " hen", "s", " the"]
        assert stream.flush() == ""
    assert tokenizer.decode([3, 0, 1, 2, 0]) == "the hens the"


def test_words_that_continue_a_text_have_a_space_before_the_first_too():
    tokenizer = WordPieceTokenizer(["the", "hen", "##s"], ["[CLS]", "[UNK]"])
    stream = StreamDecoder(tokenizer, at_start=False)
    assert [stream.push(token) for token in (3, 1, 2)] == ["", " hen", "s"]
