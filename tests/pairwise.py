"""Cross switches pairwise: cover every pair of values of every two switches in few rows, not in the full product."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import combinations, product
from typing import Any

import pytest

Row = dict[str, Any]
Allowed = Callable[[Row], bool]
Place = tuple[str, int]  # a switch and the index of one of its values


def pairwise(
    switches: Mapping[str, Iterable[Any]], allowed: Allowed = lambda row: True, together: int = 2
) -> list[Row]:
    """Return rows with one value for each switch, the same rows in every run.

    Each row starts with a pair that no row has yet. Each other switch takes the value that adds the most new pairs, and
    among equals the one used least.

    Args:
        switches: The values of each switch; they need not be hashable.
        allowed: Whether the values of a row may be combined. Pairs that occur in no allowed row are left out.
        together: The number of switches whose values are all combined: 2, or 1 if each value need only occur once.
    """
    values = {name: list(of_switch) for name, of_switch in switches.items()}
    places = [[(name, i) for i in range(len(values[name]))] for name in values]
    missing = dict.fromkeys(pair for some in combinations(places, together) for pair in product(*some))
    taken: Counter[Place] = Counter()
    rows = []

    def row_of(chosen: tuple[Place, ...]) -> Row:
        return {name: values[name][i] for name, i in chosen}

    def completed(chosen: tuple[Place, ...]) -> tuple[Place, ...] | None:
        if len(chosen) == len(values):
            return chosen if allowed(row_of(chosen)) else None
        names = [name for name, _ in chosen]
        open_places = next(each for each in places if each[0][0] not in names)
        longer = [(*chosen, place) for place in open_places]
        longer.sort(key=lambda each: (-n_new(each), taken[each[-1]]))
        return next((found for each in longer if (found := completed(each))), None)

    def n_new(chosen: tuple[Place, ...]) -> int:
        return sum(pair in missing for pair in pairs_in(chosen))

    def pairs_in(chosen: tuple[Place, ...]) -> Iterable[tuple[Place, ...]]:
        return combinations(sorted(chosen, key=lambda place: list(values).index(place[0])), together)

    while missing:
        pair = next(iter(missing))
        del missing[pair]
        if row := completed(pair):
            taken.update(row)
            for each in pairs_in(row):
                missing.pop(each, None)
            rows.append({name: row_of(row)[name] for name in values})
    return rows


def crossed(allowed: Allowed = lambda row: True, **switches: Iterable[Any]) -> pytest.MarkDecorator:
    """Parametrise a test with switches crossed pairwise; in test ids, the values of a mapping go by their keys."""
    named = {name: named_values(values) for name, values in switches.items()}
    rows = pairwise(named, lambda row: allowed({name: value for name, (_, value) in row.items()}))
    return pytest.mark.parametrize(
        list(switches),
        [
            pytest.param(*(value for _, value in row.values()), id="-".join(name for name, _ in row.values()))
            for row in rows
        ],
    )


def named_values(values: Iterable[Any]) -> list[tuple[str, Any]]:
    """Return a switch's values, each with its name."""
    if isinstance(values, Mapping):
        return [(str(name), value) for name, value in values.items()]
    return [(str(value), value) for value in values]
