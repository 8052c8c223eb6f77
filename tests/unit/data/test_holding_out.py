from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearformer.data.holding_out import hold_out
from clearformer.errors import DataError


class Two(NamedTuple):
    source: str
    target: str
    number: int


def numbered(*pairs: tuple[str, str]) -> list[Two]:
    return [Two(*pair, number) for number, pair in enumerate(pairs)]


def distinct(n: int) -> list[Two]:
    return numbered(*((f"s{i}", f"t{i}") for i in range(n)))


def test_the_share_of_the_pairs_is_held_out_in_the_order_of_the_file() -> None:
    splits = hold_out(distinct(997), {"val": Fraction(1, 10), "test": Fraction(1, 50)})
    assert {name: len(pairs) for name, pairs in splits.items()} == {"train": 879, "val": 99, "test": 19}
    assert sorted(pair for pairs in splits.values() for pair in pairs) == sorted(distinct(997))
    for pairs in splits.values():
        assert pairs == sorted(pairs, key=lambda pair: pair.number)


def test_what_is_held_out_is_from_all_over_the_file_and_the_same_tomorrow() -> None:
    held_out = [pair.number for pair in hold_out(distinct(997), {"val": Fraction(1, 10)})["val"]]
    assert 350 < np.mean(held_out) < 650
    assert held_out[:5] == [12, 14, 18, 19, 35]


def test_pairs_that_share_a_sentence_stay_together() -> None:
    """Also by way of others: a1 and b2 share none, and both share one with a2."""
    chain = [("a", "1"), ("a", "2"), ("b", "2")]
    for filler in range(40):
        splits = hold_out(
            numbered(*chain, *((f"s{i}", f"t{i}") for i in range(filler + 3))), {"val": Fraction(1, 2)}
        )
        homes = {name for name, pairs in splits.items() for pair in pairs if pair.source in "ab"}
        assert len(homes) == 1


sentences = st.sampled_from("abcdefghijklmnopqrst")


@given(st.lists(st.tuples(sentences, sentences), min_size=2, max_size=60), st.integers(1, 9))
def test_no_held_out_sentence_is_in_training(pairs: list[tuple[str, str]], tenths: int) -> None:
    made = numbered(*pairs)
    try:
        splits = hold_out(made, {"val": Fraction(tenths, 10)})
    except DataError:
        return  # too few, or too many alike
    assert sorted([*splits["train"], *splits["val"]], key=lambda pair: pair.number) == made
    assert len(splits["val"]) == len(pairs) * tenths // 10
    for side in ("source", "target"):
        train, val = ({getattr(pair, side) for pair in splits[name]} for name in ("train", "val"))
        assert not train & val


def test_nothing_to_hold_out_is_one_split() -> None:
    assert hold_out(distinct(3), {}) == {"train": distinct(3)}


def test_a_split_that_would_be_empty_is_refused() -> None:
    with pytest.raises(
        DataError, match=r"val split would be empty: data.val_fraction=0.02 of 7 pairs is none"
    ):
        hold_out(distinct(7), {"val": Fraction(2, 100)})


def test_pairs_too_much_alike_to_be_parted_are_refused() -> None:
    with pytest.raises(DataError, match=r"val split lacks 2 of 2 pairs: too many share a sentence"):
        hold_out(
            numbered(("yes", "oui"), ("yes", "si"), ("no", "si"), ("no", "non")), {"val": Fraction(1, 2)}
        )
