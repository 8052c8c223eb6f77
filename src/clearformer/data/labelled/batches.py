"""The order of batches of labelled texts, and padding of rows to one array.

As with a running text (see `data/text/batches.py`), the batch of a step is a pure function of (seed, step). An epoch is
every text once. Texts of similar length share a batch, so that little of it is padding: the epoch's order is cut into
pools of some batches, each pool is sorted by length and cut into batches, and these are shuffled. If the rows are drawn
anew at every step, this order goes by their lengths as prepared.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np

from clearformer.data.labelled.preparing import LabelledSplit
from clearformer.data.text.batches import generator_at
from clearformer.errors import DataError, TokenizerError
from clearformer.text import Tokenizer, WordPieceTokenizer
from clearformer.text.match_dropout import MatchDropout

logger = logging.getLogger(__name__)

STREAM, DRAWING_STREAM = 5, 9
POOL_BATCHES = 50
LENGTH_MULTIPLE = 8  # gives fewer shapes to compile for, and sizes that suit a GPU's matrix units

TooLong = Literal["refuse", "truncate"]
Draw = Callable[[np.ndarray, np.random.Generator], np.ndarray]
"""Draws other tokens for a row."""


class LabelledBatch(NamedTuple):
    """Rows of tokens with their labels."""

    tokens: np.ndarray
    """[B T] int64"""
    padding: np.ndarray
    """[B T] bool, True where a token is real"""
    labels: np.ndarray
    """[B] int64"""


def draw_with_dropout(tokenizer: Tokenizer, probability: float) -> Draw | None:
    """Return what leaves out longest matches of WordPiece (see `text/match_dropout.py`), or None for probability 0.

    Raises:
        TokenizerError: the tokenizer is of another kind.
    """
    if not probability:
        return None
    if not isinstance(tokenizer, WordPieceTokenizer):
        raise TokenizerError(
            f"train.objective.wordpiece_dropout needs the longest matches of WordPiece, and this tokenizer is "
            f"{tokenizer.kind}: set tokenizer.kind=wordpiece, or train.objective.wordpiece_dropout=0"
        )
    return MatchDropout(tokenizer, probability).draw


class LabelledBatches:
    """Batches of one split, with every text once per epoch.

    An epoch is ceil(N / batch_size) batches over which the texts are spread evenly, so that no batch is a small rest.

    Args:
        split: The texts.
        batch_size: B, the most rows in a batch.
        max_length: T, the most tokens in a row, [CLS] and [SEP] included.
        seed: 0 or more, below 2^64.
        pad_id: The token that pads rows to the batch's longest.
        too_long: What to do with longer texts: refuse them, or truncate them to their first tokens and [SEP].
        draw: Draws a row's tokens anew at every step; a row that would be too long keeps those of the split.

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
        draw: Draw | None = None,
    ):
        self.split = split
        self.batch_size = batch_size
        self.max_length = max_length
        self.lengths = fitted_lengths(split, max_length, too_long)
        self._pad_id = pad_id
        self._seed = seed
        self._draw = draw
        # An epoch's order is kept, because the next step usually needs it again, and a batch, because each of its
        # parts asks for the whole; the caches only save time.
        self._order = lru_cache(maxsize=2)(self._order_of)
        self._batch = lru_cache(maxsize=2)(self._batch_of)

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
        return self._batch(step)

    def _batch_of(self, step: int) -> LabelledBatch:
        indices = self.indices(step)
        rows = [self.split.row(index) for index in indices.tolist()]
        if self._draw is not None:
            rng = generator_at(self._seed, DRAWING_STREAM, step)
            drawn = [self._draw(row, rng) for row in rows]
            rows = [row if len(new) > self.max_length else new for row, new in zip(rows, drawn, strict=True)]
        length = padded_length(max(map(len, rows)), self.max_length)
        return LabelledBatch(*padded(rows, length, self._pad_id), self.split.label_ids[indices])

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
