"""BPE dropout: merges left out at random, so that a word becomes other tokens each time (Provilkov et al. 2020).

A pre-token's bytes are joined as in BPE, the earliest learned merge first. But before each merge, every place where one
could be made is left out with a given probability, drawn again each time; a pre-token is done when no place remains.
With probability 0 this is BPE itself, with 1 it leaves the bytes.

All pre-tokens of one length are joined together: a merge shortens each unfinished one by a token, so they remain a
rectangular array. The random numbers are NumPy's, because the `tokenizers` library takes no seed.

Shapes: N pre-tokens, W tokens in each.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from clearformer.text.kinds.bpe import BPETokenizer

BLOCK_TOKENS = 1 << 18  # joined at once: few enough for the processor's cache
NO_MERGE = np.iinfo(np.int32).max  # as a rank: after all merges


class MergeTable:
    """A tokenizer's merges, looked up by the two tokens that they join.

    A merge's rank is its index in the order of learning.
    """

    def __init__(self, tokenizer: BPETokenizer) -> None:
        ids = {spelling: token for token, spelling in enumerate(tokenizer.spellings)}
        self._n_tokens = len(ids)
        pairs = [ids[left] * self._n_tokens + ids[right] for left, right in tokenizer.merges]
        order = np.argsort(pairs, kind="stable")
        # A last entry larger than every pair, so that every search finds an index.
        self._pairs = np.append(np.array(pairs, np.int64)[order], self._n_tokens**2)
        self._ranks = np.append(order, NO_MERGE).astype(np.int32)
        self.joined = np.array([ids[left + right] for left, right in tokenizer.merges], np.int64)
        """The token that each merge gives, by its rank."""

    def ranks(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Return the ranks of the merges of left and right tokens, elementwise; NO_MERGE where there is none."""
        wanted = left * self._n_tokens + right
        places = np.searchsorted(self._pairs, wanted)
        return np.where(self._pairs[places] == wanted, self._ranks[places], NO_MERGE)


class MergeDropout:
    """Texts that are tokenized again at every draw, each time with other merges left out.

    Args:
        tokenizer: The tokenizer, which is not changed.
        texts: The texts.
        probability: The probability that a merge is left out.
    """

    def __init__(self, tokenizer: BPETokenizer, texts: Iterable[str], probability: float) -> None:
        self.probability = probability
        self._table = MergeTable(tokenizer)
        numbers: dict[str, int] = {}  # of the distinct pre-tokens, in the order of first occurrence
        rows = [
            [numbers.setdefault(piece, len(numbers)) for piece in tokenizer.pre_tokens(text)]
            for text in texts
        ]
        self._row_sizes = np.array([len(row) for row in rows], np.int64)
        self._words = np.array([number for row in rows for number in row], np.int64)
        byte_ids = {
            spelling: token for token, spelling in enumerate(tokenizer.spellings) if len(spelling) == 1
        }
        self._bytes = np.array([byte_ids[byte] for piece in numbers for byte in piece], np.int64)
        self._sizes = np.array([len(piece) for piece in numbers], np.int64)
        self._starts = np.cumsum(self._sizes) - self._sizes

    def draw(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of all texts, concatenated, and the index at which each text ends."""
        counts = np.zeros(len(self._words), np.int64)
        pieces = []
        for places, tokens in self._joined(rng):
            counts[places] = tokens.shape[1]
            pieces.append((places, tokens))
        ends = np.cumsum(counts)
        drawn = np.empty(int(counts.sum()), np.int64)
        for places, tokens in pieces:
            width = tokens.shape[1]
            drawn[(ends[places] - width)[:, None] + np.arange(width)] = tokens
        return drawn, np.append(0, ends)[np.cumsum(self._row_sizes)]

    def _joined(self, rng: np.random.Generator) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield pre-tokens with equal numbers of tokens: their indices in the texts [N], and the tokens [N W]."""
        sizes = self._sizes[self._words]
        for size in np.unique(sizes).tolist():
            of_size = np.flatnonzero(sizes == size)
            for first in range(0, len(of_size), n := max(1, BLOCK_TOKENS // size)):
                places = of_size[first : first + n]
                starts = self._starts[self._words[places]]
                for done, tokens in self._join(self._bytes[starts[:, None] + np.arange(size)], rng):
                    yield places[done], tokens

    def _join(self, tokens: np.ndarray, rng: np.random.Generator) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Join pre-tokens [N W]; yields those that are done together: their rows, and their tokens."""
        rows = np.arange(len(tokens))
        ranks = self._table.ranks(tokens[:, :-1], tokens[:, 1:])
        while len(rows) and ranks.shape[1]:
            left_out = rng.random(ranks.shape, dtype=np.float32) < self.probability
            candidates = np.where(left_out, NO_MERGE, ranks)
            at = candidates.argmin(1)
            chosen = candidates[np.arange(len(rows)), at]
            goes_on = chosen < NO_MERGE
            yield rows[~goes_on], tokens[~goes_on]
            rows, at, chosen = rows[goes_on], at[goes_on], chosen[goes_on]
            tokens, ranks = self._merged(tokens[goes_on], ranks[goes_on], at, self._table.joined[chosen])
        yield rows, tokens

    def _merged(
        self,
        tokens: np.ndarray,
        ranks: np.ndarray,
        at: np.ndarray,
        joined: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Merge the tokens at `at` [N] and `at` + 1 of each row; returns the tokens [N W-1] and the ranks between them.

        `ranks` [N W-1] are those before the merge, and `joined` [N] are the tokens that the merges give.
        """
        n, width = tokens.shape
        every = np.arange(n)
        tokens[every, at] = joined
        tokens = tokens[np.arange(width) != at[:, None] + 1].reshape(n, width - 1)
        ranks = ranks[np.arange(width - 1) != at[:, None]].reshape(n, width - 2)
        before, behind = at > 0, at < width - 2
        for which, left in ((before, at - 1), (behind, at)):
            row, place = every[which], left[which]
            ranks[row, place] = self._table.ranks(tokens[row, place], tokens[row, place + 1])
        return tokens, ranks
