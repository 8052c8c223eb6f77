"""Loggers are told of every line of metrics, from the start to the end."""

import json
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import clearformer as cf
from clearformer.errors import ClearformerError, ConfigError, DiskError, MissingPackageError
from clearformer.training.reporting.loggers import JSONLines, LoggingReporter, TensorBoard, WandB
from clearformer.training.reporting.report import Reporter
from clearformer.training.store.checkpoint import Progress
from clearformer.training.store.folder import read_metrics

from ....full_disk import largest_file


class Kept:
    def __init__(self) -> None:
        self.told: list[Any] = []

    def start(self, config: cf.RunConfig) -> None:
        self.told.append(config.train.max_steps)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.told.append((step, dict(values)))

    def finish(self, summary: Mapping[str, float]) -> None:
        self.told.append(dict(summary))


def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *loggers: Any, **settings: Any) -> cf.Run:
    monkeypatch.setenv("CLEARFORMER_RUNS", str(tmp_path / "runs"))
    (tmp_path / "text.txt").write_text("a few words of text\n" * 50)
    return cf.train(
        "quick",
        data={"path": str(tmp_path / "text.txt")},
        model={"d_model": 16, "n_layers": 1, "max_seq_len": 8, "attention": {"n_heads": 2}},
        train={"max_steps": 4, "max_seconds": "none", "batch_size": 4, "log_every": 2, "compile": False}
        | settings,
        loggers=loggers,
        quiet=True,
    )


def test_a_logger_hears_what_metrics_jsonl_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, file = Kept(), JSONLines(tmp_path / "log.jsonl")
    run = train(tmp_path, monkeypatch, kept, file)

    lines = read_metrics(run.folder.metrics_file)
    assert [line["step"] for line in lines] == [2, 4]
    expected = [(line.pop("step"), line) for line in lines]
    assert kept.told == [4, *expected, expected[0][1] | expected[1][1]]
    assert [json.loads(line) for line in file.path.read_text().splitlines()] == [
        {"step": step, **values} for step, values in expected
    ]


def test_json_lines_go_on_with_a_resumed_run(tmp_path: Path) -> None:
    file = JSONLines(tmp_path / "log.jsonl")
    config = cf.preset("quick")
    LoggingReporter(Reporter(), [file]).begin(config, Progress())
    for step in (2, 4):
        file.log(step, {"loss": 1.0})
    with file.path.open("a") as cut:
        cut.write('{"step": 1')

    LoggingReporter(Reporter(), [file]).begin(config, Progress(step=2))
    file.log(4, {"loss": 0.5})
    lines = [json.loads(line) for line in file.path.read_text().splitlines()]
    assert lines == [{"step": 2, "loss": 1.0}, {"step": 4, "loss": 0.5}]

    LoggingReporter(Reporter(), [file]).begin(config, Progress())
    assert file.path.read_text() == ""


def test_json_lines_stay_whole_on_a_full_disk(tmp_path: Path) -> None:
    file = JSONLines(tmp_path / "log.jsonl")
    for step in range(1, 40):
        file.log(step, {"loss": 1.0})
    before = file.path.read_text()
    with largest_file(len(before) // 2), pytest.raises(DiskError, match=r"log\.jsonl: cannot be written"):
        file.resume(cf.preset("quick"), 39)
    assert file.path.read_text() == before


def test_tensorboard_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    train(tmp_path, monkeypatch, TensorBoard(tmp_path / "board"))
    [file] = (tmp_path / "board").iterdir()
    assert b"val_loss" in file.read_bytes()


def test_weights_and_biases_is_told_by_its_public_interface(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against a stand-in with the methods of `wandb.init`'s run: the package is not among those of the tests."""
    calls: list[Any] = []

    class Summary(dict[str, float]):
        pass

    class FakeRun:
        summary = Summary()

        def log(self, data: dict[str, Any], step: int | None = None) -> None:
            calls.append((step, sorted(data)))

        def finish(self) -> None:
            calls.append("finished")

    def init(config: dict[str, Any], **settings: Any) -> FakeRun:
        json.dumps(config)
        calls.append((config["train"]["max_steps"], settings))
        return FakeRun()

    fake = types.ModuleType("wandb")
    fake.init = init  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", fake)
    train(tmp_path, monkeypatch, WandB(project="mine", mode="offline"))

    assert calls[0] == (4, {"project": "mine", "mode": "offline"})
    assert [call[0] for call in calls[1:3]] == [2, 4]
    assert "val_loss" in calls[2][1]
    assert calls[3] == "finished"
    assert FakeRun.summary["loss"] > 0


def test_weights_and_biases_that_is_absent_is_told_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingPackageError, match=r"not installed: pip install 'clearformer\[wandb\]'"):
        train(tmp_path, monkeypatch, WandB())


def test_what_is_no_logger_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        ConfigError, match=r"loggers: dict is not a logger: it needs start\(config\), log\(step, values\)"
    ):
        train(tmp_path, monkeypatch, {})
    assert not (tmp_path / "runs").exists()


def test_a_logger_that_fails_is_left_out_with_a_warning_even_of_a_quiet_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Failing(Kept):
        def log(self, step: int, values: Mapping[str, float]) -> None:
            raise OSError("no network")

    kept, failing = Kept(), Failing()
    reporter = LoggingReporter(Reporter(), [failing, kept])
    reporter.begin(cf.preset("quick", train={"max_steps": 2}), Progress())
    for step in (1, 2):
        reporter.stepped(Progress(step=step), {"step": step, "loss": 1.0})
    reporter.end()

    assert caplog.messages == ["Failing disabled for the rest of the run: OSError: no network"]
    assert kept.told == [2, (1, {"loss": 1.0}), (2, {"loss": 1.0}), {"loss": 1.0}]
    assert failing.told == [2]


def test_loggers_are_finished_once_where_a_run_cannot_begin(
    trained: Any, resumed: Any, run_folder: Any
) -> None:
    class Failing(Kept):
        def start(self, config: cf.RunConfig) -> None:
            raise OSError("no network")

    trained("a")
    kept, wider = Kept(), (f"train.pretrained={run_folder('a').path}", "model.d_model=12")
    with pytest.raises(ConfigError, match=r"train\.pretrained: "):
        trained("b", *wider, reporter=LoggingReporter(Reporter(), [kept]))
    assert kept.told == [13, {}]

    kept = Kept()
    with pytest.raises(ClearformerError, match="loggers: Failing cannot start: OSError: no network"):
        resumed("a", LoggingReporter(Reporter(), [kept, Failing()]), max_steps=20)
    assert kept.told == [20, {}]


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert JSONLines("~/metrics.jsonl").path == tmp_path / "metrics.jsonl"
    assert TensorBoard("~/curves").folder == str(tmp_path / "curves")
