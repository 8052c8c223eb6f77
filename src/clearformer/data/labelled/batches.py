"""The order of batches of labelled texts, and padding of rows to one array.

As with a running text (see `data/text/batches.py`), the batch of a step is a pure function of (seed, step). An epoch is
every text once. Texts of similar length share a batch, so that little of it is padding: the epoch's order is cut into
pools of some batches, each pool is sorted by length and cut into batches, and these are shuffled.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np

from clearformer.data.labelled.preparing import LabelledSplit
from clearformer.data.text.batches import generator_at
from clearformer.errors import DataError

logger = logging.getLogger(__name__)

STREAM = 5
POOL_BATCHES = 50
LENGTH_MULTIPLE = 8  # gives fewer shapes to compile for, and sizes that suit a GPU's matrix units

TooLong = Literal["refuse", "truncate"]


class LabelledBatch(NamedTuple):
    """Rows of tokens with their labels."""

    tokens: np.ndarray
    """[B T] int64"""
    padding: np.ndarray
    """[B T] bool, True where a token is real"""
    labels: np.ndarray
    """[B] int64"""


class LabelledBatches:
    """Batches of one split, with every text once per epoch.

    An epoch is ceil(N / batch_size) batches over which the texts are spread evenly, so that no batch is a small rest.

    Args:
        split: the texts.
        batch_size: B, the most rows in a batch.
        max_length: T, the most tokens in a row, [CLS] and [SEP] included.
        seed: 0 or more, below 2^64.
        pad_id: the token that pads rows to the batch's longest.
        too_long: what to do with longer texts: refuse them, or truncate them to their first tokens and [SEP].

    Raises:
        DataError: a text is too long and may not be truncated.
    """

    def __init__(
        self,
        split: LabelledSplit,
        batch_size: int,
        max_length: int,
        seed: int,
        pad_id: int,
        too_long: TooLong = "refuse",
    ):
        self.split = split
        self.batch_size = batch_size
        self.max_length = max_length
        self.lengths = fitted_lengths(split, max_length, too_long)
        self._pad_id = pad_id
        self._seed = seed
        # An epoch's order is kept, because the next step usually needs it again; the cache only saves time.
        self._order = lru_cache(maxsize=2)(self._order_of)

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches in which every text occurs once."""
        return -(-len(self.split) // self.batch_size)

    def epochs(self, steps: int) -> float:
        """Return the number of passes over the split in `steps` batches."""
        return steps / self.steps_per_epoch

    def indices(self, step: int) -> np.ndarray:
        """Return the indices in the split of a step's texts, [B] int64."""
        epoch, number = divmod(step, self.steps_per_epoch)
        return self._order(epoch)[number]

    def batch(self, step: int) -> LabelledBatch:
        """Return the batch of a step."""
        indices = self.indices(step)
        length = padded_length(int(self.lengths[indices].max()), self.max_length)
        return batch_of(self.split, indices, length, self._pad_id)

    def _order_of(self, epoch: int) -> list[np.ndarray]:
        """Draw the texts of each batch of an epoch."""
        rng = generator_at(self._seed, STREAM, epoch)
        batches = np.array_split(rng.permutation(len(self.split)), self.steps_per_epoch)
        ordered: list[np.ndarray] = []
        for first in range(0, len(batches), POOL_BATCHES):
            pool = batches[first : first + POOL_BATCHES]
            texts = np.concatenate(pool)
            texts = texts[np.argsort(self.lengths[texts], kind="stable")]
            by_length = np.split(texts, np.cumsum([len(batch) for batch in pool])[:-1])
            ordered += [by_length[i] for i in rng.permutation(len(by_length))]
        return ordered


def in_length_order(
    split: LabelledSplit, batch_size: int, max_length: int, pad_id: int, too_long: TooLong = "refuse"
) -> Iterator[tuple[np.ndarray, LabelledBatch]]:
    """Yield a whole split for a trained model, each text once, the longest first.

    Each batch comes with the texts' indices in the split, [B].

    Raises:
        DataError: a text is too long and may not be truncated.
    """
    lengths = fitted_lengths(split, max_length, too_long, is_trained=True)
    order = np.argsort(-lengths, kind="stable")
    for first in range(0, len(order), batch_size):
        indices = order[first : first + batch_size]
        length = padded_length(int(lengths[indices].max()), max_length)
        yield indices, batch_of(split, indices, length, pad_id)


def check_lengths(
    splits: Iterable[LabelledSplit], max_length: int, too_long: TooLong, is_trained: bool = False
) -> None:
    """Check that the texts fit a model, and log how many of each split are truncated.

    Raises:
        DataError: a text is too long and may not be truncated; see `fitted_lengths`.
    """
    for split in splits:
        n_truncated = int((fitted_lengths(split, max_length, too_long, is_trained) < split.lengths).sum())
        if n_truncated:
            logger.warning(
                "%s of %s texts in the %s split are longer than the model's %s tokens and are truncated",
                *(f"{n_truncated:,}", f"{len(split):,}", split.name, f"{max_length:,}"),
            )


def fitted_lengths(
    split: LabelledSplit, max_length: int, too_long: TooLong, is_trained: bool = False
) -> np.ndarray:
    """Return the number of tokens that each text has after truncation to `max_length`, [N] int64.

    Raises:
        DataError: a text is too long and may not be truncated; for a model that is trained, the message names no
            settings, which could not be changed any more.
    """
    lengths = split.lengths
    longer = np.flatnonzero(lengths > max_length)
    if len(longer) and too_long == "refuse":
        first, longest = int(longer[0]), int(lengths.max())
        more = f" ({len(longer) - 1:,} more too long)" if len(longer) > 1 else ""
        settings = f"set model.max_seq_len={longest} or more, or data.too_long=truncate to cut them"
        raise DataError(
            f"{split.where(first)}: {lengths[first]:,} tokens with [CLS] and [SEP], but the model reads "
            f"{max_length:,}{more}: {'shorten it, or remove it' if is_trained else settings}"
        )
    return np.minimum(lengths, max_length)


def batch_of(split: LabelledSplit, indices: np.ndarray, length: int, pad_id: int) -> LabelledBatch:
    """Return some texts of a split as a batch with rows of `length` tokens."""
    tokens, padding = padded([split.row(index) for index in indices.tolist()], length, pad_id)
    return LabelledBatch(tokens, padding, split.label_ids[indices])


def padded(rows: Sequence[np.ndarray], length: int, pad_id: int) -> tuple[np.ndarray, np.ndarray]:
    """Pad rows to one array [B T] int64, with a mask [B T] bool that is True where a token is real.

    A row longer than T is truncated and keeps its last token, [SEP].
    """
    tokens = np.full((len(rows), length), pad_id, np.int64)
    padding = np.zeros((len(rows), length), bool)
    for number, row in enumerate(rows):
        n_kept = min(len(row), length)
        tokens[number, :n_kept] = row[:n_kept]
        tokens[number, n_kept - 1] = row[-1]
        padding[number, :n_kept] = True
    return tokens, padding


def padded_length(longest: int, max_length: int) -> int:
    """Return T for a batch: the longest row, rounded up to a multiple, but no more than the model reads."""
    return min(-(-longest // LENGTH_MULTIPLE) * LENGTH_MULTIPLE, max_length)
