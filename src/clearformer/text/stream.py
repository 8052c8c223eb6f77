"""Text as its tokens arrive, for a terminal that is written to while a model still generates."""

import codecs

from clearformer.text.tokenizer import Tokenizer


class StreamDecoder:
    """Turns ids into text one at a time, holding back the bytes of a character that is not complete yet.

    What `push` and the last `flush` return is, put together, what `tokenizer.decode` makes of all ids at once.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._at_start = True

    def push(self, token: int) -> str:
        """The characters that this id completes; often one or more, and none in the midst of a character."""
        text = self._decoder.decode(self._tokenizer.token_bytes(token))
        return self._without_first_space(text)

    def flush(self) -> str:
        """U+FFFD for a character left unfinished, if there is one; the decoder is then as new."""
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
