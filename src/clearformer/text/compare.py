"""How finely a tokenizer cuts a text: tokens per word and line, bytes per token, and unknown tokens."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from clearformer.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Cut:
    """Counts of the tokens that a tokenizer makes of some lines.

    Attributes:
        n_lines: Lines that are not blank.
        n_words: Words, separated by white space.
        n_bytes: Bytes of the lines in UTF-8, without line ends.
        n_tokens: Tokens of the lines, each encoded by itself.
        n_unknown: How many of these are the unknown token.
    """

    n_lines: int
    n_words: int
    n_bytes: int
    n_tokens: int
    n_unknown: int

    @property
    def tokens_per_word(self) -> float | None:
        """Tokens per word, also called fertility; None if there is no word."""
        return _ratio(self.n_tokens, self.n_words)

    @property
    def tokens_per_line(self) -> float | None:
        """Tokens per line: a sentence's length, if each line is a sentence; None if there is no line."""
        return _ratio(self.n_tokens, self.n_lines)

    @property
    def bytes_per_token(self) -> float | None:
        """Bytes of text per token; None if there is no token."""
        return _ratio(self.n_bytes, self.n_tokens)

    @property
    def unknown_share(self) -> float | None:
        """The fraction of unknown tokens; None if there is no token."""
        return _ratio(self.n_unknown, self.n_tokens)

    def to_json(self) -> dict[str, Any]:
        """Return counts and ratios, for `json.dumps`."""
        return {
            "n_lines": self.n_lines,
            "n_words": self.n_words,
            "n_bytes": self.n_bytes,
            "n_tokens": self.n_tokens,
            "n_unknown": self.n_unknown,
            "tokens_per_word": self.tokens_per_word,
            "tokens_per_line": self.tokens_per_line,
            "bytes_per_token": self.bytes_per_token,
            "unknown_share": self.unknown_share,
        }


def cut_of(tokenizer: Tokenizer, lines: Iterable[str]) -> Cut:
    """Count the tokens of lines, leaving out blank ones.

    Raises:
        TokenizerError: the tokenizer lacks a character of a line.
    """
    n_lines = n_words = n_bytes = n_tokens = n_unknown = 0
    for line in lines:
        if words := line.split():
            ids = tokenizer.encode(line)
            n_lines += 1
            n_words += len(words)
            n_bytes += len(line.encode())
            n_tokens += len(ids)
            n_unknown += 0 if tokenizer.unk_id is None else int(np.count_nonzero(ids == tokenizer.unk_id))
    return Cut(n_lines, n_words, n_bytes, n_tokens, n_unknown)


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
