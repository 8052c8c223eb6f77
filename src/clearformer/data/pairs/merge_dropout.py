"""Pairs tokenized anew in every epoch: BPE with merges left out at random (see `text/merge_dropout.py`)."""

from functools import lru_cache

import numpy as np

from clearformer.data.pairs.files import PairSide, PairSplit
from clearformer.data.text.batches import generator_at
from clearformer.errors import TokenizerError
from clearformer.text import BPETokenizer, Tokenizer
from clearformer.text.merge_dropout import MergeDropout

STREAM = 7
SIDES = 2


class ReadAnew:
    """A split with merges left out, drawn anew for each epoch and each side: a pure function of (seed, epoch).

    Args:
        split: The split as prepared, with all merges applied.
        tokenizer: The tokenizer that it was prepared with.
        probability: The probability that a merge is left out.
        seed: 0 or more, below 2^64.
        max_tokens: The most tokens of a side without special ones; a row that would be longer gets all merges.

    Raises:
        TokenizerError: the tokenizer has no merges.
    """

    def __init__(
        self, split: PairSplit, tokenizer: Tokenizer, probability: float, seed: int, max_tokens: int
    ) -> None:
        if not isinstance(tokenizer, BPETokenizer):
            raise TokenizerError(
                f"train.objective.bpe_dropout needs the merges of a BPE tokenizer, and this one is {tokenizer.kind}: "
                "set tokenizer.kind=bpe, or train.objective.bpe_dropout=0"
            )
        self._split, self._seed, self._max_tokens = split, seed, max_tokens
        self._texts = [MergeDropout(tokenizer, side.texts, probability) for side in split.sides]
        self._read = lru_cache(maxsize=2)(self._read_anew)

    def __call__(self, epoch: int) -> PairSplit:
        """Return the split in the tokens of an epoch."""
        return self._read(epoch)

    def _read_anew(self, epoch: int) -> PairSplit:
        source, target = (self._side(number, epoch) for number in range(SIDES))
        return PairSplit(self._split.name, (source, target), self._split.lines, self._split.place_of_line)

    def _side(self, number: int, epoch: int) -> PairSide:
        side = self._split.sides[number]
        tokens, ends = self._texts[number].draw(generator_at(self._seed, STREAM, SIDES * epoch + number))
        too_long = np.flatnonzero(np.diff(ends, prepend=0) > self._max_tokens)
        if len(too_long):
            tokens, ends = _with_rows(tokens, ends, {int(row): side.row(int(row)) for row in too_long})
        return PairSide(tokens, ends, lambda: side.texts)


def _with_rows(
    tokens: np.ndarray, ends: np.ndarray, rows: dict[int, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Replace some rows among concatenated rows of tokens; return the tokens and where each row ends."""
    parts = np.split(tokens, ends[:-1])
    parts = [rows.get(number, part) for number, part in enumerate(parts)]
    return np.concatenate(parts), np.cumsum([len(part) for part in parts])
