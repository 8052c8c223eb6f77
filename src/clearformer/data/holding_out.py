"""The choice of held-out rows: each row's own content decides, independently of all other rows.

The SHA-256 of a row's content is its place between 0 and 1. Rows with the lowest places are the validation split, rows
with the highest the test split, the rest training. The same row therefore falls into the same split on every machine,
in every order of the file and among any other rows: adding or removing a row moves none of the others, and training
rows stay in training while a data set grows. A larger fraction holds out all that a smaller one did, and more. The
price is that a split has about its fraction of the rows, not exactly that many.

Rows with the same content share their place. The content of a row is its text in Unicode's NFC, without outer white
space and with each run of white space as one space; the content of a pair is its source. Rows that state values (a
date, which can be written in many ways) name these, and each value has a place: a row is held out if one of its values
is. No held-out value then occurs in a training row, in any form.
"""

import hashlib
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from math import ceil
from typing import Generic, NamedTuple, Protocol, TypeVar

from clearformer.errors import DataError, count

VERSION = 1
"""Version of this rule; part of the key of prepared data in the cache."""
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
    """Pairs by split, and the number of pairs left out of training."""

    splits: dict[str, list[PairT]]
    n_left_out: int


def own_text(text: str) -> str:
    """Normalise a text: NFC, no outer white space, and each run of white space as one space."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def hold_out_pairs(pairs: Sequence[PairT], shares: Mapping[str, Fraction]) -> HeldOutPairs[PairT]:
    """Split pairs (see `hold_out`) with no translation of a held-out pair in training.

    A training pair with the translation of a held-out one is left out, because it would reveal the expected output.
    Moving it to the held-out split instead would make its split depend on other pairs.

    Raises:
        DataError: a split would be empty.
    """
    splits = hold_out(pairs, shares, "pair")
    held_out = {own_text(pair.target) for name in shares for pair in splits[name]}
    train = [pair for pair in splits["train"] if own_text(pair.target) not in held_out]
    if not train:
        raise DataError(
            "the train split would be empty: every remaining pair has the same translation as a held-out one; "
            "give more pairs, or separate files of held-out pairs"
        )
    return HeldOutPairs(splits | {"train": train}, len(splits["train"]) - len(train))


def hold_out(rows: Sequence[RowT], shares: Mapping[str, Fraction], noun: str) -> dict[str, list[RowT]]:
    """Split rows into train and the splits of `shares`, each with about its share; rows keep their order.

    Args:
        rows: The rows; their order does not change any row's split.
        shares: The share of the val split, of the test split, or of both.
        noun: The word for one row in messages.

    Raises:
        DataError: a split would be empty.
    """
    n_low, n_high = (ceil(shares.get(name, Fraction(0)) * PLACES) for name in ("val", "test"))
    splits: dict[str, list[RowT]] = {"train": [], **{name: [] for name in shares}}
    lowest, highest, highest_free = PLACES, 0, 0
    for row in rows:
        places = [place_of(value) for value in row.own_values]
        low, high = min(places), max(places)
        lowest, highest = min(lowest, low), max(highest, high)
        if low >= n_low:  # else it is validation's, whatever its other values
            highest_free = max(highest_free, high)
        splits["val" if low < n_low else "test" if high >= PLACES - n_high else "train"].append(row)
    first_at = {
        "val": Fraction(lowest + 1, PLACES),
        "test": Fraction(PLACES - (highest_free or highest), PLACES),
    }
    all_at = {"val": Fraction(highest + 1, PLACES), "test": Fraction(PLACES - lowest, PLACES)}
    for name in shares:
        if not splits[name]:
            if lowest == highest:
                raise DataError(
                    f"the {name} split would be empty: all of {count(len(rows), noun)} are the same text, which stays "
                    f"in one split; give other {noun}s too, or set data.{name}_fraction=0 for no such split"
                )
            enough = _rounded_up(first_at[name], all_at[name])
            leaves_some = enough + sum(shares.values()) - shares[name] < 1
            raise DataError(
                f"the {name} split would be empty: data.{name}_fraction={float(shares[name])} holds out none of "
                f"{count(len(rows), noun)} (each {noun}'s own text decides); give more {noun}s, or set "
                f"data.{name}_fraction="
                + (f"{enough} or more (0 for no such split)" if leaves_some else "0 for no such split")
            )
    if not splits["train"]:
        fractions = " and ".join(f"data.{name}_fraction={float(share)}" for name, share in shares.items())
        hold, them = ("holds", "it") if len(shares) == 1 else ("hold", "them")
        raise DataError(
            f"the train split would be empty: {fractions} {hold} out all of {count(len(rows), noun)} (each {noun}'s "
            f"own text decides); lower {them}, or give more {noun}s"
        )
    return splits


def place_of(value: str) -> int:
    """Return a value's place, from 0 to 2^64 - 1: the first 64 bits of its SHA-256."""
    return int.from_bytes(hashlib.sha256(value.encode()).digest()[:8])


def n_also_in(rows: Iterable[Iterable[str]], others: Iterable[Iterable[str]]) -> int:
    """Count the rows that share a side with one of `others`; see `also_in`."""
    return sum(also_in(rows, others))


def also_in(rows: Iterable[Iterable[str]], others: Iterable[Iterable[str]]) -> Iterator[bool]:
    """For each row, yield whether one of its sides equals the same side of one of `others`, up to white space.

    Of the others, which may be millions, only those are kept that are found.
    """
    sides_of_rows = [list(enumerate(map(own_text, row))) for row in rows]
    wanted = {side for sides in sides_of_rows for side in sides}
    found = {side for row in others for side in enumerate(map(own_text, row)) if side in wanted}
    for sides in sides_of_rows:
        yield not found.isdisjoint(sides)


def _rounded_up(share: Fraction, limit: Fraction) -> float:
    """Round a fraction up to a decimal with few digits, below `limit`."""
    digits = 2
    while ceil(share * 10**digits) > 2 * share * 10**digits or ceil(share * 10**digits) >= limit * 10**digits:
        digits += 1
    return ceil(share * 10**digits) / 10**digits
