"""The benchmark of `auto` by the clock: what it reads off a run, and what it does not run again."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from threading import Event
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

SAID = "step 150\n        (about 1,234 steps in all at the current speed)\nheld-out loss 1.4"


@pytest.fixture
def budgets(load_benchmark: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script, with runs that end at once."""
    script = load_benchmark("budgets")
    monkeypatch.setattr(script, "trained", lambda settings, name, runs: (19.5, SAID))
    monkeypatch.setattr(script, "evaluated", lambda name, runs: {"bits_per_char": 2.0 + int(name[-1])})
    monkeypatch.setattr(script, "last_metrics", lambda name, runs: {"step": 1200})
    return script


def test_a_run_says_its_time_its_steps_and_those_foretold(budgets: Any, tmp_path: Path) -> None:
    run = budgets.one_run(20, 1, tmp_path)
    assert run == {"seed": 1, "taken": 19.5, "steps": 1200, "foretold": 1234, "nats_per_char": 2.0794}


def test_what_stands_in_the_file_is_not_run_again(
    budgets: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "budgets.json"
    monkeypatch.setattr("sys.argv", ["budgets.py", "--seconds", "20", "--seeds", "2", "--json", str(file)])
    budgets.main()
    found = json.loads(file.read_text())["20 s"]
    assert [run["seed"] for run in found["runs"]] == [1, 2]
    assert (found["mean"], found["sd"]) == (2.426, 0.4902)

    monkeypatch.setattr(budgets, "one_run", lambda *_: pytest.fail("this was run before"))
    budgets.main()
    assert json.loads(file.read_text())["20 s"] == found


def test_a_core_is_busy_from_then_on_and_free_again_afterwards(
    budgets: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    has_started = Event()

    def start(command: list[str]) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(command))
        has_started.set()
        return started[-1]

    monkeypatch.setattr(budgets, "subprocess", SimpleNamespace(Popen=start))
    with budgets.busy_core_after(60.0):
        pass  # over before another process would begin
    assert not started
    with budgets.busy_core_after(0.0):
        assert has_started.wait(30)
        assert started[0].poll() is None
    assert started[0].poll() is not None
