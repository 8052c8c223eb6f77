"""Batches of pairs of similar length: each holds as many pairs as its tokens allow.

A batch's rows are padded to its longest, so rows of similar length waste the least. The pairs are ordered by width
(length with special tokens, rounded up to a multiple), and this order is cut into batches once. An epoch draws the
order of pairs of equal widths, and the order of the batches. Each batch thus keeps its shape from epoch to epoch while
its pairs change, and step s is batch `s mod n` of epoch `s div n`: a pure function of (seed, step), with no state to
carry from one step to the next (as in data/text/batches.py).

If every epoch reads the pairs in other tokens (`merge_dropout.py`), their widths change too, and each epoch is cut by
its own widths, into as many batches as the first.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from clearformer.data.pairs.files import PairSide, PairSplit
from clearformer.data.text.batches import ALL_ROWS, IGNORED, generator_at
from clearformer.errors import TokenizerError
from clearformer.text import Tokenizer

STREAM = 2


@dataclass(frozen=True)
class PairBatch:
    """Some pairs as a model takes them; arrays of int64, and masks that are True where a token is real.

    A target y1 ... yn is read as <bos> y1 ... yn and predicted as y1 ... yn <eos>. A tokenizer's `before_pair`, usually
    nothing, is before x1 and y1.
    """

    indices: np.ndarray
    """[B]: the indices of these pairs in the split."""
    source: np.ndarray
    """[B S]: x1 ... xm <eos>, then <pad>."""
    source_padding: np.ndarray
    """[B S]."""
    tokens: np.ndarray
    """[B T]: <bos> y1 ... yn, then <pad>."""
    targets: np.ndarray
    """[B T]: y1 ... yn <eos>, then -100."""
    padding: np.ndarray
    """[B T]."""
    n_target_tokens: int
    """Targets in the whole batch, even if this is a part of it: the divisor of a sum over all parts."""

    def __len__(self) -> int:
        return len(self.indices)


class PairRows:
    """Maker of batches from the pairs of a split, with widths rounded up to a multiple, but not beyond `max_tokens`."""

    def __init__(self, split: PairSplit, tokenizer: Tokenizer, multiple: int, max_tokens: int | None = None):
        self._split = split
        self._pad_id, self._bos_id, self._eos_id = special_ids(tokenizer)
        self._before = np.array(tokenizer.before_pair, np.int64)
        lengths = np.stack((split.source_lengths, split.target_lengths), axis=1) + len(self._before) + 1
        rounded = -(-lengths // multiple) * multiple
        self.widths = rounded if max_tokens is None else np.maximum(lengths, np.minimum(rounded, max_tokens))
        """The width of each pair's source and target, [N 2]: tokens with the special ones, rounded up."""

    def batch(self, indices: np.ndarray, rows: slice = ALL_ROWS) -> PairBatch:
        """Return some rows of the batch of these pairs, as wide as the whole batch."""
        source_width, target_width = self.widths[indices].max(axis=0).tolist()
        wanted = indices[rows]
        sources, targets = self._split.sides
        first = [self._bos_id, *self._before]
        tokens = np.empty((len(wanted), target_width), np.int64)
        tokens[:, : len(first)] = first
        tokens[:, len(first) :] = targets.padded(wanted, target_width - len(first), self._pad_id)
        return PairBatch(
            wanted,
            *self._ended(sources, wanted, source_width, self._pad_id),
            tokens,
            *self._ended(targets, wanted, target_width, IGNORED),
            self.n_target_tokens(indices),
        )

    def n_target_tokens(self, indices: np.ndarray) -> int:
        """Return the number of targets of these pairs, <eos> and what is before each included."""
        return int(self._split.target_lengths[indices].sum()) + len(indices) * (len(self._before) + 1)

    def _ended(
        self, side: PairSide, indices: np.ndarray, width: int, fill: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return rows of what is before, the tokens and <eos>, padded with `fill`, and the mask of real tokens."""
        before = self._before
        lengths = side.lengths[indices] + len(before)
        rows = np.empty((len(indices), width), np.int64)
        rows[:, : len(before)] = before
        rows[:, len(before) :] = side.padded(indices, width - len(before), fill)
        rows[np.arange(len(rows)), lengths] = self._eos_id
        return rows, np.arange(width) <= lengths[:, None]


def special_ids(tokenizer: Tokenizer) -> tuple[int, int, int]:
    """Return the ids of <pad>, <bos> and <eos>.

    Raises:
        TokenizerError: the tokenizer lacks one of them.
    """
    ids = {"<pad>": tokenizer.pad_id, "<bos>": tokenizer.bos_id, "<eos>": tokenizer.eos_id}
    if absent := [name for name, token in ids.items() if token is None]:
        raise TokenizerError(
            f"the tokenizer has no {absent[0]}, but translation needs {', '.join(ids)}: train one with them"
        )
    pad_id, bos_id, eos_id = (token for token in ids.values() if token is not None)
    return pad_id, bos_id, eos_id


@dataclass(frozen=True)
class _Cut:
    """Pairs in order of their widths, and where this order is cut into batches.

    Attributes:
        rows: The maker of batches.
        order: The pairs, by width.
        starts: Where batches start in `order`, followed by its end.
        cells: For each pair in `order`, the number of its run of equal widths.
    """

    rows: PairRows
    order: np.ndarray
    starts: np.ndarray
    cells: np.ndarray


class _Epoch(NamedTuple):
    """One epoch: its rows, its pairs in order, where this order is cut into batches, and the batches' order."""

    rows: PairRows
    pairs: np.ndarray
    starts: np.ndarray
    batches: np.ndarray


class PairBatches:
    """The batches of a split, by step.

    Args:
        split: The pairs.
        tokenizer: A tokenizer with <pad>, <bos> and <eos>.
        batch_tokens: The most rows times the longer side's width, unless one pair alone is more. With `read`, this
            holds in the first epoch and approximately in others.
        seed: 0 or more, below 2^64.
        multiple: widths are rounded up to a multiple of this. A larger one makes fewer shapes and more padding, and
            lets more pairs change places.
        read: Returns the split in the tokens of an epoch, if these change.
        max_tokens: The most tokens that the model reads: no row is padded to more.
    """

    def __init__(
        self,
        split: PairSplit,
        tokenizer: Tokenizer,
        batch_tokens: int,
        seed: int,
        multiple: int = 4,
        read: Callable[[int], PairSplit] | None = None,
        max_tokens: int | None = None,
    ):
        self.split = split
        self._seed, self._tokenizer, self._multiple, self._read = seed, tokenizer, multiple, read
        self._max_tokens = max_tokens
        self._first = self._cut(split if read is None else read(0), batch_tokens)
        self._epoch = lru_cache(maxsize=2)(self._draw_epoch)

    @property
    def batches_per_epoch(self) -> int:
        """The number of batches in one pass over the split."""
        return len(self._first.starts) - 1

    @property
    def tokens_per_epoch(self) -> int:
        """The number of targets in the first pass over the split, <eos> included."""
        return self._first.rows.n_target_tokens(self._first.order)

    def epochs(self, steps: int) -> float:
        """Return the number of passes over the split in `steps` batches."""
        return steps / self.batches_per_epoch

    def batch(self, step: int, part: int = 0, n_parts: int = 1) -> PairBatch:
        """Return the batch of a step, or rows `part`, `part + n_parts`, ... of it.

        Parts are padded to the width of the whole batch. If it has fewer rows than parts, some parts are empty.
        """
        rows, pairs = self._rows_and_pairs(step)
        return rows.batch(pairs, slice(part, None, n_parts))

    def n_target_tokens(self, step: int) -> int:
        """Return the number of targets in the batch of a step, <eos> included."""
        rows, pairs = self._rows_and_pairs(step)
        return rows.n_target_tokens(pairs)

    def pairs(self, step: int) -> np.ndarray:
        """Return the indices in the split of a step's pairs, [B] int64."""
        return self._rows_and_pairs(step)[1]

    def _rows_and_pairs(self, step: int) -> tuple[PairRows, np.ndarray]:
        number, place = divmod(step, self.batches_per_epoch)
        epoch = self._epoch(number)
        batch = epoch.batches[place]
        return epoch.rows, epoch.pairs[epoch.starts[batch] : epoch.starts[batch + 1]]

    def _draw_epoch(self, number: int) -> _Epoch:
        cut = self._cut_of(number)
        rng = generator_at(self._seed, STREAM, number)
        pairs = cut.order[np.lexsort((rng.random(len(cut.order)), cut.cells))]
        return _Epoch(cut.rows, pairs, cut.starts, rng.permutation(self.batches_per_epoch))

    def _cut_of(self, number: int) -> _Cut:
        """Return the cut of an epoch: the first one, or a new one if the tokens change."""
        if self._read is None or number == 0:
            return self._first
        return self._cut(self._read(number), n_batches=self.batches_per_epoch)

    def _cut(self, split: PairSplit, batch_tokens: int = 0, n_batches: int = 0) -> _Cut:
        """Cut the pairs of a split by the tokens of a batch, or into a number of batches."""
        rows = PairRows(split, self._tokenizer, self._multiple, self._max_tokens)
        order = _by_width(rows.widths)
        widths = rows.widths[order]
        starts = _starts_of(widths, n_batches) if n_batches else _even_starts(widths, batch_tokens)
        return _Cut(rows, order, starts, _numbered_runs(widths))


def batches_in_order(
    split: PairSplit,
    tokenizer: Tokenizer,
    batch_tokens: int,
    multiple: int = 4,
    max_tokens: int | None = None,
) -> Iterator[PairBatch]:
    """Yield batches of each pair of a split once, the shortest first; `indices` identify the pairs."""
    rows = PairRows(split, tokenizer, multiple, max_tokens)
    order = _by_width(rows.widths)
    for start, stop in pairwise(_even_starts(rows.widths[order], batch_tokens).tolist()):
        yield rows.batch(order[start:stop])


def _by_width(widths: np.ndarray) -> np.ndarray:
    """Order the pairs by the target's width, then by the source's, alternately ascending and descending.

    Neighbours are then similar on both sides, even where one target width ends and the next begins.
    """
    source, target = widths.T
    goes_down = np.unique(target, return_inverse=True)[1] % 2 == 1
    return np.lexsort((np.where(goes_down, -source, source), target))


def _numbered_runs(widths: np.ndarray) -> np.ndarray:
    """Return, for each row, the number of the run of equal rows that it is in."""
    return np.concatenate(([0], np.cumsum((widths[1:] != widths[:-1]).any(axis=1))))


def _even_starts(widths: np.ndarray, batch_tokens: int) -> np.ndarray:
    """Cut into the fewest batches, with the largest as small as possible; return their starts and the end."""
    longest = widths.max(axis=1)
    return _evened(longest, len(_starts(longest, batch_tokens)), batch_tokens)


def _starts_of(widths: np.ndarray, n_batches: int) -> np.ndarray:
    """Cut into `n_batches` batches, with the largest about as small as possible; return their starts and the end.

    There must be at least as many rows. If batches of that size are fewer, those with the most rows are cut in two.
    """
    longest = widths.max(axis=1)
    enough = 1
    while len(_starts(longest, enough)) > n_batches:
        enough *= 2
    starts = _evened(longest, n_batches, enough)
    while len(starts) - 1 < n_batches:
        sizes = np.diff(starts)
        largest = int(sizes.argmax())
        starts = np.insert(starts, largest + 1, starts[largest] + sizes[largest] // 2)
    return starts


def _evened(longest: np.ndarray, n_batches: int, enough: int) -> np.ndarray:
    """Cut into at most `n_batches` batches, the largest as small as possible; a limit of `enough` tokens suffices."""
    too_small = 0
    while enough - too_small > 1:
        middle = (too_small + enough) // 2
        if len(_starts(longest, middle)) <= n_batches:
            enough = middle
        else:
            too_small = middle
    return np.array([*_starts(longest, enough), len(longest)])


def _starts(longest: np.ndarray, batch_tokens: int) -> list[int]:
    """Fill batches in order while rows times the longest width is at most `batch_tokens`; return their starts."""
    starts, start = [], 0
    while start < len(longest):
        starts.append(start)
        most_rows = max(1, batch_tokens // int(longest[start]))
        widest = np.maximum.accumulate(longest[start : start + most_rows])
        fits = np.arange(1, len(widest) + 1) * widest <= batch_tokens
        start += max(1, int(np.count_nonzero(fits)))
    return starts
