"""What a run tells of its evaluations."""

from pathlib import Path
from typing import Any

import pytest

import clearformer as cf
from clearformer.cli.commands.runs import cells, describe
from clearformer.text import CharTokenizerSpec
from clearformer.training.config import RunConfig, TrainConfig
from clearformer.training.reporting.console import ConsoleReporter
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

    assert told(0.1, 0.1, 1.0).count("(~: measured on a fixed part") == 1
    assert "(~: measured on a fixed part" not in told(1.0, 1.0)


def test_a_held_out_loss_that_rises_is_remarked_on_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    def told(*losses: tuple[float, float], **more: float) -> str:
        reporter = ConsoleReporter()
        reporter.begin(RunConfig(), Progress())
        for step, (loss, share) in enumerate(losses, 1):
            line = {"loss": 2.0, "tokens_per_second": 7.0, "val_loss": loss, "val_share": share}
            reporter.stepped(Progress(step=1000 * step), line | more)
        reporter.end()
        return capsys.readouterr().err

    def of(share: float, *losses: float) -> list[tuple[float, float]]:
        return [(loss, share) for loss in losses]

    rise = "(the held-out loss was lowest around step 3,000 and has risen by 0.30 nats since; fewer steps or more"
    risen = (3.0, 2.5, 2.4, 2.6, 2.8, 2.8, 2.8)
    assert told(*of(1.0, *risen)).count(rise) == 1
    assert told(*of(0.1, *risen), *of(1.0, 2.3)).count(rise) == 1
    flat = (3.0, 2.5, 2.4, 2.5, 2.45, 2.51, 2.4)  # a small part varies
    assert "risen" not in told(*of(0.1, *flat), *of(1.0, 2.9))
    assert "risen" not in told(*of(1.0, *risen), val_accuracy=0.5)
    assert "risen" not in told(*of(1.0, 2.0, 3.0))
    assert "risen" not in told()


def test_texts_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """Where rich is not told otherwise, it reads `[red]` as a colour and `:car:` as a picture."""
    reporter = ConsoleReporter()
    reporter.say("run runs/:car:[red]")
    reporter.sampled("the [b] of :key:")
    told = capsys.readouterr().err
    assert "run runs/:car:[red]\n" in told
    assert "    the [b] of :key:\n" in told


def test_a_run_by_the_clock_foretells_its_steps(capsys: pytest.CaptureFixture[str]) -> None:
    def told(**train: Any) -> str:
        reporter = ConsoleReporter()
        reporter.begin(RunConfig(train=TrainConfig(**train)), Progress(step=10, seconds=1.0))
        for step in range(11, 130):
            # The first steps take a second each, those from the 50th on 0.2 s.
            gone = min(step - 10, 50) + max(0, step - 60) / 5
            reporter.stepped(Progress(step=step, seconds=1 + gone, wall_seconds=7 + gone, wall_after=3.0), {})
        return capsys.readouterr().err

    # After 100 steps 67 of 170 s have gone, and 3 are for the end: 100 s more, of 5 steps each.
    assert told(max_steps=None, max_wall_seconds=170).count("about 610 steps in all") == 1
    assert "steps in all" not in told(max_steps=1000, max_wall_seconds=170)


def test_a_run_is_listed_with_its_last_evaluation(trained: Any, run_folder: Any) -> None:
    trained("a", "train.max_steps=2")
    folder: RunFolder = run_folder("a")
    whole = describe(folder)
    Metrics(folder.metrics_file, 2).append({"step": 3, "loss": 1.5, "val_loss": 1.25, "val_share": 0.5})

    assert (whole["step"], whole["val_share"]) == (2, 1.0)
    last = describe(folder)
    assert (last["loss"], last["val_loss"], last["val_share"]) == (1.5, 1.25, 0.5)


def test_a_sample_does_not_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    ConsoleReporter().sampled("a\x1b[2Jb\n\tc")
    assert "    a\\x1b[2Jb\n" in capsys.readouterr().err


def test_of_a_run_saved_from_python_the_step_is_told_and_no_data(tmp_path: Path) -> None:
    """Its settings name the default data, which it was not trained on."""
    tokenizer = CharTokenizerSpec().train(["abc"])
    model = cf.build(cf.ModelConfig(vocab_size=tokenizer.vocab_size, d_model=8, n_layers=1))
    saved = cf.Run(model, tokenizer, step=60).save(tmp_path / "mine")
    row = describe(saved.folder)
    assert (row["error"], row["data"], row["step"]) == (None, None, 60)
    assert cells(row)[:3] == ("mine", "-", "60")
