"""Which pairs are held out, so that no sentence of a held-out pair is in a training pair.

The end of a file is not like the rest of it where the file is sorted (many are, by length), and pairs drawn one by
one leave twins behind: one sentence often stands in a file several times, with other translations. So pairs that
share a sentence, on either side, belong together: whole groups are drawn, in an order that chance decides once and
for all. No seed of a run changes it, so that runs that differ in their seed are measured on the same pairs.
"""

from collections.abc import Hashable, Mapping, Sequence
from fractions import Fraction
from math import floor
from typing import Protocol, TypeVar

import numpy as np

from clearformer.data.batches import generator_at
from clearformer.errors import DataError

SEED, STREAM = 0, 4


class TwoSided(Protocol):
    """A pair of texts."""

    @property
    def source(self) -> str: ...
    @property
    def target(self) -> str: ...


PairT = TypeVar("PairT", bound=TwoSided)


def hold_out(pairs: Sequence[PairT], shares: Mapping[str, Fraction]) -> dict[str, list[PairT]]:
    """The pairs as splits, each in the order of `pairs`: train, and for each share floor(n share) of them.

    Groups of pairs that share a sentence are drawn in a random order; one that is larger than what a split still
    lacks stays in training.

    Raises:
        DataError: a split would be empty, or could not be filled without parting such a group.
    """
    wanted = {name: floor(len(pairs) * share) for name, share in shares.items()}
    for name, n_wanted in wanted.items():
        if n_wanted == 0:
            raise DataError(
                f"the {name} split would be empty: data.{name}_fraction={float(shares[name])} of "
                f"{len(pairs):,} pairs is none; give more pairs, or another fraction (0 for no such split)"
            )
    split_of = _drawn(_groups(pairs), wanted)
    splits: dict[str, list[PairT]] = {"train": [], **{name: [] for name in shares}}
    for pair, name in zip(pairs, split_of, strict=True):
        splits[name].append(pair)
    for name, n_wanted in wanted.items():
        if len(splits[name]) < n_wanted:
            raise DataError(
                f"the {name} split lacks {n_wanted - len(splits[name]):,} of {n_wanted:,} pairs: too many share a "
                f"sentence with each other; set a smaller data.{name}_fraction, or give files of their own for it"
            )
    if not splits["train"]:
        raise DataError(f"the train split would be empty: {len(pairs):,} pairs are too few to hold some out")
    return splits


def _drawn(group_of: np.ndarray, wanted: Mapping[str, int]) -> list[str]:
    """The split of each pair, given its group."""
    sizes = np.bincount(group_of)
    split_of_group = dict.fromkeys(range(len(sizes)), "train")
    order = iter(generator_at(SEED, STREAM, 0).permutation(len(sizes)).tolist())
    for name, lacking in wanted.items():
        for group in order:
            if sizes[group] <= lacking:
                split_of_group[group] = name
                lacking -= int(sizes[group])
            if lacking == 0:
                break
    return [split_of_group[group] for group in group_of.tolist()]


def _groups(pairs: Sequence[TwoSided]) -> np.ndarray:
    """For each pair the number of its group, counted from 0 in the order of their first pairs."""
    leader = list(range(len(pairs)))

    def find(pair: int) -> int:
        while leader[pair] != pair:
            leader[pair] = leader[leader[pair]]
            pair = leader[pair]
        return pair

    first_with: dict[Hashable, int] = {}
    for number, pair in enumerate(pairs):
        for sentence in ((0, pair.source), (1, pair.target)):
            a, b = find(number), find(first_with.setdefault(sentence, number))
            leader[max(a, b)] = min(a, b)
    _, numbers = np.unique([find(number) for number in range(len(pairs))], return_inverse=True)
    return numbers
