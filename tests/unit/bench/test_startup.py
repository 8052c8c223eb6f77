"""The benchmark of what a person waits for: what it takes for the end of a wait, and what it tells of many."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def startup(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("startup")


def command(code: str) -> tuple[str, ...]:
    return sys.executable, "-c", code


def test_a_command_that_goes_on_is_ended_once_its_file_is_there(startup: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    code = f"import pathlib, time; pathlib.Path({str(file)!r}).write_text('a line'); time.sleep(600)"
    found = startup.Wait(command(code), file).seconds(os.environ)
    assert found["clock"] > 0
    assert found["processor"] > 0


@pytest.mark.parametrize("until", ["end", "first words", Path("never")])
def test_a_command_that_fails_is_no_time(startup: ModuleType, until: str | Path) -> None:
    with pytest.raises(SystemExit, match="ended with 3"):
        startup.Wait(command("raise SystemExit(3)"), until).seconds(os.environ)


def test_medians_tell_the_slowest_help_of_each_side(startup: ModuleType) -> None:
    def times(of_train: float, of_plan: float) -> dict[str, dict[str, float]]:
        both = {"help train": of_train, "help plan": of_plan, "eval": 4.0}
        return {f"now: {name}": {"clock": seconds, "processor": 1.0} for name, seconds in both.items()}

    told = startup.medians([times(0.1, 0.3), times(0.9, 0.3), times(0.2, 0.4)])
    assert told == {
        "now: eval": {"clock": 4.0, "processor": 1.0},
        "now: help": {"clock": 0.3, "processor": 1.0, "slowest": "plan"},
    }
