"""Texts with a known entropy: Markov chains with probabilities counted in another text.

    p(x_t | x_(t-k) ... x_(t-1)) = count(x_(t-k) ... x_t) / count(x_(t-k) ... x_(t-1))

The other text is read as a ring, its end joined to its beginning. Every k symbols are then followed by a symbol as
often as preceded by one: their frequencies are exactly the chain's stationary distribution (Shannon 1948, section 3).

Letters: N symbols, k the order.
"""

from bisect import bisect
from collections import Counter
from dataclasses import dataclass

import numpy as np

from clearformer.errors import DataError

REST = "*"
"""The symbol that replaces all rarer characters."""


@dataclass(frozen=True, eq=False)
class MarkovChain:
    """A chain in which the last k symbols decide the probabilities of the next one.

    Attributes:
        order: k.
        symbols: The alphabet.
        counts: How often each symbol follows each k symbols, [N^k, N]; a row's number is the k symbols in base N.
    """

    order: int
    symbols: str
    counts: np.ndarray

    @classmethod
    def of(cls, text: str, order: int, n_symbols: int) -> "MarkovChain":
        """Count the chain of a text in lower case, with all but the most frequent characters replaced by `REST`.

        Raises:
            DataError: the text is no longer than the order.
        """
        if len(text) <= order:
            raise DataError(f"a chain of order {order} needs a text of at least {order + 1} characters")
        text = text.lower()
        kept = sorted(letter for letter, _ in Counter(text.replace(REST, "")).most_common(n_symbols - 1))
        symbols = "".join(kept) + REST
        number = {letter: i for i, letter in enumerate(kept)}
        ids = np.array([number.get(letter, len(kept)) for letter in text])
        states = np.zeros_like(ids)
        for back in range(order, 0, -1):
            states = states * len(symbols) + np.roll(ids, back)
        counts = np.zeros((len(symbols) ** order, len(symbols)), dtype=np.int64)
        np.add.at(counts, (states, ids), 1)
        return cls(order, symbols, counts)

    @property
    def stationary(self) -> np.ndarray:
        """The probability of each sequence of k symbols, [N^k]."""
        return self.counts.sum(1) / self.counts.sum()

    @property
    def probabilities(self) -> np.ndarray:
        """The probability of each symbol after each k symbols, [N^k, N]; 0 after those that never occur."""
        return self.counts / np.maximum(self.counts.sum(1, keepdims=True), 1)

    def sample(self, n: int, seed: int) -> str:
        """Draw a text of n symbols; the initial state comes from the stationary distribution."""
        random = np.random.default_rng(seed)
        cumulative = self.probabilities.cumsum(1).tolist()
        size, n_states, last = len(self.symbols), len(self.counts), len(self.symbols) - 1
        state, letters = int(random.choice(n_states, p=self.stationary)), []
        for u in random.random(n).tolist():
            symbol = min(bisect(cumulative[state], u), last)  # rounding may leave the last sum below 1
            letters.append(self.symbols[symbol])
            state = (state * size + symbol) % n_states
        return "".join(letters)

    def surprisals(self, text: str) -> np.ndarray:
        """Return -log p of each symbol after the first k, in nats: the loss of a model that knows the chain."""
        number = {letter: i for i, letter in enumerate(self.symbols)}
        ids = np.array([number[letter] for letter in text])
        states = np.zeros(len(ids) - self.order, dtype=np.int64)
        for back in range(self.order, 0, -1):
            states = states * len(self.symbols) + ids[self.order - back : len(ids) - back]
        with np.errstate(divide="ignore"):  # a symbol of probability 0 has infinite loss
            return -np.log(self.probabilities[states, ids[self.order :]])
