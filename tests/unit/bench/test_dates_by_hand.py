"""The table of inputs typed by hand: its rows, and that their English is what the pairs of `dates` teach."""

from collections import Counter
from collections.abc import Callable
from types import ModuleType

import pytest

from clearformer.data.builtin.dates import make_pairs
from clearformer.data.builtin.english import English
from clearformer.data.builtin.quantities import QUANTITIES, Day, Year
from clearformer.data.holding_out import own_text
from clearformer.data.pairs.sources import Pair


@pytest.fixture(scope="module")
def by_hand(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("dates_by_hand")


def test_there_are_a_hundred_rows_of_all_kinds(by_hand: ModuleType) -> None:
    rows = by_hand.read_table()
    assert len(rows) == len({own_text(row.french).casefold() for row in rows}) == 100
    assert all(row.french.strip() and row.english.strip() for row in rows)
    kinds = Counter(type(row.quantity) for row in rows if row.quantity)
    assert set(kinds) == set(QUANTITIES)
    assert 3 <= sum(row.quantity is None for row in rows) <= 10
    years = [row.quantity.year for row in rows if isinstance(row.quantity, Day | Year)]
    assert (min(years), max(years)) == (1, 2999)


def test_the_english_is_the_one_that_is_taught(by_hand: ModuleType) -> None:
    rows = by_hand.read_table()
    for row in rows:
        if row.quantity is not None:
            assert row.english == English().written(row.quantity), row.french
    expected = {own_text(row.french).lower(): row.english for row in rows}
    taught = {own_text(pair.source).lower(): pair.target for pair in make_pairs("fr", "en", 20_000)}
    shared = expected.keys() & taught.keys()
    assert len(shared) > 10
    assert {french: expected[french] for french in shared} == {french: taught[french] for french in shared}


def test_what_counts_as_right(by_hand: ModuleType) -> None:
    assert by_hand.is_right(" July 14, 1789 ", "July 14, 1789")
    assert not by_hand.is_right("july 14, 1789", "July 14, 1789")
    assert by_hand.is_right_in_substance("july 14, 1789.", "July 14, 1789")
    for translation, expected in (
        ("18", "-18"),
        ("20", "20%"),
        ("3", "$3"),
        ("July 14 1789", "July 14, 1789"),
    ):
        assert not by_hand.is_right_in_substance(translation, expected)


def test_the_shares_are_of_all_rows_and_of_those_that_training_does_not_have(
    by_hand: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = by_hand.read_table()[:5]
    translations = [rows[0].english, rows[1].english.lower(), "?", rows[3].english, "?"]
    elsewhere = Pair("un", "one", 1, ("number 1",))
    report = by_hand.measured(rows, translations, [elsewhere])
    assert report["all"] == report["not_in_training"] == {"n": 5, "right": 0.4, "right_in_substance": 0.6}
    report = by_hand.measured(rows, translations, [elsewhere, Pair(rows[2].french, "?", 2)])
    assert report["not_in_training"] == {"n": 4, "right": 0.5, "right_in_substance": 0.75}
    report = by_hand.measured(rows, translations, [Pair("sa prise", "?", 1, rows[0].quantity.values)])
    assert report["not_in_training"]["n"] == 0
    by_hand.print_table(report)
    out = capsys.readouterr().out
    assert "all rows (5): right 40.0%, in substance 60.0%" in out
    assert f"(expected {rows[2].english})" in out
    assert "nor value" not in out
