"""A row's split hangs on its own content, so that no other row can move it."""

import hashlib
import re
import unicodedata
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from clearformer.data import holding_out
from clearformer.data.holding_out import also_in, hold_out, hold_out_pairs, n_also_in, own_text, place_of
from clearformer.errors import DataError

TENTH = Fraction(1, 10)


class Stated(NamedTuple):
    own_values: tuple[str, ...]


class Two(NamedTuple):
    source: str
    target: str
    values: tuple[str, ...] = ()

    @property
    def own_values(self) -> tuple[str, ...]:
        return self.values or (own_text(self.source),)


def distinct(n: int, first: int = 0) -> list[Two]:
    return [Two(f"s{i}", f"t{i}") for i in range(first, first + n)]


def split_by_row(rows: list[Two], **shares: Fraction) -> dict[Two, str]:
    return {row: name for name, own in hold_out(rows, shares, "pair").items() for row in own}


def test_a_place_is_the_start_of_a_sha256_the_same_everywhere() -> None:
    assert place_of("un chat") == int(hashlib.sha256(b"un chat").hexdigest()[:16], 16)
    assert place_of("é") == int.from_bytes(hashlib.sha256(b"\xc3\xa9").digest()[:8])


def test_about_the_share_is_held_out_in_the_order_of_the_file() -> None:
    rows = distinct(9973)
    splits = hold_out(rows, {"val": TENTH, "test": Fraction(1, 50)}, "pair")
    assert 900 < len(splits["val"]) < 1100
    assert 160 < len(splits["test"]) < 240
    assert sorted(row for own in splits.values() for row in own) == sorted(rows)
    places = {row: place for place, row in enumerate(rows)}
    for own in splits.values():
        assert own == sorted(own, key=lambda row: places[row])


@pytest.mark.parametrize("added", [1, 100])
def test_a_row_that_is_added_moves_no_other(added: int) -> None:
    """One line added to 1,000 put 71 of 100 held-out pairs among those that had been trained on."""
    shares = {"val": TENTH, "test": TENTH}
    before = split_by_row(distinct(1000), **shares)
    after = split_by_row([*distinct(added, first=1000), *distinct(1000)], **shares)
    assert {row: after[row] for row in before} == before


words = st.text(alphabet="ab é\u0301\u00a0\t", min_size=1, max_size=4).filter(str.strip)
pair = st.tuples(words, st.sampled_from("uvwxyz")).map(lambda sides: Two(*sides))
pairs, several = (
    st.lists(pair, max_size=30),
    st.lists(pair, min_size=12, max_size=30),
)  # of few all may be held out


@given(several, pairs, st.integers(1, 9))
def test_nothing_held_out_is_in_training_and_other_rows_move_nothing(
    rows: list[Two], others: list[Two], tenths: int
) -> None:
    shares = {"val": Fraction(tenths, 10)}
    try:
        own, more = (hold_out_pairs(each, shares) for each in (rows, rows + others))
    except DataError:
        assume(False)
        raise
    for held_out in (own, more):
        train, val = held_out.splits["train"], held_out.splits["val"]
        assert not {own_text(row.source) for row in train} & {own_text(row.source) for row in val}
        assert not {own_text(row.target) for row in train} & {own_text(row.target) for row in val}
        assert held_out.n_left_out == len(rows if held_out is own else rows + others) - len(train) - len(val)
    assert set(own.splits["val"]) <= set(more.splits["val"])
    assert not set(own.splits["train"]) & set(more.splits["val"])
    assert not set(own.splits["val"]) & set(more.splits["train"])


@pytest.mark.parametrize(
    "written", ["  un chat  noir", "un chat\u00a0noir\t", "un\u202fchat noir", "un chat noir\r"]
)
def test_white_space_around_and_between_words_changes_no_split(written: str) -> None:
    assert own_text(written) == "un chat noir"


def test_two_spellings_of_one_character_are_one_text() -> None:
    assert own_text(unicodedata.normalize("NFD", "été")) == "été"
    assert own_text("Été") != "été"  # a capital is another text


def test_pairs_that_differ_in_white_space_stay_together() -> None:
    rows = [row for i in range(100) for row in (Two(f"s {i}", f"a{i}"), Two(f" s  {i} ", f"b{i}"))]
    splits = split_by_row(rows, val=Fraction(1, 2))
    for row, other in zip(rows[::2], rows[1::2], strict=True):
        assert splits[row] == splits[other]
    assert 30 < list(splits.values()).count("val") < 170


