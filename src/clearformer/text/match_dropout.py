"""Longest matches left out at random, so that a word becomes other WordPiece tokens each time (Hiraoka 2022).

At every place in a word, WordPiece takes the longest token that the rest of the word begins with. Here each such token
is left out with a given probability, drawn again each time, and then the next shorter one is tried; the shortest is
never left out. With probability 0 this is WordPiece itself.
"""

from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from clearformer.text.kinds.wordpiece import CONTINUES, WordPieceTokenizer, is_continuing

REMEMBERED = 1 << 16  # places in words
DRAWN_AT_ONCE = 32


class MatchDropout:
    """A tokenizer's words, cut into other tokens at every draw.

    Args:
        tokenizer: The tokenizer, which is not changed.
        probability: The probability that a match is left out, below 1.
    """

    def __init__(self, tokenizer: WordPieceTokenizer, probability: float) -> None:
        self.probability = probability
        self._tokenizer = tokenizer
        self._pieces = [spelling.removeprefix(CONTINUES) for spelling in tokenizer.spellings]
        self._goes_on = np.array([is_continuing(spelling) for spelling in tokenizer.spellings])
        self._matches = lru_cache(maxsize=REMEMBERED)(self._find_matches)

    def draw(self, tokens: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return a text's tokens [N] int64 with its words cut anew, [M] int64; special tokens stay.

        A word is cut anew from its first token that is left out.
        """
        left_out = (rng.random(len(tokens)) < self.probability) & self._tokenizer.is_plain[tokens]
        bounds = [*np.flatnonzero(~self._goes_on[tokens]).tolist(), len(tokens)]  # of words
        left_out[: bounds[0]] = False  # the rest of a word that began before
        n_left_out, row = self._n_left_out(rng), tokens.tolist()
        drawn: list[int] = []
        done = 0
        for first in np.flatnonzero(left_out).tolist():
            if first >= done:
                number = bisect_right(bounds, first)
                start, end = bounds[number - 1], bounds[number]
                drawn += row[done:first]
                drawn += self._cut(row[start:end], first - start, n_left_out)
                done = end
        return np.array(drawn + row[done:], np.int64)

    def _n_left_out(self, rng: np.random.Generator) -> Iterator[int]:
        """Yield at random how many matches in a row are left out, given that the first is: 1 or more."""
        while True:
            yield from rng.geometric(1 - self.probability, DRAWN_AT_ONCE).tolist()

    def _cut(self, tokens: list[int], first: int, n_left_out: Iterator[int]) -> list[int]:
        """Return what replaces `tokens[first:]` of a word.

        The longest match at `first` is left out. If this leads to a place where no token fits, nothing is replaced.
        """
        pieces = [self._pieces[token] for token in tokens]
        word, place = "".join(pieces), sum(map(len, pieces[:first]))
        drawn: list[int] = []
        skipped = next(n_left_out)
        while place < len(word):
            matches = self._matches(word, place)
            if not matches:
                return tokens[first:]
            place, token = matches[min(skipped, len(matches) - 1)]
            drawn.append(token)
            skipped = next(n_left_out) - 1
        return drawn

    def _find_matches(self, word: str, start: int) -> list[tuple[int, int]]:
        """Return where each token that fits at `start` ends, and its id, the longest first."""
        prefix = CONTINUES if start else ""
        found = (
            (end, self._tokenizer.id_of(prefix + word[start:end])) for end in range(len(word), start, -1)
        )
        return [(end, token) for end, token in found if token is not None]
