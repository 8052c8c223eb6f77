"""The ablation of the translator: how many steps a variant takes, and what a second call still has to do."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture
def ablation(load_benchmark: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script, with runs that end at once: their losses fall with their steps."""
    script = load_benchmark("translation_ablation")

    def trained(variant: str, seed: int, n_steps: int, base: list[str], runs: Path) -> dict[str, Any]:
        return {
            "name": f"{variant}-{seed}",
            "variant": variant,
            "seed": seed,
            "steps": n_steps,
            "val_loss": 4 - n_steps / 1000 + seed,
        }

    monkeypatch.setattr(script, "seconds_of_steps", lambda names, base: dict.fromkeys(names, 0.5))
    monkeypatch.setattr(script, "trained", trained)
    return script


@pytest.fixture
def called(ablation: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Runs the script and returns its report."""

    def call(*arguments: str) -> dict[str, Any]:
        file = tmp_path / "report.json"
        own = ["script", str(tmp_path), "--json", str(file), "--loss-only", *arguments]
        monkeypatch.setattr(sys, "argv", own)
        ablation.main()
        return json.loads(file.read_text())

    return call


def test_variants_take_the_steps_of_their_time_and_their_gains_are_those_seed_by_seed(
    called: Callable[..., dict[str, Any]],
) -> None:
    report = called("--cpu-seconds", "100", "--seeds", "2", "--only", "preset", "R-Drop 5, twice the time")
    assert set(report["cpu_seconds_per_step"]) == {"preset", "R-Drop 5"}
    assert [(run["variant"], run["seed"], run["steps"]) for run in report["runs"]] == [
        ("preset", 1, 200),
        ("R-Drop 5, twice the time", 1, 400),
        ("preset", 2, 200),
        ("R-Drop 5, twice the time", 2, 400),
    ]
    assert report["summary"]["R-Drop 5, twice the time"]["val_loss_gains"] == [-0.2, -0.2]


def test_a_second_call_takes_what_lacks_and_refuses_other_options(
    called: Callable[..., dict[str, Any]], ablation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--cpu-seconds", "100", "--only", "preset")
    before = called(*options, "--seeds", "1")
    ours = ablation.trained
    monkeypatch.setattr(ablation, "trained", lambda variant, seed, *rest: ours(variant, seed + 10, *rest))
    after = called(*options, "--seeds", "2")
    assert after["runs"][0] == before["runs"][0]
    assert [run["seed"] for run in after["runs"]] == [1, 12]
    with pytest.raises(SystemExit, match=r"its runs have cpu_seconds=100\.0; give another file for 50"):
        called("--cpu-seconds", "50", "--only", "preset")
