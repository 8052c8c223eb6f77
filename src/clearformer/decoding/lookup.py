"""Drafts looked up in the text itself, for speculative decoding: what followed the same tokens the last time.

    text          ... the cat sat on the mat. Then the cat
    draft         sat on the mat                              by what followed "the cat" before
    one pass      scores after "cat", "cat sat", "cat sat on", "cat sat on the" and "cat sat on the mat"

A pass over a few tokens takes hardly longer than one over a single token, and gives the scores of every position of
the draft. From these the tokens are chosen one after another as ever, by the same settings and the same random
numbers, as long as each is the draft's (`loop.generate_tokens`). Drafts without a second model: Saxena 2023, prompt
lookup decoding.

**The text is distributed as without drafts.** Let p be the distribution of the next token after what stands before it,
and d the draft's token there. Speculative sampling (Leviathan et al. 2023, section 2.3) draws a draft from some q,
keeps it with probability min(1, p(d) / q(d)), and where it is rejected draws from (p - q)+, normalised, in its place;
their appendix A.1 shows that the result has the distribution p. A draft that is looked up is certain: q(d) = 1. So it
is kept with probability p(d), and replaced by a token x != d with probability (1 - p(d)) p(x) / (1 - p(d)) = p(x). Both
are what happens where x is drawn from p itself and the draft counts as right where x = d: P(x = d) = p(d), and every
other x has p(x). That is what the loop does. What is drawn never depends on the draft, which itself depends on earlier
tokens alone; the draft decides only how many positions of a pass are of use. With temperature 0 all of p is on the
likeliest token, and the same holds.

So it is more than the same distribution: the same random numbers give the same text, token for token, up to the
rounding of scores, whose last bits may differ between a pass over several tokens and passes over one.
"""

from collections.abc import Iterator, Sequence

from clearformer.decoding.arguments import check_whole
from clearformer.errors import UserError

LONGEST_MATCH = 8
"""Tokens that are compared at most: the longer those that are the same, the likelier what followed is too."""

FIRST_DRAFT = 2
"""Tokens of the first draft; see `Lookup.draft`."""

MOST_LOOKED_UP = 1024


class Lookup:
    """A text that grows, what followed in it upon each n-gram of up to `LONGEST_MATCH` tokens, and drafts by that."""

    def __init__(self, tokens: Sequence[int], longest: int) -> None:
        """The drafts of a text that begins with some tokens; each has up to `longest` tokens, 0 for none."""
        self.tokens: list[int] = []
        self.n_right = 0  # tokens of the newest draft that came
        self._longest, self._length = longest, min(longest, FIRST_DRAFT)
        self._draft: list[int] = []
        self._followed: dict[
            tuple[int, ...], int
        ] = {}  # each n-gram's newest occurrence but the end: where it ends
        for token in tokens:
            self.add(token)

    def add(self, token: int) -> bool:
        """Take the next token of the text; returns whether the draft has it there."""
        if self._longest:
            for ngram in self._ends():
                self._followed[ngram] = len(self.tokens)
        is_right = self.n_right < len(self._draft) and self._draft[self.n_right] == token
        self.n_right += is_right
        self.tokens.append(token)
        return is_right

    def draft(self, most: int) -> list[int]:
        """Up to `most` tokens that may follow: what did upon the longest end of the text that occurred before.

        A repetition that reaches the end of the text goes on and on. Nothing, where the last token is a new one. Drafts
        become twice as long as long as they are right, and after a wrong one as long as what was right of it and one
        more, so that little is read in vain where nothing repeats itself.
        """
        if self._draft:
            if self.n_right < len(self._draft):
                self._length = self.n_right + 1
            else:
                self._length = min(self._longest, max(self._length, 2 * self.n_right))
        self._draft, self.n_right = self._look_up(min(most, self._length)), 0
        return self._draft

    def _look_up(self, n: int) -> list[int]:
        for ngram in self._ends() if n > 0 else ():
            position = self._followed.get(ngram)
            if position is not None:
                period = len(self.tokens) - position
                return [self.tokens[position + i % period] for i in range(n)]
        return []

    def _ends(self) -> Iterator[tuple[int, ...]]:
        """The n-grams that the text ends with, the longest first."""
        end = tuple(self.tokens[-LONGEST_MATCH:])
        return (end[first:] for first in range(len(end)))


def check_lookup(lookup: int, use_cache: bool = True, compiled: bool = False) -> None:
    """Raise UserError where a draft's length is none, or drafts do not go together with other settings."""
    check_whole("lookup", lookup)
    if not 0 <= lookup <= MOST_LOOKED_UP:
        raise UserError(f"lookup: tokens of a draft, from 0 (no drafts) to {MOST_LOOKED_UP:,}; got {lookup}")
    if lookup and not use_cache:
        raise UserError("lookup: drafts are read into the cache; leave out drafts, or use_cache=False")
    if lookup and compiled:
        raise UserError(
            "lookup: drafts are read by a step that is not compiled; leave out drafts, or compiling"
        )
