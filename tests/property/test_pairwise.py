"""Of the tests' own crossing of switches: no pair is lost, and nothing is in it that may not be."""

from itertools import combinations
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ..pairwise import Row, pairwise

switches = st.dictionaries(st.sampled_from("abcd"), st.integers(1, 4).map(range), min_size=2, max_size=4)
refused_pairs = st.sets(
    st.tuples(st.sampled_from("abcd"), st.integers(0, 3), st.sampled_from("abcd"), st.integers(0, 3)),
    max_size=3,
)


def parts(row: Row, together: int) -> set[Any]:
    return set(combinations(sorted(row.items()), together))


@settings(max_examples=30)
@given(switches, refused_pairs, st.integers(1, 2))
def test_every_pair_of_an_allowed_row_occurs_and_no_other(
    given: dict[str, range], refused: set[Any], together: int
) -> None:
    def allowed(row: Row) -> bool:
        return not any((row.get(a), row.get(b)) == (i, j) for a, i, b, j in refused)

    rows = pairwise(given, allowed, together)

    full = every_row(given)
    assert all(list(row) == list(given) and allowed(row) for row in rows)
    found, wanted = ([parts(row, together) for row in some] for some in (rows, filter(allowed, full)))
    assert set().union(*found) == set().union(*wanted)
    assert len(rows) <= len(full)


def every_row(given: dict[str, range]) -> list[Row]:
    rows: list[Row] = [{}]
    for name, values in given.items():
        rows = [row | {name: value} for row in rows for value in values]
    return rows


def test_rows_are_few_and_the_same_in_every_run() -> None:
    many = {name: range(4) for name in "abcdef"}
    assert len(pairwise(many)) <= 32 < 4**6
    assert pairwise(many) == pairwise(many)
