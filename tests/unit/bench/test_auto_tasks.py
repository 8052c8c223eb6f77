"""The benchmark of `auto` for pairs and labelled texts: what it compares with."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from clearformer.auto import auto
from clearformer.config import explicit, parse_override, resolve
from clearformer.data.cache import cache_folder
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


def test_no_run_finds_what_another_has_prepared(
    load_benchmark: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / "rates.json").write_text("{}")
    monkeypatch.setenv("CLEARFORMER_CACHE", str(tmp_path / "user"))
    benchmark = load_benchmark("auto_tasks")
    found = []

    def run(settings: list[str], name: str, runs: Path) -> dict[str, float]:
        cache = cache_folder()
        found.append(sorted(each.name for each in cache.iterdir()))
        (cache / "prepared").mkdir()
        return {"accuracy": 0.5}

    monkeypatch.setattr(benchmark, "run_and_evaluate", run)
    monkeypatch.setattr(benchmark, "last_metrics", lambda name, runs: {"step": 1})
    for name in ("auto", "hand-0"):
        benchmark.trained([], 20, [], tmp_path / "runs", name)
    assert found == [["rates.json"]] * 2
    assert [each.name for each in (tmp_path / "user").iterdir()] == ["rates.json"]


def test_auto_and_what_is_by_hand_take_turns_over_the_seeds(
    load_benchmark: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    benchmark = load_benchmark("auto_tasks")
    ran: list[list[str]] = []

    def trained(data: list[str], seconds: int, settings: list[str], runs: Path, name: str) -> dict[str, Any]:
        ran.append(settings)
        seed, better = int(settings[0].removeprefix("seed=")), len(settings) - 1
        return {"score": 80.0 + seed + better, "settings": settings}

    monkeypatch.setattr(benchmark, "trained", trained)
    monkeypatch.setattr(benchmark, "write_labelled", lambda *_: [])
    monkeypatch.setattr(benchmark, "RunFolder", lambda _: SimpleNamespace(read_config=lambda: None))
    monkeypatch.setattr(benchmark, "described", lambda _: "a shape")
    found = benchmark.measure("trec", 1.0, 20, [1, 4], lambda _: {"longer": ["a=1", "b=2"]}, tmp_path)
    assert ran == [["seed=1"], ["seed=1", "a=1", "b=2"], ["seed=4"], ["seed=4", "a=1", "b=2"]]
    assert found["auto"]["score"] == 82.5
    assert found["by hand"]["longer"]["of seeds"][4]["score"] == 86.0
    assert found["behind"] == 2.0
    one = benchmark.measure("trec", 1.0, 20, [3], lambda _: {"longer": ["a=1"]}, tmp_path)
    assert one["auto"] == {"score": 83.0, "settings": ["seed=3"]}


def test_given_settings_and_decisions_are_what_is_compared(
    load_benchmark: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    benchmark = load_benchmark("auto_tasks")
    measured = []

    def measure(*given: Any) -> dict[str, Any]:
        name, part, seconds, seeds, changed, _ = given
        measured.append((name, part, seconds, seeds, changed(auto("labelled"))))
        return {"behind": 0.0}

    monkeypatch.setattr(benchmark, "measure", measure)
    monkeypatch.setenv("CLEARFORMER_CACHE", str(tmp_path))
    report = tmp_path / "report.json"
    options = [
        "--data",
        "trec",
        "--parts",
        "0.25",
        "--seconds",
        "60",
        "--seeds",
        "1",
        "2",
        "--json",
        str(report),
    ]
    by_hand = ["--decisions", "--hand", "train.batch_size=8 model.dropout=0.2", "seed=3"]
    monkeypatch.setattr("sys.argv", ["auto_tasks.py", *options, *by_hand])
    benchmark.main()
    benchmark.main()  # what is in the file is not run again
    settings = {given: given.split() for given in by_hand[2:]}
    assert measured == [("trec", 0.25, 60, [1, 2], settings)]
    assert json.loads(report.read_text()) == {"0.25 of trec, 60 s, seeds 1, 2": {"behind": 0.0}}

    monkeypatch.setattr("sys.argv", ["auto_tasks.py", "--decisions"])
    with pytest.raises(SystemExit):
        benchmark.main()
