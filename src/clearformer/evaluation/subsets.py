"""Subsets of held-out data for evaluations during training: evenly spaced, and the same every time."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from clearformer.data import PairSplit, Split
from clearformer.data.labelled.preparing import LabelledSplit
from clearformer.data.pairs.files import PairSide


def evenly_spaced(n: int, total: int) -> np.ndarray:
    """Return `n` of `total` indices, [n] int64: the middle one of each of `n` equal parts; at most all."""
    n = min(n, total)
    return (2 * np.arange(n) + 1) * total // (2 * n)


def subset_of_text(split: Split, n: int, length: int) -> Split:
    """Return `n` stretches of a split, each of `length` tokens (the last may be shorter), as a split of its own."""
    starts = length * evenly_spaced(n, -(-len(split) // length))
    return _split_of(split.name, [split.read(at, min(at + length, len(split))) for at in starts.tolist()])


def subset_of_pairs(split: PairSplit, n: int) -> PairSplit:
    """Return `n` evenly spaced pairs of a split."""
    return pairs_at(split, evenly_spaced(n, len(split)))


def pairs_at(split: PairSplit, chosen: np.ndarray) -> PairSplit:
    """Return the pairs at the indices `chosen`, [n] int64."""

    def subset(side: PairSide) -> PairSide:
        rows = [side.row(index) for index in chosen.tolist()]
        return PairSide(
            np.concatenate(rows), _ends(rows), lambda: [side.texts[index] for index in chosen.tolist()]
        )

    source, target = split.sides
    return PairSplit(split.name, (subset(source), subset(target)), chosen, split.place)


def subset_of_labelled(split: LabelledSplit, n: int) -> LabelledSplit:
    """Return `n` evenly spaced labelled texts of a split."""
    return labelled_at(split, evenly_spaced(n, len(split)))


def labelled_at(split: LabelledSplit, chosen: np.ndarray) -> LabelledSplit:
    """Return the labelled texts at the indices `chosen`, [n] int64."""
    rows = [split.row(index) for index in chosen.tolist()]
    return replace(
        split,
        texts=[split.texts[index] for index in chosen.tolist()],
        label_ids=split.label_ids[chosen],
        tokens=_split_of(split.name, rows),
        ends=_ends(rows),
        lines=split.lines[chosen],
        last_lines={
            new: split.last_lines[old] for new, old in enumerate(chosen.tolist()) if old in split.last_lines
        },
    )


def _split_of(name: str, rows: Sequence[np.ndarray]) -> Split:
    return Split(name, rows, n_chars=0, n_bytes=0)  # sizes that no code reads of a subset


def _ends(rows: Sequence[np.ndarray]) -> np.ndarray:
    return np.cumsum([len(row) for row in rows], dtype=np.int64)
