"""A run whose name nobody chose gives way where another process takes the name first."""

from pathlib import Path
from typing import Any

import pytest

from clearformer.errors import RunInUseError
from clearformer.runs import training
from clearformer.runs.folders import new_run
from clearformer.runs.training import RunStart, train_run
from clearformer.training.config import RunConfig
from clearformer.training.reporting.report import Reporter


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
    ) -> str:
        tried.append(folder.path.name)
        if len(tried) == 1:
            folder.path.mkdir()
            raise RunInUseError(f"{folder.path} is in use")
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
    assert messages.said == [f"run {tmp_path / name}: a decoder" for name in taken]


def test_a_name_that_the_user_chose_is_kept_and_the_error_raised(taken: list[str], tmp_path: Path) -> None:
    start = RunStart(RunConfig(), new_run("mine"), resume=False, is_named=True)
    messages = Messages()

    with pytest.raises(RunInUseError):
        train_run(start, messages)
    assert taken == ["mine"]
    assert messages.said == [f"run {tmp_path / 'mine'}"]
