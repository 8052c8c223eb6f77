"""Text from tokens, up to a stop string, with nothing shown too early."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearformer.decoding.text.writer import Writer
from clearformer.errors import UserError
from clearformer.text import ByteTokenizerSpec, CharTokenizer, CharTokenizerSpec, Tokenizer
from clearformer.text.kinds.bpe import BPETokenizerSpec

BYTES = ByteTokenizerSpec(eos=True).train(())
LETTERS = CharTokenizerSpec().train(["abcd"])


class Pieces(CharTokenizer):
    """Tokens of several characters, as the subwords of a trained vocabulary are."""

    def __init__(self, pieces: list[str]) -> None:
        super().__init__(["a"])
        self._bytes = [piece.encode() for piece in pieces]
        self.spellings = tuple(pieces)


def write(tokenizer: Tokenizer, tokens: list[int], stop: list[str]) -> tuple[list[str], bool]:
    """What can be shown after each token, until the text ends; and whether a stop string ended it."""
    writer, shown = Writer(tokenizer, stop), []
    for token in tokens:
        ended = writer.push(token)
        shown.append(writer.take())
        if ended:
            break
    writer.finish()
    return [*shown, writer.take()], writer.stopped


def until_stop(text: str, stop: list[str]) -> tuple[str, bool]:
    """The rule itself: character by character, the text ends before the first stop string to be complete."""
    for end in range(len(text) + 1):
        complete = [s for s in stop if text[:end].endswith(s)]
        if complete:
            return text[: end - max(map(len, complete))], True
    return text, False


def test_without_stop_strings_every_character_is_shown_at_once() -> None:
    assert write(LETTERS, LETTERS.encode("abba").tolist(), []) == (["a", "b", "b", "a", ""], False)


def test_what_may_begin_a_stop_string_is_held_back_until_it_is_decided() -> None:
    shown, stopped = write(LETTERS, LETTERS.encode("ababca").tolist(), ["abc"])

    assert (shown, stopped) == (["", "", "ab", "", "", ""], True)


def test_what_was_held_back_is_shown_when_the_text_ends() -> None:
    assert write(LETTERS, LETTERS.encode("dab").tolist(), ["abc"]) == (["d", "", "", "ab"], False)


def test_a_stop_string_in_the_middle_of_a_token_cuts_it() -> None:
    pieces = Pieces(["xx", "yEN", "Dzz"])

    assert write(pieces, [0, 1, 2, 0], ["END"]) == (["xx", "y", "", ""], True)


def test_a_stop_string_that_is_all_of_the_text_leaves_none() -> None:
    assert write(LETTERS, LETTERS.encode("ab").tolist(), ["ab"]) == (["", "", ""], True)


def test_a_character_of_several_tokens_is_shown_when_it_is_whole() -> None:
    tokens = BYTES.encode("é€").tolist()

    assert write(BYTES, tokens, []) == (["", "é", "", "", "€", ""], False)
    assert write(BYTES, tokens[:-1], [])[0][-1] == "\ufffd"  # never finished


def test_a_stop_string_may_lie_across_the_bytes_of_tokens() -> None:
    shown, stopped = write(BYTES, BYTES.encode("aé€b").tolist(), ["é€"])

    assert ("".join(shown), stopped) == ("a", True)


def test_eos_is_no_text() -> None:
    assert BYTES.eos_id is not None
    assert write(BYTES, [*BYTES.encode("a").tolist(), BYTES.eos_id], []) == (["a", "", ""], False)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(UserError, match="stop"):
        Writer(LETTERS, ["a", ""])


@given(
    pieces=st.lists(st.text("abc", min_size=1, max_size=4), max_size=9),
    stop=st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
)
def test_where_a_text_ends_does_not_depend_on_its_tokens(pieces: list[str], stop: list[str]) -> None:
    expected, ends = until_stop("".join(pieces), stop)

    if pieces:
        shown, stopped = write(Pieces(pieces), list(range(len(pieces))), stop)
        assert ("".join(shown), stopped) == (expected, ends)

    letters = LETTERS.encode("".join(pieces)).tolist()
    shown, stopped = write(LETTERS, letters, stop)
    assert ("".join(shown), stopped) == (expected, ends)
    so_far = ""
    for n, piece in enumerate(shown[: len(letters)], start=1):
        so_far += piece
        could_be_cut = max(
            (k for s in stop for k in range(1, len(s)) if "".join(pieces)[:n].endswith(s[:k])), default=0
        )
        assert len(so_far) >= n - could_be_cut or stopped  # no more is held back than must be


def test_with_subwords_of_a_trained_vocabulary() -> None:
    text = "the cat sat on the mat. the end. the cat"
    tokenizer = BPETokenizerSpec(vocab_size=280).train([text * 5])
    tokens = tokenizer.encode(text).tolist()
    assert len(tokens) < len(text) / 2  # some tokens are longer than a character

    shown, stopped = write(tokenizer, tokens, [". the e"])

    assert ("".join(shown), stopped) == ("the cat sat on the mat", True)
