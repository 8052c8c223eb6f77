"""Choices of the benchmark of Multi30k, which must not be made on noise."""

from collections.abc import Callable
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def benchmark(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("multi30k")


@pytest.mark.parametrize(
    ("better_by", "chosen"),
    [([0.0, 0.0], 1.0), ([0.3, 0.0], 1.0), ([0.3, 0.2], 1.4), ([0.9, -0.1], 1.4)],
)
def test_a_length_penalty_is_that_of_all_runs_and_better_by_more_than_noise(
    benchmark: ModuleType, better_by: list[float], chosen: float
) -> None:
    runs = [dict.fromkeys(benchmark.PENALTIES, 40.0) | {1.4: 40.0 + each} for each in better_by]
    assert benchmark.best_penalty(runs) == chosen
