"""The benchmark of `auto` for pairs and labelled texts: what it compares with."""

from collections.abc import Callable
from types import ModuleType

import pytest

from clearformer.auto import auto
from clearformer.config import explicit, parse_override, resolve
from clearformer.training.config import RunConfig


@pytest.mark.parametrize("form", ["pairs", "labelled"])
def test_by_hand_one_decision_is_another_at_a_time(
    form: str, load_benchmark: Callable[[str], ModuleType]
) -> None:
    own = auto(form)
    by_hand = load_benchmark("auto_tasks").by_hand
    others: dict[str, list[str]] = by_hand(own)
    runs = [resolve(RunConfig, explicit(own), *map(parse_override, settings)) for settings in others.values()]

    assert len(others) >= 8
    assert all(run != own for run in runs)
    assert len({repr(run) for run in runs}) == len(others)
    assert by_hand(own, ["rate"]) == {
        name: others[name] for name in others if name.endswith(" times the rate")
    }
