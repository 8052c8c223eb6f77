"""What a run tells of its evaluations."""

from typing import Any

import pytest

from clearformer.cli.commands.runs import describe
from clearformer.training.config import RunConfig, TrainConfig
from clearformer.training.optim.schedules import Constant, WarmupStableDecay
from clearformer.training.reporting.console import ConsoleReporter
from clearformer.training.reporting.foretelling import loss_at_the_end
from clearformer.training.reporting.report import held_out
from clearformer.training.store.checkpoint import Progress
from clearformer.training.store.folder import Metrics, RunFolder


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({}, "-"),
        ({"val_loss": None, "val_share": None}, "-"),
        ({"val_loss": 2.5}, "2.5000"),
        ({"val_loss": 2.5, "val_share": 1.0}, "2.5000"),
        ({"val_loss": 2.5, "val_share": 0.1}, "~2.5000"),
    ],
)
def test_a_loss_of_a_part_is_marked(line: dict[str, Any], said: str) -> None:
    assert held_out(line) == said


def test_what_the_mark_means_is_said_once_and_only_where_it_stands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def told(*shares: float) -> str:
        reporter = ConsoleReporter()
        reporter.begin(RunConfig(), Progress())
        for share in shares:
            line = {"loss": 2.0, "tokens_per_second": 7.0, "val_loss": 2.5, "val_share": share}
            reporter.stepped(Progress(step=1), line)
        return capsys.readouterr().err

    assert told(0.1, 0.1, 1.0).count("(~ is measured on a part") == 1
    assert "(~ is measured on a part" not in told(1.0, 1.0)


def test_a_run_by_the_clock_foretells_its_steps(capsys: pytest.CaptureFixture[str]) -> None:
    def told(**train: Any) -> str:
        reporter = ConsoleReporter()
        reporter.begin(RunConfig(train=TrainConfig(**train)), Progress(step=10, seconds=1.0))
        for step in range(11, 60):
            gone = (step - 10) / 5
            reporter.stepped(Progress(step=step, seconds=1 + gone, wall_seconds=7 + gone, wall_after=3.0), {})
        return capsys.readouterr().err

    # After 25 steps of 0.2 s 12 of 100 s have gone, and 3 are for the end: 85 s more, of 5 steps each.
    assert told(max_steps=None, max_wall_seconds=100).count("about 460 steps in all") == 1
    assert "steps in all" not in told(max_steps=1000, max_wall_seconds=100)


def test_at_half_time_a_run_whose_rate_falls_foretells_its_loss(capsys: pytest.CaptureFixture[str]) -> None:
    def told(schedule: str, *losses: float) -> str:
        reporter = ConsoleReporter()
        train = TrainConfig(
            max_steps=80, schedule=WarmupStableDecay(decay=0.8) if schedule == "wsd" else Constant()
        )
        reporter.begin(RunConfig(train=train.replace(warmup_steps=0)), Progress())
        for i, loss in enumerate(losses, start=1):
            line = {"loss": 2.0, "tokens_per_second": 7.0, "val_loss": loss, "val_share": 1.0}
            reporter.stepped(Progress(step=10 * i, seconds=float(i)), line)
        return capsys.readouterr().err

    assert told("wsd", 3.0, 2.0, 1.9, 1.7, 1.6, 1.5).count("about 1.40 held-out at the end") == 1
    assert "at the end" not in told("wsd", 3.0, 2.0, 1.9)
    assert "at the end" not in told("constant", 3.0, 2.0, 1.9, 1.7, 1.6, 1.5)


def test_a_loss_is_foretold_from_what_was_evaluated_around_a_quarter_and_a_half() -> None:
    assert loss_at_the_end([(0.25, 2.0), (0.5, 1.8)]) == pytest.approx(1.6)
    assert loss_at_the_end([(0.125, 2.2), (0.5, 1.8), (1.0, 1.0)]) == pytest.approx(1.6)
    assert loss_at_the_end([(0.3, 2.0), (0.5, 1.8)]) is None
    assert loss_at_the_end([(0.1, 2.0), (0.4, 1.8)]) is None
    assert loss_at_the_end([]) is None


def test_a_run_is_listed_with_its_last_evaluation(trained: Any, run_folder: Any) -> None:
    trained("a", "train.max_steps=2")
    folder: RunFolder = run_folder("a")
    whole = describe(folder)
    Metrics(folder.metrics_file, 2).append({"step": 3, "loss": 1.5, "val_loss": 1.25, "val_share": 0.5})

    assert (whole["step"], whole["val_share"]) == (2, 1.0)
    last = describe(folder)
    assert (last["loss"], last["val_loss"], last["val_share"]) == (1.5, 1.25, 0.5)