def test_a_training_pair_with_a_held_out_translation_is_left_out_and_counted() -> None:
    held_out = next(row for row in distinct(100) if place_of(row.source) < place_of("s") // 3)
    twin, other = Two("twin", f" {held_out.target} "), Two("other", "t")
    share = Fraction(place_of(held_out.source) + 1, 1 << 64)
    assert min(place_of("twin"), place_of("other")) > place_of(held_out.source)
    splits, n_left_out = hold_out_pairs([twin, held_out, other], {"val": share})
    assert (splits, n_left_out) == ({"train": [other], "val": [held_out]}, 1)


def test_the_fraction_is_exact() -> None:
    row = Two("un chat", "a cat")
    at = Fraction(place_of("un chat"), 1 << 64)
    others = [Two("s", "t"), *distinct(40)]
    assert split_by_row([row, *others], val=at)[row] == "train"
    assert split_by_row([row, *others], val=at + Fraction(1, 1 << 64))[row] == "val"


def test_the_fraction_that_is_advised_is_one_that_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that validation has already is none that the test split could take."""
    monkeypatch.setattr(holding_out, "place_of", lambda value: int(float(value) * holding_out.PLACES))
    rows = [Stated(values) for values in (("0.001", "0.999"), ("0.5",), ("0.6",))]
    shares = {"val": Fraction(2, 100), "test": Fraction(2, 100)}
    with pytest.raises(DataError, match=r"set data\.test_fraction=0\.41 or more"):
        hold_out(rows, shares, "row")


def test_a_larger_fraction_holds_out_more_and_leaves_the_other_split_alone() -> None:
    rows = distinct(500)
    small, large = (hold_out(rows, {"val": share, "test": TENTH}, "pair") for share in (TENTH, 3 * TENTH))
    assert set(small["val"]) < set(large["val"])
    assert small["test"] == large["test"] == hold_out(rows, {"test": TENTH}, "pair")["test"]


def test_a_row_is_held_out_where_one_of_its_values_is() -> None:
    """The day of a date with a time is a held-out day: training must not show it, whatever the time."""
    low, high = sorted(("day 1", "time 1"), key=place_of)
    share = Fraction(place_of(low) + 1, 1 << 64)
    rows = [Two("a", "1", (high, low)), Two("b", "2", (low,)), Two("c", "3", (high,))]
    assert list(split_by_row(rows, val=share).values()) == ["train", "val", "val"]
    assert split_by_row(rows, val=share)[rows[2]] == "train"


def test_nothing_to_hold_out_is_one_split() -> None:
    assert hold_out(distinct(3), {}, "pair") == {"train": distinct(3)}


@pytest.mark.parametrize("name", ["val", "test"])
@pytest.mark.parametrize("n_rows", [3, 7, 40])
def test_a_split_that_would_be_empty_is_refused_with_a_fraction_that_fills_it(name: str, n_rows: int) -> None:
    with pytest.raises(
        DataError, match=rf"^the {name} split would be empty: data.{name}_fraction=0.0001 "
    ) as caught:
        hold_out(distinct(n_rows), {name: Fraction(1, 10000)}, "pair")
    assert "\n" not in str(caught.value)
    assert f"holds out none of {n_rows} pairs" in str(caught.value)
    found = re.search(rf"set data.{name}_fraction=([\d.]+) or more", str(caught.value))
    assert found is not None
    assert len(hold_out(distinct(n_rows), {name: Fraction(found[1])}, "pair")[name]) >= 1


def test_the_fraction_to_set_leaves_something_to_train_on() -> None:
    in_order = sorted(distinct(99), key=lambda row: place_of(row.source))
    rows = min(pairwise(in_order), key=lambda two: place_of(two[1].source) - place_of(two[0].source))
    with pytest.raises(DataError) as caught:
        hold_out(rows, {"val": Fraction(1, 10**9)}, "pair")
    found = re.search(r"set data.val_fraction=([\d.]+) or more", str(caught.value))
    assert found is not None
    assert set(map(len, hold_out(rows, {"val": Fraction(found[1])}, "pair").values())) == {1}


@pytest.mark.parametrize("n_rows", range(2, 9))
def test_a_fraction_that_leaves_nothing_beside_the_other_split_is_not_advised(n_rows: int) -> None:
    rows = distinct(n_rows)
    val = Fraction(max(place_of(row.source) for row in rows) + 1, 1 << 64)  # all of them
    with pytest.raises(DataError) as caught:
        hold_out(rows, {"val": val, "test": Fraction(1, 10**9)}, "text")
    found = re.search(r"set data.test_fraction=([\d.]+)", str(caught.value))
    assert found is not None
    assert Fraction(found[1]) + val < 1


def test_rows_that_are_all_the_same_are_not_to_be_held_out_by_another_fraction() -> None:
    with pytest.raises(DataError, match=r"all of 9 texts are the same text, .* set data.val_fraction=0 for"):
        hold_out(distinct(1) * 9, {"val": Fraction(1, 10**9)}, "text")


def test_training_that_would_be_empty_is_refused() -> None:
    with pytest.raises(DataError, match=r"^the train split would be empty: data.val_fraction=0.99 holds"):
        hold_out(distinct(3), {"val": Fraction(99, 100)}, "pair")
    twins = [Two(f"s{i}", "t") for i in range(40)]
    with pytest.raises(DataError, match="every remaining pair has the same translation as a held-out one"):
        hold_out_pairs(twins, {"val": TENTH})


def test_rows_that_are_also_elsewhere_are_counted_by_side() -> None:
    others = [("a  b", "x"), ("c", "y")]
    rows = [(" a b", "?"), ("?", "y "), ("y", "c"), ("a", "b")]
    assert list(also_in(rows, others)) == [True, True, False, False]
    assert n_also_in(rows, others) == 2
