"""Turning tokens into text as they arrive, up to the first stop string."""

from collections.abc import Iterable, Sequence

from clearformer.errors import UserError
from clearformer.text import StreamDecoder, Tokenizer


def known_tokens(tokenizer: Tokenizer, tokens: Iterable[int]) -> list[int]:
    """Return the generated tokens that a tokenizer has: a model may have more, and they stand for no text."""
    return [token for token in tokens if token < tokenizer.vocab_size]


def begins_text(tokenizer: Tokenizer, text: str, tokens: Sequence[int]) -> bool:
    """Whether what follows a text and its tokens is written as the beginning of a text, without its first space.

    Some tokenizers begin every word with a space, the first of a text too, where it is dropped. The first word after a
    prompt keeps it, unless the prompt is empty, or ends with white space that no token holds.
    """
    if not text[-1:].isspace():
        return not text
    read = tokenizer.decode(known_tokens(tokenizer, tokens)) if tokenizer.opens_with_space else ""
    return not read[-1:].isspace()


class Writer:
    """Turns tokens into text that may be printed, holding back what could be the start of a stop string.

    The text ends before the stop string that is complete first, read character by character (the longest, if several
    are complete at once). This does not depend on how the text is cut into tokens.

    Args:
        tokenizer: The tokenizer of the tokens.
        stop: The stop strings.
        at_start: Whether the tokens begin a text; see `begins_text`.

    Raises:
        UserError: a stop string is empty.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = (), at_start: bool = True) -> None:
        if "" in stop:
            raise UserError("stop: an empty text matches everywhere; give the text that ends a sample")
        self._tokenizer, self._decoder = tokenizer, StreamDecoder(tokenizer, at_start)
        self._stop = list(stop)
        self._held = ""
        self._ready = ""
        self.stopped = False

    def push(self, token: int) -> bool:
        """Add the next token; returns whether a stop string is complete."""
        self._add("".join(map(self._decoder.push, known_tokens(self._tokenizer, [token]))))
        return self.stopped

    def finish(self) -> None:
        """End the text and release what was held back."""
        self._add(self._decoder.flush())
        self._ready, self._held = self._ready + self._held, ""

    def take(self) -> str:
        """Return the text that is certain and was not taken before."""
        taken, self._ready = self._ready, ""
        return taken

    def _add(self, text: str) -> None:
        if self.stopped:
            return
        self._held += text
        stops = [(at + len(stop), at) for stop in self._stop if (at := self._held.find(stop)) >= 0]
        self.stopped = bool(stops)
        certain = min(stops)[1] if stops else len(self._held) - self._n_undecided()
        self._ready += self._held[:certain]
        self._held = "" if stops else self._held[certain:]

    def _n_undecided(self) -> int:
        """Return the length of the longest suffix of the held text that begins a stop string."""
        longest = min(len(self._held), max(map(len, self._stop), default=0))
        return next((n for n in range(longest, 0, -1) if self._begins_a_stop(self._held[-n:])), 0)

    def _begins_a_stop(self, text: str) -> bool:
        return any(stop.startswith(text) for stop in self._stop)
