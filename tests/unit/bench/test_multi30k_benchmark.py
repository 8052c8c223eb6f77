"""Choices of the benchmark of Multi30k, which must not be made on noise."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from clearformer.data import PairsData


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


def run_of(data: PairsData) -> SimpleNamespace:
    return SimpleNamespace(config=SimpleNamespace(data=data))


def test_a_run_of_other_files_is_measured_on_multi30ks_own_pairs(
    benchmark: ModuleType, data_dir: Path
) -> None:
    run = run_of(PairsData(source="more.fr", target="more.en", languages="fr-en"))
    assert len(benchmark.pairs_of(run, "val")) == 1014
    first = benchmark.pairs_of(run, "test")[0]
    assert (first.source.split()[0], first.target.split()[0]) == ("Un", "A")


def test_a_run_without_languages_is_refused_in_one_line(benchmark: ModuleType) -> None:
    with pytest.raises(SystemExit, match=r"data\.languages"):
        benchmark.pairs_of(run_of(PairsData(source="more.fr", target="more.en")), "test")
