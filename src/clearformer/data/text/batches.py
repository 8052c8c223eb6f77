"""The order of batches: which window of a split is row r of the batch of step s.

Both orders are pure functions of (seed, step, row). No state is carried from one step to the next, so a resumed run
needs no state of its data, and several processes that each take some rows of a batch together get exactly the batch
that one process would. Random numbers come from Philox, a generator that computes its n-th block of numbers from a key
and n alone: the key is the seed, and n is counted from the step (or the epoch).
"""

from functools import lru_cache
from typing import Literal

import numpy as np

from clearformer.data.shards import Split
from clearformer.errors import DataError

ALL_ROWS = slice(None)
# Steps. Drawn one at a time, with the processor's caches full of training data, each takes 0.2 ms.
DRAWN_AT_ONCE = 64
IGNORED = -100  # a target that does not count, as in torch's cross-entropy: padding, or an unmasked token


class RandomCrops:
    """Rows that start at any of the n - T positions, uniformly, as in the lectures (lecture 000)."""

    stream = 0

    def __init__(self, n_tokens: int, batch_size: int, seq_len: int, seed: int):
        self._n_places = n_tokens - seq_len
        self._batch_size = batch_size
        self._seed = seed
        self._drawn = lru_cache(maxsize=2)(self._draw)  # the cache only saves time

    def starts(self, step: int) -> np.ndarray:
        """Return the position of each row's first token in a step, [B] int64."""
        return self._drawn(step // DRAWN_AT_ONCE)[step % DRAWN_AT_ONCE]

    def _draw(self, place: int) -> list[np.ndarray]:
        steps = range(place * DRAWN_AT_ONCE, (place + 1) * DRAWN_AT_ONCE)
        generators = (generator_at(self._seed, self.stream, step) for step in steps)
        return [generator.integers(self._n_places, size=self._batch_size) for generator in generators]


class ShuffledWindows:
    """Windows that start T tokens apart; an epoch is each window once, in an order of its own.

    Row r of step s is number sB + r in the sequence of all epochs, so a batch may extend into the next epoch. A rest of
    fewer than T tokens at the end of the text is in no window.
    """

    stream = 1

    def __init__(self, n_tokens: int, batch_size: int, seq_len: int, seed: int):
        self._n_windows = (n_tokens - 1) // seq_len
        self._batch_size = batch_size
        self._seq_len = seq_len
        self._seed = seed
        # Two epochs are kept, because a batch can lie in both; the cache only saves time.
        self._shuffled = lru_cache(maxsize=2)(self._shuffle)

    def starts(self, step: int) -> np.ndarray:
        """Return the position of each row's first token in a step, [B] int64."""
        first = step * self._batch_size
        epochs, places = np.divmod(np.arange(first, first + self._batch_size), self._n_windows)
        windows = np.empty(self._batch_size, np.int64)
        for epoch in np.unique(epochs):
            rows = epochs == epoch
            windows[rows] = self._shuffled(int(epoch))[places[rows]]
        return windows * self._seq_len

    def _shuffle(self, epoch: int) -> np.ndarray:
        windows = np.arange(self._n_windows, dtype=np.uint32)
        return generator_at(self._seed, self.stream, epoch).permutation(windows)


ORDERS = {"random": RandomCrops, "epochs": ShuffledWindows}


class Batches:
    """Batches of one split in one order.

    Args:
        split: The tokens.
        order: `random` (`RandomCrops`) or `epochs` (`ShuffledWindows`).
        batch_size: B, rows in a whole batch.
        seq_len: T, input tokens in a row.
        seed: 0 or more, below 2^64.

    Raises:
        DataError: the split is shorter than one row and its last target.
    """

    def __init__(
        self, split: Split, order: Literal["random", "epochs"], batch_size: int, seq_len: int, seed: int
    ):
        if len(split) < seq_len + 1:
            fix = f"set model.max_seq_len={len(split) - 1} or less" if len(split) > 1 else ""
            raise DataError(
                f"the {split.name} split has {len(split)} tokens, but model.max_seq_len={seq_len} needs "
                f"{seq_len + 1} (the last is a target only): {fix}{', or ' if fix else ''}give a longer text"
            )
        self.split = split
        self.batch_size = batch_size
        self.seq_len = seq_len
        self._order = ORDERS[order](len(split), batch_size, seq_len, seed)

    @property
    def tokens_per_epoch(self) -> int:
        """The number of targets in one pass over the split in windows of `seq_len`."""
        return (len(self.split) - 1) // self.seq_len * self.seq_len

    def epochs(self, steps: int) -> float:
        """Return the number of passes over the split in `steps` batches, counted in targets."""
        return steps * self.batch_size * self.seq_len / self.tokens_per_epoch

    def starts(self, step: int) -> np.ndarray:
        """Return the position of each row's first token in a step, [B] int64."""
        return self._order.starts(step)

    def batch(self, step: int, rows: slice = ALL_ROWS) -> tuple[np.ndarray, np.ndarray]:
        """Return the inputs and targets of a step, each [B T] int64; each target is the token after its input.

        Args:
            step: 0 or more.
            rows: The rows of the whole batch to return.
        """
        starts = self.starts(step)[rows]
        windows = self.split.windows(starts, self.seq_len + 1)
        return np.ascontiguousarray(windows[:, :-1]), np.ascontiguousarray(windows[:, 1:])


def generator_at(seed: int, stream: int, place: int) -> np.random.Generator:
    """Return a generator whose numbers depend on these three alone; each place has 2^64 blocks of its own."""
    return np.random.Generator(np.random.Philox(key=seed + (stream << 64), counter=place << 64))
