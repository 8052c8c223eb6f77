"""A run whose name nobody chose gives way where another process takes the name first."""

from pathlib import Path
from typing import Any

import pytest

from clearformer.config import resolve
from clearformer.errors import DataError, RunInUseError, RunLostError
from clearformer.runs import training
from clearformer.runs.folders import new_run
from clearformer.runs.training import RunStart, train_run
from clearformer.training.config import RunConfig
from clearformer.training.reporting.report import Reporter

TINY = {"d_model": 6, "n_layers": 1, "max_seq_len": 7, "attention": {"n_heads": 3}}
ONE_STEP = {"batch_size": 2, "max_steps": 1, "compile": False, "dtype": "float32", "device": "cpu"}


class Messages(Reporter):
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, message: str) -> None:
        self.said.append(message)


@pytest.fixture
def taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the runs that were tried; the first one is taken by another process meanwhile."""
    monkeypatch.setenv("CLEARFORMER_RUNS", str(tmp_path))
    tried: list[str] = []

    def train(
        config: RunConfig,
        folder: Any,
        reporter: Reporter,
        resume: bool,
        preset: str | None,
        began: float | None,
        headline: str,
    ) -> str:
        tried.append(folder.path.name)
        if len(tried) == 1:
            folder.path.mkdir()
            raise RunInUseError(f"{folder.path} is in use")
        reporter.say(headline)
        return "trained"

    monkeypatch.setattr(training, "train", train)
    return tried


def test_a_free_name_that_is_taken_meanwhile_is_replaced_by_the_next(
    taken: list[str], tmp_path: Path
) -> None:
    start = RunStart(RunConfig(), new_run("quick"), resume=False, is_named=False)
    messages = Messages()

    assert train_run(start, messages, "a decoder") == "trained"
    assert taken == ["quick", "quick-2"]
    assert start.folder.path == tmp_path / "quick-2"
    assert messages.said == [f"run {tmp_path / 'quick-2'}: a decoder"]


def test_a_run_that_loses_its_folder_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not trained again under another name, though nobody chose this one."""
    monkeypatch.setenv("CLEARFORMER_RUNS", str(tmp_path / "runs"))
    (tmp_path / "text.txt").write_text("To be, or not to be. " * 90)
    train = {**ONE_STEP, "max_steps": 9}
    layers = {"data": {"path": str(tmp_path / "text.txt")}, "model": TINY, "train": train}
    start = RunStart(resolve(RunConfig, layers), new_run("quick"), resume=False, is_named=False)

    class Moving(Messages):
        def stepped(self, progress: Any, metrics: Any) -> None:
            if progress.step == 3:
                start.folder.path.rename(tmp_path / "moved")

    with pytest.raises(RunLostError, match="was moved or replaced meanwhile"):
        train_run(start, Moving())
    assert list((tmp_path / "runs").iterdir()) == []
    assert (tmp_path / "moved" / "config.toml").exists()


def test_a_name_that_the_user_chose_is_kept_and_the_error_raised(taken: list[str], tmp_path: Path) -> None:
    start = RunStart(RunConfig(), new_run("mine"), resume=False, is_named=True)
    messages = Messages()

    with pytest.raises(RunInUseError):
        train_run(start, messages)
    assert taken == ["mine"]
    assert messages.said == []


def test_a_run_is_announced_once_its_data_are_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEARFORMER_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("CLEARFORMER_CACHE", str(tmp_path / "cache"))
    text = tmp_path / "text.txt"
    start = RunStart(
        resolve(RunConfig, {"data": {"path": str(text)}, "model": TINY, "train": ONE_STEP}),
        new_run("mine"),
        resume=False,
        is_named=True,
    )
    messages = Messages()

    text.write_text("")
    with pytest.raises(DataError):
        train_run(start, messages)
    assert messages.said == []

    text.write_text("the quick brown fox jumps over the lazy dog\n" * 20)
    train_run(start, messages)
    assert messages.said[0] == f"run {tmp_path / 'runs' / 'mine'}"
