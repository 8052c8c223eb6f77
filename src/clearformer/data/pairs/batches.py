"""Batches of pairs of about one length: each holds as many pairs as its tokens allow.

A batch's rows are filled up to its longest, so rows of like length waste the least. The pairs lie in order of their
widths (their lengths, special tokens included, rounded up to a multiple), and this order is cut into batches once.
An epoch draws which of the pairs of equal widths stand where, and the order of the batches. So each batch keeps
its shape from epoch to epoch while its pairs change, and step s is batch `s mod n` of epoch `s div n`: a pure
function of (seed, step), with nothing to carry from one step to the next (as in data/text/batches.py).

Where every epoch reads the pairs in other tokens (`merge_dropout.py`), their widths are others too, and each epoch is
cut by its own, into as many batches as the first.
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
NOTHING = np.empty(0, np.int64)


@dataclass(frozen=True)
class PairBatch:
    """Some pairs as a model takes them; arrays of int64, and masks that are True where a token is real.

    A target y1 ... yn is read as <bos> y1 ... yn and predicted as y1 ... yn <eos>.
    """

    indices: np.ndarray
    """[B]: which pairs of the split these are."""
    source: np.ndarray
    """[B S]: x1 ... xm <eos>, then <pad>; before x1 what the tokeniser has to stand there, mostly nothing."""
    source_padding: np.ndarray
    """[B S]."""
    tokens: np.ndarray
    """[B T]: <bos> y1 ... yn, then <pad>."""
    targets: np.ndarray
    """[B T]: y1 ... yn <eos>, then -100."""
    padding: np.ndarray
    """[B T]."""
    n_target_tokens: int
    """Targets in the whole batch that this is or is a part of: what a sum over its parts is divided by."""

    def __len__(self) -> int:
        return len(self.indices)


class PairRows:
    """Makes batches of pairs of a split, their widths rounded up to a multiple."""

    def __init__(self, split: PairSplit, tokenizer: Tokenizer, multiple: int):
        self._split = split
        self._pad_id, self._bos_id, self._eos_id = special_ids(tokenizer)
        self._before = np.array(tokenizer.before_source, np.int64)
        lengths = np.stack((split.source_lengths + len(self._before), split.target_lengths), axis=1) + 1
        self.widths = -(-lengths // multiple) * multiple
        """For each pair, the tokens of its source and of its target with the special one, rounded up, [N 2]."""

    def batch(self, indices: np.ndarray, rows: slice = ALL_ROWS) -> PairBatch:
        """Some rows of a batch of these pairs, as wide as the whole batch."""
        source_width, target_width = self.widths[indices].max(axis=0).tolist()
        wanted = indices[rows]
        sources, targets = self._split.sides
        tokens = np.full((len(wanted), target_width), self._bos_id, np.int64)
        tokens[:, 1:] = targets.padded(wanted, target_width - 1, self._pad_id)
        return PairBatch(
            wanted,
            *self._ended(sources, wanted, source_width, self._pad_id, self._before),
            tokens,
            *self._ended(targets, wanted, target_width, IGNORED),
            self.n_target_tokens(indices),
        )

    def n_target_tokens(self, indices: np.ndarray) -> int:
        """Targets of these pairs, <eos> included."""
        return int(self._split.target_lengths[indices].sum()) + len(indices)

    def _ended(
        self, side: PairSide, indices: np.ndarray, width: int, fill: int, before: np.ndarray = NOTHING
    ) -> tuple[np.ndarray, np.ndarray]:
        """Rows with <eos> after their tokens and what stands before them, and where they are real."""
        lengths = side.lengths[indices] + len(before)
        rows = np.empty((len(indices), width), np.int64)
        rows[:, : len(before)] = before
        rows[:, len(before) :] = side.padded(indices, width - len(before), fill)
        rows[np.arange(len(rows)), lengths] = self._eos_id
        return rows, np.arange(width) <= lengths[:, None]


def special_ids(tokenizer: Tokenizer) -> tuple[int, int, int]:
    """The ids of <pad>, <bos> and <eos>.

    Raises:
        TokenizerError: the tokenizer lacks one of them.
    """
    ids = {"<pad>": tokenizer.pad_id, "<bos>": tokenizer.bos_id, "<eos>": tokenizer.eos_id}
    if absent := [name for name, token in ids.items() if token is None]:
        raise TokenizerError(
            f"the tokenizer has no {absent[0]}, and translating needs {', '.join(ids)}: train one with them"
        )
    pad_id, bos_id, eos_id = (token for token in ids.values() if token is not None)
    return pad_id, bos_id, eos_id


@dataclass(frozen=True)
class _Cut:
    """Pairs in order of their widths, and where this order is cut into batches.

    Attributes:
        rows: Makes a batch of some of the pairs.
        order: The pairs, by width.
        starts: Where batches start in it, and after them its end.
        cells: For each place in it, the number of the run of equal widths that it is in.
    """

    rows: PairRows
    order: np.ndarray
    starts: np.ndarray
    cells: np.ndarray


class _Epoch(NamedTuple):
    """The rows of an epoch, its pairs in the order that is cut into batches, where, and the order of the batches."""

    rows: PairRows
    pairs: np.ndarray
    starts: np.ndarray
    batches: np.ndarray


class PairBatches:
    """The batches of a split, by step.

    Args:
        split: where the pairs are.
        tokenizer: with <pad>, <bos> and <eos>.
        batch_tokens: rows times the longer side's width is at most this, unless one pair alone is more; of pairs that
            are read anew in the first epoch, and about so in others.
        seed: 0 or more, below 2^64.
        multiple: widths are rounded up to one of it. A larger one makes fewer shapes and more padding, and lets more
            pairs change places.
        read: the same pairs in the tokens in which an epoch reads them, where these change.
    """

    def __init__(
        self,
        split: PairSplit,
        tokenizer: Tokenizer,
        batch_tokens: int,
        seed: int,
        multiple: int = 4,
        read: Callable[[int], PairSplit] | None = None,
    ):
        self.split = split
        self._seed, self._tokenizer, self._multiple, self._read = seed, tokenizer, multiple, read
        self._first = self._cut(split if read is None else read(0), batch_tokens)
        self._epoch = lru_cache(maxsize=2)(self._draw_epoch)

    @property
    def batches_per_epoch(self) -> int:
        """Batches in one pass over the split."""
        return len(self._first.starts) - 1

    @property
    def tokens_per_epoch(self) -> int:
        """Targets in one pass over the split, the first one, <eos> included."""
        return self._first.rows.n_target_tokens(self._first.order)

    def epochs(self, steps: int) -> float:
        """How many times over the split `steps` batches are."""
        return steps / self.batches_per_epoch

    def batch(self, step: int, part: int = 0, n_parts: int = 1) -> PairBatch:
        """The batch of a step, or rows `part`, `part + n_parts`, ... of it.

        The parts are filled up to the width of the whole batch. Where it has fewer rows than parts, some have none.
        """
        rows, pairs = self._rows_and_pairs(step)
        return rows.batch(pairs, slice(part, None, n_parts))

    def n_target_tokens(self, step: int) -> int:
        """Targets in the batch of a step, <eos> included."""
        rows, pairs = self._rows_and_pairs(step)
        return rows.n_target_tokens(pairs)

    def pairs(self, step: int) -> np.ndarray:
        """Which pairs of the split a step's rows are, [B] int64."""
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
        """How the pairs are cut in an epoch."""
        if self._read is None or number == 0:
            return self._first
        return self._cut(self._read(number), n_batches=self.batches_per_epoch)

    def _cut(self, split: PairSplit, batch_tokens: int = 0, n_batches: int = 0) -> _Cut:
        """The pairs of a split, cut by the tokens of a batch or into a number of batches."""
        rows = PairRows(split, self._tokenizer, self._multiple)
        order = _by_width(rows.widths)
        widths = rows.widths[order]
        starts = _starts_of(widths, n_batches) if n_batches else _even_starts(widths, batch_tokens)
        return _Cut(rows, order, starts, _numbered_runs(widths))


