"""Masked language modelling: the tokens that a model has to predict, and the tokens that it reads in their place.

Devlin et al. 2019 (BERT), section 3.1: of 15% of the tokens, 80% become [MASK], 10% become a random token, and 10%
stay, so that the model does not know which positions it has to predict.
"""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np

from clearformer.data.labelled.batches import padded, padded_length
from clearformer.data.shards import Split
from clearformer.data.text.batches import IGNORED, Batches, generator_at
from clearformer.errors import DataError
from clearformer.text import Tokenizer

STREAM = 6
MASKED_SHARE, RANDOM_SHARE = 0.8, 0.1
FRACTION = 0.15


class MaskedBatch(NamedTuple):
    """Rows in which the model has to predict some tokens."""

    tokens: np.ndarray
    """[B T] int64, as the model reads them"""
    padding: np.ndarray
    """[B T] bool, True where a token is real"""
    targets: np.ndarray
    """[B T] int64, the token to predict, and `IGNORED` where there is none"""


def mask_tokens(
    tokens: np.ndarray,
    maskable: np.ndarray,
    mask_id: int,
    plain_ids: int | np.ndarray,
    rng: np.random.Generator,
    fraction: float = FRACTION,
    starts_word: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Mask tokens and return inputs and targets (`IGNORED` where nothing is predicted), each [B T] int64.

    Every token is chosen with probability `fraction`, independently of the others. If none of a row is, one token is
    chosen anyway, so short rows have a somewhat larger share chosen. Each chosen token becomes `mask_id` with
    probability 80%, a random one of `plain_ids` with 10%, and stays with 10%.

    Args:
        tokens: [B T].
        maskable: [B T] bool; True where a token may be chosen. A row without any is left as it is.
        mask_id: The id of [MASK].
        plain_ids: The ids to draw a random token from; a number n means 0 to n - 1.
        rng: The source of random numbers.
        fraction: From 0 to 1.
        starts_word: [B T] bool, True at the first token of a word. If given, whole words are chosen instead of
            single tokens, each with probability `fraction`. A token that is not maskable ends a word.
    """
    draws = rng.random(tokens.shape)
    if starts_word is not None:
        draws = np.take_along_axis(draws, _first_of_word(maskable, starts_word), axis=1)
    draws = np.where(maskable, draws, np.inf)
    least = draws.min(axis=1, keepdims=True, initial=np.inf)
    chosen = maskable & ((draws < fraction) | (draws == least))
    fates = rng.random(tokens.shape)
    inputs = np.where(chosen & (fates < MASKED_SHARE), mask_id, tokens)
    replaced = chosen & (fates >= MASKED_SHARE) & (fates < MASKED_SHARE + RANDOM_SHARE)
    inputs[replaced] = rng.choice(plain_ids, size=int(replaced.sum()))
    return inputs, np.where(chosen, tokens, IGNORED)


def hide_tokens(
    tokens: np.ndarray, may_hide: np.ndarray, mask_id: int, fraction: float, rng: np.random.Generator
) -> np.ndarray:
    """Replace each token [B T] by `mask_id` with probability `fraction`; there are no targets.

    Args:
        tokens: [B T].
        may_hide: [B T] bool, True where a token may be replaced.
        mask_id: The id of [MASK].
        fraction: From 0 to 1.
        rng: The source of random numbers.
    """
    return np.where(may_hide & (rng.random(tokens.shape) < fraction), mask_id, tokens)


def _first_of_word(maskable: np.ndarray, starts_word: np.ndarray) -> np.ndarray:
    """For each token, return the position in its row of its word's first token, [B T]."""
    behind_gap = np.ones_like(maskable)
    behind_gap[:, 1:] = ~maskable[:, :-1]
    starts = starts_word | behind_gap | ~maskable
    return np.maximum.accumulate(np.where(starts, np.arange(maskable.shape[1]), 0), axis=1)


class Masking:
    """Masking of an encoder's rows: `masking(tokens, padding, place)`.

    A pure function of the rows, the seed and the place (a step, or the number of a batch in an evaluation). Special
    tokens and padding are never chosen.

    Args:
        tokenizer: The tokenizer of the tokens; it must have a [MASK].
        seed: 0 or more, below 2^64.
        fraction: The share of the tokens, or words, to predict.
        whole_word: Whether to choose whole words.
    """

    def __init__(self, tokenizer: Tokenizer, seed: int, fraction: float = FRACTION, whole_word: bool = False):
        assert tokenizer.mask_id is not None
        self._mask_id = tokenizer.mask_id
        self._is_plain = tokenizer.is_plain
        self._plain_ids = np.flatnonzero(self._is_plain)
        self._tokenizer = tokenizer
        self._seed, self._fraction, self._whole_word = seed, fraction, whole_word

    def __call__(self, tokens: np.ndarray, padding: np.ndarray, place: int) -> MaskedBatch:
        starts_word = (
            self._tokenizer.starts_word(tokens.ravel()).reshape(tokens.shape) if self._whole_word else None
        )
        inputs, targets = mask_tokens(
            tokens,
            padding & self._is_plain[tokens],
            self._mask_id,
            self._plain_ids,
            generator_at(self._seed, STREAM, place),
            self._fraction,
            starts_word,
        )
        return MaskedBatch(inputs, padding, targets)


class Rows(NamedTuple):
    """Rows of tokens."""

    tokens: np.ndarray
    """[B T] int64"""
    padding: np.ndarray
    """[B T] bool, True where a token is real"""


class TextWindows:
    """A running text's tokens as an encoder reads them: [CLS], a stretch of the text, [SEP].

    Args:
        split: The tokens.
        order: The order of the stretches, as in `Batches`.
        batch_size: B.
        max_length: T, [CLS] and [SEP] included.
        seed: 0 or more, below 2^64.
        tokenizer: The tokenizer of the tokens.

    Raises:
        DataError: the split is shorter than one row.
    """

    def __init__(
        self,
        split: Split,
        order: Literal["random", "epochs"],
        batch_size: int,
        max_length: int,
        seed: int,
        tokenizer: Tokenizer,
    ):
        self.split = split
        self.batch_size = batch_size
        self.max_length = max_length
        self._tokenizer = tokenizer
        if len(split) < max_length - 1:
            fix = f"set model.max_seq_len={len(split) + 1} or less, or " if len(split) > 1 else ""
            raise DataError(
                f"the {split.name} split has {len(split)} tokens, but model.max_seq_len={max_length} needs "
                f"{max_length - 1} (between a row's first and last token, and one more): {fix}give a longer text"
            )
        self._batches = Batches(split, order, batch_size, max_length - 2, seed)

    def epochs(self, steps: int) -> float:
        """Return the number of passes over the split in `steps` batches."""
        return self._batches.epochs(steps)

    def starts(self, step: int) -> np.ndarray:
        """Return the position in the split of each row's first token, [B] int64."""
        return self._batches.starts(step)

    def batch(self, step: int) -> Rows:
        """Return the batch of a step."""
        stretches, _ = self._batches.batch(step)
        return _wrapped(list(stretches), self.max_length, self._tokenizer)


def windows_in_order(split: Split, batch_size: int, max_length: int, tokenizer: Tokenizer) -> Iterator[Rows]:
    """Yield batches of a whole text as an encoder reads it, each token once; the text may be of any length."""
    n_content = max_length - 2
    starts = range(0, len(split), n_content)
    for first in range(0, len(starts), batch_size):
        stretches = [
            split.read(start, min(start + n_content, len(split))) for start in starts[first:][:batch_size]
        ]
        yield _wrapped(stretches, max_length, tokenizer)


def _wrapped(stretches: Sequence[np.ndarray], max_length: int, tokenizer: Tokenizer) -> Rows:
    """Put each stretch between [CLS] and [SEP], and pad the rows."""
    assert tokenizer.bos_id is not None
    assert tokenizer.eos_id is not None
    assert tokenizer.pad_id is not None
    rows = [np.concatenate(([tokenizer.bos_id], stretch, [tokenizer.eos_id])) for stretch in stretches]
    length = padded_length(max(map(len, rows), default=1), max_length)
    return Rows(*padded(rows, length, tokenizer.pad_id))
