"""Speculative decoding with drafts looked up in the text itself: the tokens that last followed the same n-gram.

    text          ... the cat sat on the mat. Then the cat
    draft         sat on the mat                              followed "the cat" before
    one pass      scores after "cat", "cat sat", "cat sat on", "cat sat on the" and "cat sat on the mat"

A pass over a few tokens takes hardly longer than one over a single token, and gives the scores at every position of
the draft. From these the loop chooses tokens one after another as usual, with the same settings and random numbers,
for as long as each equals the draft's (`loop.generate_tokens`). Such drafts need no second model (Saxena 2023, prompt
lookup decoding).

**The distribution of the text is the same as without drafts.** Let p be the distribution of the next token given those
before it, and d the draft's token there. Speculative sampling (Leviathan et al. 2023, section 2.3) draws a draft from
some q, keeps it with probability min(1, p(d) / q(d)), and otherwise draws from (p - q)+, normalised; their appendix A.1
shows that the result has the distribution p. A draft that is looked up is certain: q(d) = 1. So it is kept with
probability p(d), and replaced by a token x != d with probability (1 - p(d)) p(x) / (1 - p(d)) = p(x). The loop does the
same in another way: it draws x from p, and the draft is right if x = d, which has probability p(d); every other x has
p(x). The draw never depends on the draft, which itself depends on earlier tokens alone; the draft decides only how many
positions of a pass are used. With temperature 0 all of p is on the likeliest token, and the same holds.

Not only the distribution is the same: the same random numbers give the same text, token for token, up to the rounding
of scores, whose last bits may differ between a pass over several tokens and passes over one.
"""

from collections.abc import Iterator, Sequence

from clearformer.decoding.arguments import check_whole
from clearformer.decoding.decode_state import GenerativeModel
from clearformer.errors import UserError
from clearformer.model.cache import LayerCache

LONGEST_MATCH = 8
"""The longest n-gram that is compared; the longer the match, the likelier the draft is right."""

FIRST_DRAFT = 2
"""The length of the first draft, in tokens; see `Lookup.draft`."""

MOST_LOOKED_UP = 1024


class Lookup:
    """A growing sequence, an index of its n-grams of up to `LONGEST_MATCH` tokens, and the drafts made from it."""

    def __init__(self, tokens: Sequence[int], longest: int) -> None:
        """Start with a prompt's tokens; drafts have up to `longest` tokens, 0 for none."""
        self.tokens: list[int] = []
        self.n_right = 0  # correct tokens of the newest draft so far
        self._longest, self._length = longest, min(longest, FIRST_DRAFT)
        self._draft: list[int] = []
        self._followed: dict[
            tuple[int, ...], int
        ] = {}  # for each n-gram, the index of the token that last followed it
        for token in tokens:
            self.add(token)

    def add(self, token: int) -> bool:
        """Append the next token; returns whether the draft predicted it."""
        if self._longest:
            for ngram in self._ends():
                self._followed[ngram] = len(self.tokens)
        is_right = self.n_right < len(self._draft) and self._draft[self.n_right] == token
        self.n_right += is_right
        self.tokens.append(token)
        return is_right

    def draft(self, most: int) -> list[int]:
        """Return up to `most` tokens: those that followed the longest suffix of the sequence that occurred before.

        If they reach the end of the sequence, they continue periodically. There are none if the last token is new. The
        length doubles while drafts are right; after a wrong one it is the number of its right tokens plus one, so that
        little is read in vain where nothing repeats.
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
        """Return the n-grams that end the sequence, the longest first."""
        end = tuple(self.tokens[-LONGEST_MATCH:])
        return (end[first:] for first in range(len(end)))


def check_lookup(model: GenerativeModel, lookup: int, use_cache: bool = True, compiled: bool = False) -> None:
    """Raise UserError where `lookup` is out of range, or conflicts with other settings or the model's cache."""
    check_whole("lookup", lookup)
    if not 0 <= lookup <= MOST_LOOKED_UP:
        raise UserError(f"lookup: tokens in a draft, from 0 (no drafts) to {MOST_LOOKED_UP:,}; got {lookup}")
    if lookup and not use_cache:
        raise UserError("lookup: drafts need the cache; omit lookup or use_cache=False")
    if lookup and compiled:
        raise UserError("lookup: a compiled step cannot read drafts; omit lookup or compiling")
    if lookup:
        for cache in model.new_cache().all:
            if type(cache).hold is LayerCache.hold:
                cache.hold()  # raises
