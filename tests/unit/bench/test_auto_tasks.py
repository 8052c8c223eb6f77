"""The benchmark of `auto` for pairs and labelled texts: what it compares with."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

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
