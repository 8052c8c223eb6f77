"""The choice of held-out rows: each row's own content decides, so that no other row can change it.

A row's place between 0 and 1 is a SHA-256 of what it says. Those with the lowest places are the validation split,
those with the highest the test, the others training. So the same row falls into the same split on every machine, in
every order of the file, beside any other rows: a row that is added or taken out moves none of the others, and what
was trained on stays in training while a data set grows. A larger fraction holds out what a smaller one did, and more.
The price is that a split is near its fraction of the rows and not exactly it.

Where two rows say the same, they share their place. What a row says is its text in Unicode's form NFC, without outer
white space, each run of white space one space; of a pair it is the source. Rows that have values beneath their words
(a date, which is written in many ways) name these, and each value has a place: a row is held out where one of its
values is. No held-out value is then in a training row, in any form.
"""

import hashlib
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from math import ceil
from typing import Generic, NamedTuple, Protocol, TypeVar

from clearformer.errors import DataError, count

VERSION = 1
"""Of the rule: part of what prepared data are found by."""
PLACES = 1 << 64


class Row(Protocol):
    """A row of data that can be held out."""

    @property
    def own_values(self) -> tuple[str, ...]:
        """The row's text, or the values that it states: one or more."""
        ...


class PairRow(Row, Protocol):
    """A row with a translation."""

    @property
    def target(self) -> str: ...


RowT = TypeVar("RowT", bound=Row)
PairT = TypeVar("PairT", bound=PairRow)


class HeldOutPairs(NamedTuple, Generic[PairT]):
    """Pairs by split, and how many were left out of training."""

    splits: dict[str, list[PairT]]
    n_left_out: int


def own_text(text: str) -> str:
    """The normalised text: in NFC, without outer white space, and each run of white space as one space."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def hold_out_pairs(pairs: Sequence[PairT], shares: Mapping[str, Fraction]) -> HeldOutPairs[PairT]:
    """The splits of pairs (see `hold_out`), with no translation of a held-out pair in training.

    A training pair that has the translation of a held-out one is left out: it would show in training what is to be
    found. To move it to the held-out ones instead would make its split depend on other pairs.

    Raises:
        DataError: a split would be empty.
    """
    splits = hold_out(pairs, shares, "pair")
    held_out = {own_text(pair.target) for name in shares for pair in splits[name]}
    train = [pair for pair in splits["train"] if own_text(pair.target) not in held_out]
    if not train:
        raise DataError(
            "the train split would be empty: every pair that is not held out has the translation of one that is; "
            "give more pairs, or files of their own for the held-out ones"
        )
    return HeldOutPairs(splits | {"train": train}, len(splits["train"]) - len(train))


def hold_out(rows: Sequence[RowT], shares: Mapping[str, Fraction], noun: str) -> dict[str, list[RowT]]:
    """The rows as splits, each in the order of `rows`: train, and near its share of them for each of `shares`.

    Args:
        rows: in any order; it changes no row's split.
        shares: of the val and the test split, or of one of them.
        noun: what one row is called in a message.

    Raises:
        DataError: a split would be empty.
    """
    n_low, n_high = (ceil(shares.get(name, Fraction(0)) * PLACES) for name in ("val", "test"))
    splits: dict[str, list[RowT]] = {"train": [], **{name: [] for name in shares}}
    lowest, highest = PLACES, 0
    for row in rows:
        places = [place_of(value) for value in row.own_values]
        low, high = min(places), max(places)
        lowest, highest = min(lowest, low), max(highest, high)
        splits["val" if low < n_low else "test" if high >= PLACES - n_high else "train"].append(row)
    first_at = {"val": Fraction(lowest + 1, PLACES), "test": Fraction(PLACES - highest, PLACES)}
    for name in shares:
        if not splits[name]:
            raise DataError(
                f"the {name} split would be empty: data.{name}_fraction={float(shares[name])} holds out none of "
                f"{count(len(rows), noun)}, as each one's own text decides; give more {noun}s, or set "
                f"data.{name}_fraction={_rounded_up(first_at[name])} or more (0 for no such split)"
            )
    if not splits["train"]:
        fractions = " and ".join(f"data.{name}_fraction={float(share)}" for name, share in shares.items())
        raise DataError(
            f"the train split would be empty: {fractions} hold out all of {count(len(rows), noun)}, as each one's "
            f"own text decides; set less, or give more {noun}s"
        )
    return splits


def place_of(value: str) -> int:
    """A value's place, from 0 to 2^64 - 1: the first 64 bits of its SHA-256."""
    return int.from_bytes(hashlib.sha256(value.encode()).digest()[:8])


def n_also_in(rows: Iterable[Iterable[str]], others: Iterable[Iterable[str]]) -> int:
    """How many rows have a side of which the same stands on the same side of one of the others, white space aside."""
    return sum(also_in(rows, others))


def also_in(rows: Iterable[Iterable[str]], others: Iterable[Iterable[str]]) -> Iterator[bool]:
    """Whether each row has a side of which the same stands on the same side of one of the others, white space aside."""
    known = {(side, own_text(text)) for row in others for side, text in enumerate(row)}
    for row in rows:
        yield any((side, own_text(text)) in known for side, text in enumerate(row))


def _rounded_up(share: Fraction) -> float:
    """A fraction that is short to write and no less."""
    digits = 2
    while ceil(share * 10**digits) > 2 * share * 10**digits:
        digits += 1
    return ceil(share * 10**digits) / 10**digits
