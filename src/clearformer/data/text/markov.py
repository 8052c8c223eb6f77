"""Texts whose entropy is known: Markov chains, their probabilities counted in another text.

    p(x_t | x_(t-k) ... x_(t-1)) = count(x_(t-k) ... x_t) / count(x_(t-k) ... x_(t-1))

The other text is read as a ring, its end joined to its beginning. Then every k symbols are followed by as many as they
follow, and their frequencies are the stationary distribution of the chain, exactly (Shannon 1948, section 3).

Letters: N symbols, k the order.
"""

from bisect import bisect
from collections import Counter
from dataclasses import dataclass

import numpy as np

from clearformer.errors import DataError

REST = "*"
"""The symbol that stands for all the rarer ones."""


@dataclass(frozen=True, eq=False)
class MarkovChain:
    """A chain in which the last k symbols decide the probabilities of the next one.

    Attributes:
        order: k.
        symbols: The alphabet.
        counts: How often a symbol follows the k before it, [N^k, N]; of k symbols the first counts most.
    """

    order: int
    symbols: str
    counts: np.ndarray

    @classmethod
    def of(cls, text: str, order: int, n_symbols: int) -> "MarkovChain":
        """The chain of a text in lower case, its most frequent characters kept and all others made `REST`.

        Raises:
            DataError: the text is no longer than the order.
        """
        if len(text) <= order:
            raise DataError(
                f"a chain of order {order} is counted in a text of {order + 1} characters or more"
            )
        text = text.lower()
        kept = sorted(letter for letter, _ in Counter(text.replace(REST, "")).most_common(n_symbols - 1))
        symbols = "".join(kept) + REST
        number = {letter: i for i, letter in enumerate(kept)}
        ids = np.array([number.get(letter, n_symbols - 1) for letter in text])
        states = np.zeros_like(ids)
        for back in range(order, 0, -1):
            states = states * len(symbols) + np.roll(ids, back)
        counts = np.zeros((len(symbols) ** order, len(symbols)), dtype=np.int64)
        np.add.at(counts, (states, ids), 1)
        return cls(order, symbols, counts)

    @property
    def stationary(self) -> np.ndarray:
        """The probability of each k symbols, [N^k]."""
        return self.counts.sum(1) / self.counts.sum()

    @property
    def probabilities(self) -> np.ndarray:
        """The probability of each symbol behind each k, [N^k, N]; 0 behind those that never occur."""
        return self.counts / np.maximum(self.counts.sum(1, keepdims=True), 1)

    def sample(self, n: int, seed: int) -> str:
        """A text of n symbols, begun where the chain is stationary."""
        random = np.random.default_rng(seed)
        cumulative = self.probabilities.cumsum(1).tolist()
        size, n_states, last = len(self.symbols), len(self.counts), len(self.symbols) - 1
        state, letters = int(random.choice(n_states, p=self.stationary)), []
        for u in random.random(n).tolist():
            symbol = min(bisect(cumulative[state], u), last)  # the last sum may miss 1 by a rounding
            letters.append(self.symbols[symbol])
            state = (state * size + symbol) % n_states
        return "".join(letters)

    def surprisals(self, text: str) -> np.ndarray:
        """-log p of each symbol of a text but its first k, in nats: the loss of a model that knows the chain."""
        number = {letter: i for i, letter in enumerate(self.symbols)}
        ids = np.array([number[letter] for letter in text])
        states = np.zeros(len(ids) - self.order, dtype=np.int64)
        for back in range(self.order, 0, -1):
            states = states * len(self.symbols) + ids[self.order - back : len(ids) - back]
        with np.errstate(divide="ignore"):  # what the chain never writes costs infinitely much
            return -np.log(self.probabilities[states, ids[self.order :]])
