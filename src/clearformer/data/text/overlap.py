"""The share of a held-out text that training has word for word.

A loss on such text says how well a model has learned by heart, not what it has understood. Repeated licences, quoted
answers and files that stand twice bring it about (Lee et al. 2022; Brown et al. 2020, appendix C).

Shapes: N tokens, W windows of `width` tokens each; hashes are uint64.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from clearformer.data.shards import Split

USUAL_CHARS = 64  # about twelve words: shorter stretches are common property
MOST_TOKENS = 1 << 23  # of the held-out text that are looked for, as their hashes stay in memory
STRETCH = 1 << 16  # tokens read in a row of a longer one
READ_AT_ONCE = 1 << 18
TABLE_BITS = 26
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


class Overlap(NamedTuple):
    """How much of a held-out split is in training.

    Attributes:
        share: The fraction of its tokens inside stretches of `width` or more tokens that training has too.
        width: The shortest stretch that counts, in tokens.
        n_tokens: The number of tokens that were looked for: all, or evenly spread ones of a large split.
    """

    share: float
    width: int
    n_tokens: int


def usual_width(split: Split) -> int:
    """Return the power of two of tokens that hold about `USUAL_CHARS` characters."""
    return 2 ** max(0, round(math.log2(USUAL_CHARS * max(1, len(split)) / max(1, split.n_chars))))


def overlap(held_out: Split, train: Split, width: int) -> Overlap:
    """Return how much of a held-out split stands in the training split, in stretches of `width` tokens or more.

    Args:
        held_out: The held-out split.
        train: The training split.
        width: A power of two.
    """
    pieces = [(len(tokens), window_hashes(tokens, width)) for tokens in _pieces(held_out, MOST_TOKENS)]
    hashes = np.concatenate([of_piece for _, of_piece in pieces])
    order = np.argsort(hashes)
    wanted = hashes[order]
    seen = np.empty(len(hashes), bool)
    seen[order] = _known(wanted, train, width)[np.searchsorted(wanted, wanted)]
    parts = np.split(seen, np.cumsum([len(of_piece) for _, of_piece in pieces])[:-1])
    n_tokens = sum(n for n, _ in pieces)
    return Overlap(sum(n_covered(part, width) for part in parts) / max(1, n_tokens), width, n_tokens)


def window_hashes(tokens: np.ndarray, width: int) -> np.ndarray:
    """Return a hash, [W], of every window of `width` tokens, a power of two, among tokens [N]."""
    hashes = _mixed(tokens.astype(np.uint64))
    size = 1
    while size < width and len(hashes) > size:  # the hash of 2n tokens is made of those of its two halves
        hashes = _mixed(hashes[:-size] * MULTIPLIER + hashes[size:])
        size *= 2
    return hashes if size == width else np.empty(0, np.uint64)


def _mixed(hashes: np.ndarray) -> np.ndarray:
    hashes = (hashes + np.uint64(1)) * MULTIPLIER
    return hashes ^ (hashes >> np.uint64(29))


def _pieces(split: Split, most: int) -> Iterator[np.ndarray]:
    """Yield all tokens of a split, or evenly spread stretches of one with more than `most`."""
    if len(split) <= most:
        yield split.read(0, len(split))
        return
    for start in np.linspace(0, len(split) - STRETCH, most // STRETCH).astype(int).tolist():
        yield split.read(start, start + STRETCH)


def _known(wanted: np.ndarray, train: Split, width: int) -> np.ndarray:
    """Return which of the sorted hashes [W] are those of windows of the training split, [W] bool.

    Of equal ones only the first is marked.
    """
    known = np.zeros(len(wanted), bool)
    if not len(wanted):
        return known
    shift = np.uint64(64 - TABLE_BITS)
    may_be_known = np.zeros(1 << TABLE_BITS, bool)  # rules out most of a text without a search
    may_be_known[wanted >> shift] = True
    for start in range(0, len(train) - width + 1, READ_AT_ONCE):
        hashes = window_hashes(train.read(start, min(len(train), start + READ_AT_ONCE + width - 1)), width)
        hashes = np.sort(
            hashes[may_be_known[hashes >> shift]]
        )  # in order, their searches go to memory nearby
        places = np.minimum(np.searchsorted(wanted, hashes), len(wanted) - 1)
        known[places[wanted[places] == hashes]] = True
    return known


def n_covered(seen: np.ndarray, width: int) -> int:
    """Return how many tokens lie in at least one of the windows that are seen, [W] bool."""
    steps = np.zeros(len(seen) + width, np.int64)
    steps[: len(seen)] += seen
    steps[width:] -= seen
    return int((np.cumsum(steps) > 0).sum())