def batches_in_order(
    split: PairSplit, tokenizer: Tokenizer, batch_tokens: int, multiple: int = 4
) -> Iterator[PairBatch]:
    """Each pair of a split once, the shortest first; `indices` say which they are."""
    rows = PairRows(split, tokenizer, multiple)
    order = _by_width(rows.widths)
    for start, stop in pairwise(_even_starts(rows.widths[order], batch_tokens).tolist()):
        yield rows.batch(order[start:stop])


def _by_width(widths: np.ndarray) -> np.ndarray:
    """The pairs in order of the target's width, then the source's, which goes up and down in turn.

    So neighbours are alike on both sides, also where one target width ends and the next begins.
    """
    source, target = widths.T
    goes_down = np.unique(target, return_inverse=True)[1] % 2 == 1
    return np.lexsort((np.where(goes_down, -source, source), target))


def _numbered_runs(widths: np.ndarray) -> np.ndarray:
    """For each row, the number of the run of equal rows that it is in."""
    return np.concatenate(([0], np.cumsum((widths[1:] != widths[:-1]).any(axis=1))))


def _even_starts(widths: np.ndarray, batch_tokens: int) -> np.ndarray:
    """Where batches start, and after them the end: the fewest there can be, with the largest as small as can be."""
    longest = widths.max(axis=1)
    return _evened(longest, len(_starts(longest, batch_tokens)), batch_tokens)


def _starts_of(widths: np.ndarray, n_batches: int) -> np.ndarray:
    """Where so many batches start, and after them the end, the largest being about as small as can be.

    There must be as many rows. Where batches that small are fewer, those of the most rows are cut in two.
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
    """The starts of at most so many batches and the end, the largest being as small as can be; `enough` suffices."""
    too_small = 0
    while enough - too_small > 1:
        middle = (too_small + enough) // 2
        if len(_starts(longest, middle)) <= n_batches:
            enough = middle
        else:
            too_small = middle
    return np.array([*_starts(longest, enough), len(longest)])


def _starts(longest: np.ndarray, batch_tokens: int) -> list[int]:
    """Where batches start that are each filled while rows times the longest is at most `batch_tokens`."""
    starts, start = [], 0
    while start < len(longest):
        starts.append(start)
        most_rows = max(1, batch_tokens // int(longest[start]))
        widest = np.maximum.accumulate(longest[start : start + most_rows])
        fits = np.arange(1, len(widest) + 1) * widest <= batch_tokens
        start += max(1, int(np.count_nonzero(fits)))
    return starts
