"""The benchmark of a run's parts times functions by their names: each of them is there."""

import functools
import importlib
from collections.abc import Callable
from types import ModuleType


def test_every_function_that_is_timed_is_there(load_benchmark: Callable[[str], ModuleType]) -> None:
    run_costs = load_benchmark("run_costs")
    places = [place for places in run_costs.FUNCTIONS.values() for place in places]
    assert places
    for place in places:
        module, _, path = place.partition(":")
        assert callable(functools.reduce(getattr, path.split("."), importlib.import_module(module))), place
