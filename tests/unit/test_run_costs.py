"""The benchmark of a run's parts times functions by their names: each of them is there."""

import functools
import importlib
import importlib.util
from pathlib import Path

PATH = Path(__file__).parents[2] / "benchmarks" / "run_costs.py"


def test_every_function_that_is_timed_is_there() -> None:
    spec = importlib.util.spec_from_file_location("run_costs", PATH)
    assert spec is not None
    assert spec.loader is not None
    run_costs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(run_costs)
    places = [place for places in run_costs.FUNCTIONS.values() for place in places]
    assert places
    for place in places:
        module, _, path = place.partition(":")
        assert callable(functools.reduce(getattr, path.split("."), importlib.import_module(module))), place
