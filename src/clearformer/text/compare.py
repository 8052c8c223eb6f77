"""How finely a tokeniser cuts a text: tokens per word and line, bytes per token, and what it does not know."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from clearformer.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Cut:
    """Counts of the tokens that a tokeniser makes of some lines.

    Attributes:
        n_lines: lines with something on them.
        n_words: stretches without white space.
        n_bytes: bytes of the lines in UTF-8, line ends left out.
        n_tokens: tokens of the lines, each encoded by itself.
        n_unknown: how many of them stand for something that the vocabulary lacks.
    """

    n_lines: int
    n_words: int
    n_bytes: int
    n_tokens: int
    n_unknown: int

    @property
    def tokens_per_word(self) -> float | None:
        """Also called fertility; None where there is no word."""
        return _ratio(self.n_tokens, self.n_words)

    @property
    def tokens_per_line(self) -> float | None:
        """The length of a sentence to a model, where a line holds one; None where there is no line."""
        return _ratio(self.n_tokens, self.n_lines)

    @property
    def bytes_per_token(self) -> float | None:
        """How much text a token holds; None where there is none."""
        return _ratio(self.n_bytes, self.n_tokens)

    @property
    def unknown_share(self) -> float | None:
        """The share of tokens that are the unknown one; None where there is no token."""
        return _ratio(self.n_unknown, self.n_tokens)

    def to_json(self) -> dict[str, Any]:
        """Counts and ratios, for `json.dumps`."""
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
    """Counts the tokens of lines; those of white space alone are left out.

    Raises:
        TokenizerError: a line holds what the tokeniser has no token for.
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
