"""Decoding token by token, to show text while a model still generates."""

import codecs

from clearformer.text.tokenizer import Tokenizer


class StreamDecoder:
    """Turns ids into text one at a time, holding back the bytes of an incomplete character.

    The joined results of `push` and a final `flush` equal `tokenizer.decode` of all ids at once.

    Args:
        tokenizer: The tokenizer of the ids.
        at_start: Whether the ids begin a text. If they continue one, a first space belongs to it.
    """

    def __init__(self, tokenizer: Tokenizer, at_start: bool = True) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._at_start = at_start

    def push(self, token: int) -> str:
        """Return the characters that this id completes; none in the middle of a character."""
        text = self._decoder.decode(self._tokenizer.token_bytes(token))
        return self._without_first_space(text)

    def flush(self) -> str:
        """Return U+FFFD if a character is unfinished, else nothing, and reset the decoder."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        rest = self._without_first_space(rest)
        self._at_start = True
        return rest

    def _without_first_space(self, text: str) -> str:
        if not (text and self._at_start):
            return text
        self._at_start = False
        return text.removeprefix(" ") if self._tokenizer.opens_with_space else text
