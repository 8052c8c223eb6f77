import itertools
import json
import math
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from clearformer import threads
from clearformer.cost.rates import Rate
from clearformer.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    DeviceError,
    DiskError,
    Interrupted,
    NonFiniteError,
    RunError,
    RunInUseError,
    TokenizerError,
)
from clearformer.evaluation import Evaluation, evaluate_split
from clearformer.model import build
from clearformer.runs.kept_weights import find_weights
from clearformer.training import limits, loop, setup
from clearformer.training.config import RunConfig
from clearformer.training.evaluator import Evaluator
from clearformer.training.loop import Training, TrainResult, train
from clearformer.training.planning import duration
from clearformer.training.processes.distributed import Processes
from clearformer.training.processes.interrupts import ENDING, Interrupts
from clearformer.training.reporting.report import Reporter
from clearformer.training.setup import open_task
from clearformer.training.step import StepResult, TrainStep
from clearformer.training.store import checkpoint_store, state
from clearformer.training.store.checkpoint import (
    MANIFEST,
    MODEL,
    OPTIMIZER,
    STATE,
    Checkpoint,
    Progress,
    describe,
    list_checkpoints,
    load_checkpoint,
    step_of,
)
from clearformer.training.store.checkpoint_store import CheckpointStore
from clearformer.training.store.folder import Metrics, RunFolder, ThreadCounts, read_metrics
from clearformer.training.store.lock import one_writer
from clearformer.training.tasks import NextTokenTask, next_token

Trained = Callable[..., TrainResult]
Resumed = Callable[..., TrainResult]
Folders = Callable[[str], RunFolder]

CPU = torch.device("cpu")
LAYERS = {f"grad_norm/{layer}" for layer in ("embed", "position", "blocks.0", "blocks.1", "ln_final")}
DEEPER = "model.n_layers=2"
LINE = {"step", "tokens", "seconds", "loss", "lr", "grad_norm", "tokens_per_second"} | LAYERS
OF_THE_CLOCK = {"seconds", "tokens_per_second"}


class At(Reporter):
    """Does something when a step is done, and remembers what it was told."""

    def __init__(self, step: int = -1, action: Callable[[], object] = lambda: None) -> None:
        self.step, self.action = step, action
        self.said: list[str] = []
        self.samples: list[str] = []
        self.ended = False

    def say(self, message: str) -> None:
        self.said.append(message)

    def stepped(self, progress: Progress, metrics: object) -> None:
        if progress.step == self.step:
            self.action()

    def sampled(self, text: str) -> None:
        self.samples.append(text)

    def end(self) -> None:
        self.ended = True


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0)


class CrashedError(Exception):
    """What no code of ours expects."""


def crash() -> None:
    raise CrashedError


def lines_of(folder: RunFolder) -> list[dict[str, Any]]:
    """A run's metrics but for what depends on the clock."""
    return [
        {name: value for name, value in line.items() if name not in OF_THE_CLOCK}
        for line in read_metrics(folder.metrics_file)
    ]


def last_checkpoint(folder: RunFolder) -> Path:
    return list_checkpoints(folder.checkpoints)[0]


def assert_same_run(a: RunFolder, b: RunFolder) -> None:
    """Weights, state of the optimizers, progress and metrics are the same to the bit."""
    ours, theirs = last_checkpoint(a), last_checkpoint(b)
    for name in (MODEL, OPTIMIZER):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes()
    assert replace(load_checkpoint(ours).progress, seconds=0) == replace(
        load_checkpoint(theirs).progress, seconds=0
    )
    assert lines_of(a) == lines_of(b)


def same_weights(a: TrainResult, b: TrainResult) -> bool:
    return all(torch.equal(p, q) for p, q in zip(a.model.parameters(), b.model.parameters(), strict=True))


@pytest.fixture
def begun(configure: Callable[..., RunConfig], run_folder: Folders) -> Callable[..., Training]:
    """A new run that is ready for its first step."""

    def begun(name: str, *settings: str, reporter: Reporter | None = None) -> Training:
        config = configure(*settings)
        task, config = open_task(config, CPU, Processes())
        training = Training(config, run_folder(name), task, CPU, Processes(), reporter or Reporter())
        training.start()
        return training

    return begun


class Clock:
    """A clock that shows what the test says; time passes only in what the test names."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slower = 1.0  # everything takes so many times as long

    def goes_by(self, seconds: float) -> None:
        self.now += seconds * self.slower

    def takes(self, seconds: float, work: Callable[..., Any]) -> Callable[..., Any]:
        def working(*arguments: Any, **options: Any) -> Any:
            self.goes_by(seconds)
            return work(*arguments, **options)

        return working


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """An eighth of a second for the loss of each batch, a hundred seconds for all that is not a step."""
    clock = Clock()
    monkeypatch.setattr(loop.time, "perf_counter", lambda: clock.now)
    monkeypatch.setattr(next_token, "next_token_loss", clock.takes(0.125, next_token.next_token_loss))
    for module, name in ((next_token, "evaluate_split"), (state, "weights_of"), (next_token, "generate")):
        monkeypatch.setattr(module, name, clock.takes(100.0, getattr(module, name)))
    return clock


# --- a run ------------------------------------------------------------------------------------------------


def test_a_run_learns(trained: Trained, run_folder: Folders) -> None:
    outcome = trained("a", "train.max_steps=60", "train.lr=0.02")

    losses = [line["loss"] for line in read_metrics(run_folder("a").metrics_file)]
    n_tokens = outcome.task.tokenizer.vocab_size
    assert losses[0] == pytest.approx(math.log(n_tokens), abs=0.1)  # nats: at first all tokens are as likely
    assert losses[-1] < losses[0] - 0.5
    assert outcome.evaluation is not None
    assert outcome.evaluation.loss == outcome.progress.val_loss
    assert isinstance(outcome.evaluation, Evaluation)
    assert isinstance(outcome.task, NextTokenTask)
    assert outcome.evaluation.n_tokens == len(outcome.task.dataset.splits["val"]) - 1  # all of it


def test_every_line_has_what_the_contract_names(trained: Trained, run_folder: Folders) -> None:
    trained("a", DEEPER, "train.log_every=3", "train.eval_every=4")

    lines = read_metrics(run_folder("a").metrics_file)
    assert [line["step"] for line in lines] == [3, 4, 6, 8, 9, 12, 13]
    for line in lines:
        evaluated = line["step"] in (4, 8, 12, 13)
        assert line.keys() == LINE | ({"val_loss", "val_share"} if evaluated else set())
        assert math.hypot(*(line[layer] for layer in LAYERS)) == pytest.approx(line["grad_norm"], rel=1e-6)
        assert line["tokens"] == line["step"] * 4 * 7
        assert line["grad_norm"] > 0
        assert line["tokens_per_second"] > 0
    assert [line["seconds"] for line in lines] == sorted(line["seconds"] for line in lines)


def test_a_step_is_what_the_seed_makes_it(trained: Trained) -> None:
    a, b, other = trained("a"), trained("b"), trained("c", "seed=2")

    assert same_weights(a, b)
    assert not same_weights(a, other)


def state_of_torch() -> tuple[bool, ...]:
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "own_settings", [torch.no_grad, torch.inference_mode, partial(torch.autocast, "cpu")]
)
def test_what_a_notebook_has_set_in_torch_changes_no_run(
    trained: Trained, own_settings: Callable[[], AbstractContextManager[object]], dtype: str
) -> None:
    settings = ("train.max_steps=3", f"train.dtype={dtype}")
    with own_settings():
        before = state_of_torch()
        there = trained("a", *settings)
        assert state_of_torch() == before

    assert same_weights(there, trained("b", *settings))


def test_without_held_out_text_nothing_is_evaluated(trained: Trained, run_folder: Folders) -> None:
    outcome = trained("a", "data.val_fraction=0.0")

    assert outcome.evaluation is None
    assert all("val_loss" not in line for line in read_metrics(run_folder("a").metrics_file))
    assert load_checkpoint(last_checkpoint(run_folder("a"))).progress.best_step is None


@pytest.mark.parametrize(
    "settings",
    [
        ("train.eval_every=1",),
        ("train.eval_every=1", "train.eval_flops_fraction=none"),
        ("train.sample_every=1", "train.sample_tokens=3"),
        ("train.checkpoint_every=1",),
        ("train.log_every=7",),
    ],
    ids="+".join,
)
def test_what_happens_between_steps_never_changes_them(trained: Trained, settings: tuple[str, ...]) -> None:
    quiet = ("train.eval_every=1000", "model.dropout=0.2", "train.max_steps=8")

    assert same_weights(trained("a", *quiet), trained("b", *quiet, *settings))


def test_samples_on_the_way_are_told(trained: Trained) -> None:
    reporter = At()

    trained(
        "a", "train.sample_every=5", "train.sample_tokens=11", "train.sample_prompt=the", reporter=reporter
    )

    assert [len(sample) for sample in reporter.samples] == [11, 11]


def test_a_prompt_that_the_text_cannot_spell_is_refused_before_anything_is_done(
    trained: Trained, run_folder: Folders
) -> None:
    with pytest.raises(TokenizerError, match=r"^train\.sample_prompt: 'Ж'"):
        trained("a", "train.sample_every=5", "train.sample_prompt=Ж")
    words = ("tokenizer.kind=wordpiece", "tokenizer.vocab_size=90")
    with pytest.raises(TokenizerError, match=r"^train\.sample_prompt: '  ' has no token of this tokenizer"):
        trained("a", *words, "train.sample_every=5", "train.sample_prompt=  ")
    assert not run_folder("a").path.exists()


def test_an_empty_prompt_is_a_new_line(trained: Trained) -> None:
    reporter = At()
    trained("a", "train.sample_every=5", "train.sample_prompt=", "train.sample_tokens=11", reporter=reporter)
    assert [len(sample) for sample in reporter.samples] == [11, 11]


@pytest.mark.parametrize("first", ["the", "x" * 120])  # WordPiece knows no word of more than 100 characters
def test_a_sample_begins_with_the_text_s_first_token_where_there_is_no_new_line(
    trained: Trained, tmp_path: Path, first: str
) -> None:
    (tmp_path / "words.txt").write_text(f"{first} cat sat on the mat, " + "the cat sat on the mat, " * 200)
    words = (f"data.path={tmp_path / 'words.txt'}", "tokenizer.kind=wordpiece", "tokenizer.vocab_size=90")
    reporter = At()
    outcome = trained("a", *words, "train.sample_every=5", "train.sample_tokens=11", reporter=reporter)
    assert all(reporter.samples)
    assert outcome.task.final_sample(outcome.model)


def test_the_folder_holds_what_was_decided(
    trained: Trained, run_folder: Folders, text_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(text_file.parent)
    settings = ("train.dtype=auto", "train.compile=auto", "train.max_steps=2", f"data.path={text_file.name}")
    monkeypatch.setattr(setup, "resolve_dtype", lambda name, device: "bfloat16")
    rate = Rate(
        "a cpu", "bfloat16", 1e9, "measured", 0.5
    )  # not measured: products in bfloat16 take seconds here
    monkeypatch.setattr(duration, "measured_rate", lambda *_, **__: rate)
    outcome = trained("a", *settings)

    config = run_folder("a").read_config()
    assert config.train.dtype == "bfloat16"
    assert config.train.compile is False
    assert config.model.vocab_size == outcome.task.tokenizer.vocab_size
    assert config.data.path == str(text_file.resolve())  # so that the run can be resumed from anywhere


def test_a_reporter_is_told_of_the_end_whatever_it_was(trained: Trained) -> None:
    reporter = At(3, crash)

    with pytest.raises(CrashedError):
        trained("a", reporter=reporter)
    assert reporter.ended


@pytest.mark.parametrize("setting", [True, False])  # on a CPU they are used always
def test_deterministic_kernels_are_for_the_run_alone(trained: Trained, setting: bool) -> None:
    seen: list[bool] = []

    def look() -> None:
        seen.append(torch.are_deterministic_algorithms_enabled())
        raise CrashedError

    with pytest.raises(CrashedError):
        trained("a", f"train.deterministic={setting}", reporter=At(3, look))
    assert seen == [True]
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_number_of_threads_stays_where_runs_are_to_be_the_same_to_the_bit(
    trained: Trained, run_folder: Folders, deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its steps and in its evaluations."""
    monkeypatch.setattr(threads, "most_threads", lambda: 2)
    monkeypatch.setattr(threads.free_cores(), "number", lambda: 1)
    found: list[int] = []
    evaluate = NextTokenTask.evaluate

    def evaluated(*arguments: Any, **settings: Any) -> Any:
        found.append(torch.get_num_threads())
        return evaluate(*arguments, **settings)

    monkeypatch.setattr(NextTokenTask, "evaluate", evaluated)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        trained("a", f"train.deterministic={deterministic}", "train.max_steps=2")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert set(found) == {2 if deterministic else 1}
    assert set(ThreadCounts.read(run_folder("a").threads_file)) == set(found)


@pytest.mark.parametrize(("warmup", "is_told"), [(3, False), (4, False), (5, True)])
def test_a_warmup_that_the_run_ends_in_is_told(trained: Trained, warmup: int, is_told: bool) -> None:
    reporter = At()
    trained("a", "train.max_steps=4", f"train.warmup_steps={warmup}", reporter=reporter)
    told = (
        f"the learning rate never reaches train.lr: train.max_steps=4 is within train.warmup_steps={warmup}"
    )
    assert (told in reporter.said) == is_told


# --- where a run ends -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("clock")
def test_seconds_are_those_of_steps_alone(trained: Trained) -> None:
    outcome = trained(
        "a",
        "train.max_seconds=1.0",
        "train.max_steps=none",
        "train.eval_every=2",
        "train.checkpoint_every=3",
        "train.sample_every=2",
        "train.sample_tokens=3",
    )

    assert outcome.progress.step == 8
    assert outcome.progress.seconds == 1.0


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(("max_steps", "max_seconds", "steps"), [(5, 1.0, 5), (13, 1.0, 8)])
def test_the_nearer_limit_ends_the_run(
    trained: Trained, max_steps: int, max_seconds: float, steps: int
) -> None:
    outcome = trained("a", f"train.max_steps={max_steps}", f"train.max_seconds={max_seconds}")

    assert outcome.progress.step == steps


@pytest.mark.usefixtures("clock")
def test_compiling_takes_none_of_the_runs_time(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clearformer.training.step.compile_step", lambda function, **_: function)
    reporter = At()

    outcome = trained(
        "a", "train.max_seconds=1.0", "train.max_steps=none", "train.compile=true", reporter=reporter
    )

    assert outcome.progress.step == 8
    assert len([message for message in reporter.said if "compil" in message]) == 2


@pytest.mark.parametrize("compiled", [True, False])
def test_the_load_is_measured_anew_after_compiling_alone(
    trained: Trained, monkeypatch: pytest.MonkeyPatch, compiled: bool
) -> None:
    resets: list[bool] = []
    monkeypatch.setattr(threads.free_cores(), "forget", lambda: resets.append(True))
    monkeypatch.setattr("clearformer.training.step.compile_step", lambda function, **_: function)
    trained("a", f"train.compile={compiled}".lower(), "train.max_steps=1")
    assert len(resets) == compiled


@pytest.fixture
def wall_clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """An eighth of a second for the loss of each batch, and a quarter for each row of the held-out text."""
    clock, evaluate, evaluate_both = Clock(), NextTokenTask.evaluate, NextTokenTask.evaluate_whole_and_part
    monkeypatch.setattr(loop.time, "perf_counter", lambda: clock.now)
    monkeypatch.setattr(next_token, "next_token_loss", clock.takes(0.125, next_token.next_token_loss))

    def evaluated(task: NextTokenTask, model: Any, dtype: Any, n_rows: int | None = None) -> Any:
        clock.goes_by((n_rows or task.n_held_out) / 4)
        return evaluate(task, model, dtype, n_rows)

    def evaluated_both(task: NextTokenTask, model: Any, dtype: Any, n_rows: int) -> Any:
        clock.goes_by(task.n_held_out / 4)  # each row is read once
        return evaluate_both(task, model, dtype, n_rows)

    monkeypatch.setattr(NextTokenTask, "evaluate", evaluated)
    monkeypatch.setattr(NextTokenTask, "evaluate_whole_and_part", evaluated_both)
    return clock


BY_THE_CLOCK = ("train.max_steps=none", "train.schedule=wsd", "train.schedule.decay=1.0", "train.lr=0.5")


@pytest.mark.parametrize("eval_every", [7, 1000])
@pytest.mark.parametrize("checkpoint_every", ["10", "none"])
def test_a_run_by_the_clock_leaves_time_for_its_end(
    trained: Trained, run_folder: Folders, wall_clock: Clock, eval_every: int, checkpoint_every: str
) -> None:
    began, most = wall_clock.now, 60.0
    every = (f"train.eval_every={eval_every}", f"train.checkpoint_every={checkpoint_every}")
    outcome = trained("a", *BY_THE_CLOCK, f"train.max_wall_seconds={most}", *every)
    spent = wall_clock.now - began
    assert outcome.evaluation is not None
    longest = 0.125 + 40 / 4  # a step, and an evaluation for which no time was left
    assert most - limits.SECONDS_TO_REPORT - longest < spent <= most - limits.SECONDS_TO_REPORT + 0.125
    told = rates(run_folder("a"))
    assert told[0] == 0.5  # what went by before the first step is no part of the schedule
    assert told == sorted(told, reverse=True)
    assert told[-1] < 0.5 * 0.25


def test_a_run_by_the_clock_leaves_time_for_its_sample(
    trained: Trained, wall_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = (*BY_THE_CLOCK, "train.max_wall_seconds=60", "train.eval_every=1000")
    steps, most = [], []
    for name, seconds in (("a", 0.0), ("b", 7.0)):

        def fitted(task: Any, model: Any, longest: float) -> float:
            most.append(longest)
            return seconds  # noqa: B023

        monkeypatch.setattr(NextTokenTask, "fit_final_sample", fitted)
        steps.append(trained(name, *settings).progress.step)
    assert steps[0] - steps[1] == 7.0 / 0.125
    assert most == [0.03 * 60] * 2


def test_as_much_time_is_kept_for_the_last_checkpoint_as_the_one_before_took(
    begun: Callable[..., Training],
) -> None:
    training = begun("a", *BY_THE_CLOCK, "train.max_wall_seconds=60")
    usual = training.wall_clock()["wall_after"]

    for seconds in (0.3, 20.0):
        training.store.writer.seconds = seconds
        assert training.wall_clock()["wall_after"] == pytest.approx(usual + seconds - 0.3)


@pytest.mark.parametrize("checkpoint_every", ["10", "none"])
def test_the_last_evaluation_reads_each_row_once_and_no_more_time_is_kept_for_it(
    trained: Trained, wall_clock: Clock, checkpoint_every: str
) -> None:
    settings = (*BY_THE_CLOCK, "train.max_wall_seconds=60", f"train.checkpoint_every={checkpoint_every}")
    outcome = trained("a", *settings, "train.eval_every=1000", "train.eval_flops_fraction=0.1")
    assert outcome.progress.wall_after == 77 / 4 + limits.SECONDS_TO_REPORT  # of 77 rows
    assert outcome.progress.best_n_rows == (12 if checkpoint_every == "10" else 77)


def test_a_delay_in_an_evaluation_of_few_rows_costs_no_more_than_itself(
    trained: Trained, wall_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be taken for the pace of the whole held-out text, and the run would end at once."""
    settings = (*BY_THE_CLOCK, "train.max_wall_seconds=60", "train.checkpoint_every=none")
    settings = (*settings, "train.eval_every=8", "train.eval_flops_fraction=0.005")
    steps, evaluate, few = [], NextTokenTask.evaluate, itertools.count()
    for name, late in (("a", -1), ("b", 7)):
        few = itertools.count()

        def evaluated(task: Any, model: Any, dtype: Any, n_rows: int | None = None) -> Any:
            wall_clock.goes_by(2.0 if n_rows == 1 and next(few) == late else 0.0)  # noqa: B023
            return evaluate(task, model, dtype, n_rows)

        monkeypatch.setattr(NextTokenTask, "evaluate", evaluated)
        steps.append(trained(name, *settings).progress.step)
    assert steps[0] > 100
    assert 0 < steps[0] - steps[1] <= 2.0 / 0.125 + 1


def test_a_machine_that_slows_down_on_the_way_leaves_more_time_for_the_end(
    trained: Trained, wall_clock: Clock
) -> None:
    def slow_down() -> None:
        wall_clock.slower = 2.0

    began, every = wall_clock.now, ("train.eval_every=1000", "train.checkpoint_every=none")
    outcome = trained("a", *BY_THE_CLOCK, "train.max_wall_seconds=90", *every, reporter=At(100, slow_down))
    assert outcome.evaluation is not None
    assert 90 - 2 * (limits.SECONDS_TO_REPORT + 0.25) <= wall_clock.now - began <= 90


def test_what_went_by_before_the_training_counts(
    configure: Callable[..., RunConfig], run_folder: Folders, wall_clock: Clock
) -> None:
    config = configure(*BY_THE_CLOCK, "train.max_wall_seconds=60", "train.eval_every=1000")
    steps = []
    for name, before in (("at once", 0), ("later", 20)):
        outcome = train(config, run_folder(name), Reporter(), began=wall_clock.now - before)
        steps.append(outcome.progress.step)
    assert steps[0] - steps[1] == 20 / 0.125


def test_a_run_whose_time_is_over_before_it_begins_takes_one_step(
    trained: Trained, wall_clock: Clock
) -> None:
    told = At()
    outcome = trained("a", *BY_THE_CLOCK, "train.max_wall_seconds=1", reporter=told)
    assert outcome.progress.step == 1
    assert outcome.evaluation is not None
    [late] = [
        line for line in told.said if line.startswith("train.max_wall_seconds=1 is over after one step")
    ]
    assert f"the start took {outcome.progress.wall_before:.1f} s" in late
    assert f"takes about {outcome.progress.wall_after:.1f} s" in late


def test_a_run_with_time_for_its_steps_says_nothing_of_a_late_start(
    trained: Trained, wall_clock: Clock
) -> None:
    told = At()
    trained("a", *BY_THE_CLOCK, "train.max_wall_seconds=60", reporter=told)
    assert not [line for line in told.said if "over after one step" in line]


def test_a_run_by_the_clock_goes_on_with_the_seconds_that_are_left(
    trained: Trained, resumed: Resumed, run_folder: Folders, wall_clock: Clock
) -> None:
    settings = (*BY_THE_CLOCK, "train.max_wall_seconds=60", "train.eval_every=1000")
    whole = trained("whole", *settings)
    with pytest.raises(Interrupted):
        trained("stopped", *settings, reporter=At(100, interrupt))
    wall_clock.now += 1000
    outcome = resumed("stopped")
    again = 3 * 4 * 4 / 4  # the rows that are measured once more
    assert whole.progress.step - outcome.progress.step == pytest.approx(again / 0.125, abs=2)
    assert resumed("stopped").progress == outcome.progress  # what is finished is finished


# --- the learning rate ------------------------------------------------------------------------------------


def rates(folder: RunFolder) -> list[float]:
    return [line["lr"] for line in read_metrics(folder.metrics_file)]


def test_rates_by_steps(trained: Trained, run_folder: Folders) -> None:
    trained("a", "train.lr=0.5", "train.warmup_steps=3", "train.schedule=cosine", "train.schedule.final=0.2")

    decay = [0.2 + 0.8 * (1 + math.cos(math.pi * (step - 3) / 10)) / 2 for step in range(3, 13)]
    assert rates(run_folder("a")) == pytest.approx([0.5 * f for f in (1 / 3, 2 / 3, 1, *decay)])


@pytest.mark.usefixtures("clock")
def test_rates_by_seconds(trained: Trained, run_folder: Folders) -> None:
    trained("a", "train.lr=0.5", "train.max_steps=1000", "train.max_seconds=1.0", "train.schedule=wsd")

    factors = [min(1, (1 - step / 8) / 0.4) for step in range(8)]
    assert rates(run_folder("a")) == pytest.approx([0.5 * factor for factor in factors])


def test_the_schedule_moves_every_group_and_the_paper_is_met_exactly(begun: Callable[..., Training]) -> None:
    """Vaswani et al. 2017: d^-0.5 min(s^-0.5, s w^-1.5), with s from 1."""
    lr = (6 * 4) ** -0.5
    settings = (
        "train.optimizer=muon",
        "train.schedule=inverse_sqrt",
        "train.warmup_steps=4",
        f"train.lr={lr}",
    )
    training = begun("a", *settings)
    for s in (1, 3, 4, 5, 12):
        paper = 6**-0.5 * min(s**-0.5, s * 4**-1.5)
        factor = training.train_step.lr_factor(Progress(step=s - 1))
        training.train_step.set_learning_rates(factor)
        assert lr * factor == pytest.approx(paper, rel=1e-12)
        muon, adamw = training.state.optimizers
        assert muon.param_groups[0]["lr"] == pytest.approx(paper)
        assert adamw.param_groups[0]["lr"] == pytest.approx(paper / lr * 3e-3)


# --- gradients --------------------------------------------------------------------------------------------


def gradients(training: Training) -> dict[str, Tensor]:
    training.train_step.gradients(0)
    return {name: p.grad.clone() for name, p in training.model.named_parameters() if p.grad is not None}


def test_a_batch_in_parts_has_the_gradient_of_the_whole(begun: Callable[..., Training]) -> None:
    whole, parts = gradients(begun("a")), gradients(begun("b", "train.grad_accum_steps=4"))

    assert whole.keys() == parts.keys()
    for name in whole:
        torch.testing.assert_close(parts[name], whole[name], atol=1e-6, rtol=1e-5)


def test_the_loss_of_a_batch_in_parts_is_the_mean(begun: Callable[..., Training]) -> None:
    torch.testing.assert_close(
        begun("a").train_step.gradients(0),
        begun("b", "train.grad_accum_steps=2").train_step.gradients(0),
    )


def test_parts_that_do_not_divide_the_batch_are_refused(configure: Callable[..., RunConfig]) -> None:
    with pytest.raises(ConfigError, match=r"train\.grad_accum_steps: 3 does not divide train\.batch_size=4"):
        configure("train.grad_accum_steps=3")


def test_gradients_are_scaled_down_to_the_limit(begun: Callable[..., Training]) -> None:
    free, clipped = begun("a", "train.grad_clip_norm=none"), begun("b", "train.grad_clip_norm=0.01")
    whole = gradients(free)
    small = gradients(clipped)

    norm = torch.linalg.vector_norm(clipped.train_step.parameter_norms()[1])
    clipped.train_step.clip_gradients(norm, 0.01)

    assert float(norm) == pytest.approx(
        math.sqrt(sum(float(g.square().sum()) for g in whole.values())), rel=1e-5
    )
    assert float(torch.linalg.vector_norm(free.train_step.parameter_norms()[1])) == pytest.approx(float(norm))
    for name, p in clipped.model.named_parameters():
        torch.testing.assert_close(p.grad, small[name] * 0.01 / norm, rtol=1e-3, atol=1e-7)
    for name, p in free.model.named_parameters():
        assert torch.equal(p.grad, whole[name])  # type: ignore[arg-type]


def test_dropout_is_drawn_anew_at_every_step_and_place(begun: Callable[..., Training]) -> None:
    step_of_run = begun("a").train_step
    seeds = set()
    for rank in range(3):
        step_of_run.processes = Processes(rank, 3)
        seeds |= {step_of_run.dropout_seed(step) for step in range(5)}

    assert len(seeds) == 15


def test_the_average_of_the_weights_is_what_is_kept(trained: Trained, run_folder: Folders) -> None:
    trained("raw", "train.checkpoint_every=1", "train.keep_last=3", "train.max_steps=3")
    trained("a", "train.ema=0.15", "train.max_steps=3")

    folder = run_folder("raw").checkpoints
    raw = [load_file(folder / f"step-{step:08d}" / MODEL) for step in (1, 2, 3)]
    kept = load_checkpoint(last_checkpoint(run_folder("a")))
    torch.manual_seed(1)
    start = build(run_folder("a").read_config().model).state_dict()
    for name, average in kept.model.items():
        expected = start[name]
        for step, weights in enumerate(raw):
            decay = min(0.15, (1 + step) / (10 + step))
            expected = decay * expected + (1 - decay) * weights[name]
        torch.testing.assert_close(average, expected)
        assert torch.equal(kept.optimizer[name + ".weight_now"], raw[-1][name])


# --- memory -----------------------------------------------------------------------------------------------


def test_a_run_on_a_cpu_keeps_the_memory_that_its_steps_free(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    monkeypatch.setattr("clearformer.training.step.keep_freed_memory", lambda: calls.append(True))

    trained("a", "train.device=cpu", "train.compile=false")

    assert calls == [True]


# --- compilation ------------------------------------------------------------------------------------------


def test_a_compiled_step_is_used_and_changes_nothing(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def compile_(
        function: Callable[..., Tensor], dynamic: bool | None, any_threads: bool
    ) -> Callable[..., Tensor]:
        assert dynamic is None  # every batch of a text has one shape
        assert any_threads

        def compiled(*arguments: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            return function(*arguments)

        return compiled

    monkeypatch.setattr("clearformer.training.step.compile_step", compile_)

    assert same_weights(trained("a", "train.compile=true"), trained("b"))
    assert calls == 1 + 13  # once to compile it


def test_where_compiling_fails_the_run_goes_on_and_says_so(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(function: object, **_: object) -> Callable[..., Tensor]:
        def compiled(*arguments: Tensor) -> Tensor:
            raise RuntimeError("Python.h: No such file\nand much more")

        return compiled

    monkeypatch.setattr("clearformer.training.step.compile_step", broken)
    reporter = At()

    assert same_weights(trained("a", "train.compile=true", reporter=reporter), trained("b"))
    assert reporter.said[-1] == "compiling failed, continuing without it: Python.h: No such file"


@pytest.mark.parametrize("where", ["step", "compiled"])
def test_full_memory_ends_a_run_in_one_line_that_says_what_helps(
    where: str, trained: Trained, run_folder: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while compiling, whose other failures are gone on without."""

    def full(*_: object, **__: object) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 6.13 GiB. GPU 0 has\nmore")

    if where == "step":
        monkeypatch.setattr(Training, "step", full)
    else:
        monkeypatch.setattr("clearformer.training.step.compile_step", lambda *_, **__: full)
    reporter = At()

    with pytest.raises(DeviceError) as found:
        trained("a", f"train.compile={where == 'compiled'}".lower(), reporter=reporter)

    assert str(found.value).startswith(
        "CUDA out of memory. Tried to allocate 6.13 GiB; raise train.grad_accum_steps"
    )
    assert not any("continuing without" in line for line in reporter.said)


# --- going on ---------------------------------------------------------------------------------------------

VARIANTS = [
    ("train.optimizer=adam", "train.schedule=constant"),
    ("train.optimizer=adamw", "train.schedule=cosine", "train.warmup_steps=20"),
    ("train.optimizer=muon", "train.schedule=wsd", "train.lr=0.02"),
    ("train.schedule=inverse_sqrt", "train.warmup_steps=7", "data.order=epochs"),
    ("model.dropout=0.2", "train.grad_accum_steps=2", "train.label_smoothing=0.1"),
    (
        "train.optimizer=muon",
        "train.ema=0.9",
        "model.dropout=0.1",
        "train.grad_clip_norm=0.3",
        "train.deterministic=true",
    ),
    (
        "train.dtype=bfloat16",
        "model.tie_embeddings=false",
        "model.norm=rmsnorm",
        "model.position=rope",
        "seed=7",
    ),
]


@pytest.mark.parametrize("settings", VARIANTS, ids=" ".join)
def test_a_run_that_was_stopped_ends_as_one_that_was_not(
    trained: Trained, resumed: Resumed, run_folder: Folders, settings: tuple[str, ...]
) -> None:
    settings = (*settings, "train.max_steps=24")
    trained("whole", *settings)

    with pytest.raises(Interrupted):
        trained("stopped", *settings, reporter=At(11, interrupt))
    assert step_of(last_checkpoint(run_folder("stopped"))) == 11
    resumed("stopped")

    assert_same_run(run_folder("stopped"), run_folder("whole"))


@pytest.mark.parametrize("settings", VARIANTS[-2:], ids=" ".join)
def test_a_run_that_crashed_ends_as_one_that_did_not(
    trained: Trained, resumed: Resumed, run_folder: Folders, settings: tuple[str, ...]
) -> None:
    """It goes on from the checkpoint before the crash, and makes the lines after that again."""
    settings = (*settings, "train.max_steps=26", "train.checkpoint_every=6")
    trained("whole", *settings)

    with pytest.raises(CrashedError):
        trained("crashed", *settings, reporter=At(3, crash))
    for step in (16, 17, 23):
        with pytest.raises(CrashedError):
            resumed("crashed", reporter=At(step, crash))
    resumed("crashed")

    assert_same_run(run_folder("crashed"), run_folder("whole"))


def test_the_mean_of_the_last_checkpoints_is_that_of_a_run_that_was_not_stopped(
    trained: Trained, resumed: Resumed, run_folder: Folders
) -> None:
    """Signals leave the checkpoints 11 and 14, an end that was moved 17; all that are due are there besides."""
    settings = ("train.schedule=constant", "train.checkpoint_every=5", "train.keep_last=3")
    trained("whole", *settings, "train.max_steps=22")

    with pytest.raises(Interrupted):
        trained("stopped", *settings, "train.max_steps=17", reporter=At(11, interrupt))
    with pytest.raises(Interrupted):
        resumed("stopped", reporter=At(14, interrupt))
    resumed("stopped")
    resumed("stopped", max_steps=22)

    means = [
        find_weights(run_folder(name), checkpoint, n)
        for name in ("whole", "stopped")
        for checkpoint, n in (("latest", 3), ("20", 2))
    ]
    assert [path.name for path, _ in means[:2]] == [path.name for path, _ in means[2:]]
    for (_, whole), (_, stopped) in zip(means[:2], means[2:], strict=True):
        assert all(torch.equal(weight, stopped[name]) for name, weight in whole.items())


def test_a_run_limited_by_time_goes_on_by_the_time_it_had_left(
    trained: Trained, resumed: Resumed, run_folder: Folders, clock: Clock
) -> None:
    settings = ("train.max_seconds=4.0", "train.max_steps=none", "train.schedule=wsd")
    trained("whole", *settings)

    with pytest.raises(Interrupted):
        trained("stopped", *settings, reporter=At(17, interrupt))
    clock.now = 5.0
    outcome = resumed("stopped")

    assert outcome.progress.seconds == 4.0
    assert_same_run(run_folder("stopped"), run_folder("whole"))


def test_a_damaged_checkpoint_is_passed_over_and_the_end_is_the_same(
    trained: Trained, resumed: Resumed, run_folder: Folders
) -> None:
    settings = ("train.max_steps=20", "train.checkpoint_every=5")
    trained("whole", *settings)
    with pytest.raises(CrashedError):
        trained("damaged", *settings, reporter=At(13, crash))
    folder = run_folder("damaged")
    (last_checkpoint(folder) / OPTIMIZER).write_bytes(b"rubbish")

    reporter = At()
    resumed("damaged", reporter=reporter)

    assert reporter.said == ["resuming from step 5"]
    assert_same_run(folder, run_folder("whole"))


def test_when_all_checkpoints_are_damaged_nothing_is_touched(
    trained: Trained, resumed: Resumed, run_folder: Folders
) -> None:
    trained("a")
    folder = run_folder("a")
    (last_checkpoint(folder) / MODEL).unlink()
    before = folder.metrics_file.read_bytes()

    with pytest.raises(CheckpointError, match="no checkpoint is intact"):
        resumed("a")
    assert folder.metrics_file.read_bytes() == before


def test_a_run_that_died_before_its_first_checkpoint_begins_again(
    trained: Trained, resumed: Resumed, run_folder: Folders
) -> None:
    trained("whole")
    with pytest.raises(CrashedError):
        trained("a", reporter=At(3, crash))

    resumed("a")

    assert_same_run(run_folder("a"), run_folder("whole"))


def test_a_finished_run_is_only_measured_again(
    trained: Trained, resumed: Resumed, run_folder: Folders
) -> None:
    first = trained("a")
    before = run_folder("a").metrics_file.read_bytes()

    again = resumed("a")

    assert same_weights(first, again)
    assert again.evaluation == first.evaluation
    assert run_folder("a").metrics_file.read_bytes() == before


def test_a_last_evaluation_that_failed_is_made_up_for(
    trained: Trained, resumed: Resumed, run_folder: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trained("whole")
    with monkeypatch.context() as patch:
        patch.setattr(Evaluator, "evaluate_at_the_end", lambda *_: crash())
        with pytest.raises(CrashedError):
            trained("a")
    assert "val_loss" not in lines_of(run_folder("a"))[-1]

    outcome = resumed("a")

    assert outcome.evaluation == whole.evaluation
    assert lines_of(run_folder("a"))[-1] == lines_of(run_folder("whole"))[-1]
    before = run_folder("a").metrics_file.read_bytes()
    kept, own = (load_checkpoint(last_checkpoint(run_folder(name))).progress for name in ("a", "whole"))
    assert (kept.val_loss, kept.best_step, kept.n_worse) == (own.val_loss, own.best_step, own.n_worse)
    assert (run_folder("a").checkpoints / "best").resolve().name == f"step-{own.best_step:08d}"
    resumed("a")
    assert run_folder("a").metrics_file.read_bytes() == before


def test_a_limit_on_all_time_that_comes_back_counts_the_steps_without_it(
    trained: Trained, resumed: Resumed
) -> None:
    trained("a", "train.max_wall_seconds=1000")
    resumed("a", max_steps=600, max_wall_seconds=None)
    again = resumed("a", max_steps=601, max_wall_seconds=1000.0).progress
    assert again.wall_before > 0
    assert again.wall_seconds >= again.wall_before + again.seconds


def test_a_limit_on_all_time_counts_the_steps_before_it(trained: Trained, resumed: Resumed) -> None:
    first = trained("a")
    outcome = resumed("a", max_steps=20, max_wall_seconds=1000.0)
    assert outcome.progress.wall_seconds > first.progress.seconds > 0


def test_processes_agree_on_the_best_loss(begun: Callable[..., Training]) -> None:
    """One that was measured anew may differ in its last bits."""
    training = begun("a")
    training.progress = Progress(step=5, best_step=5, best_val_loss=2.0)

    class Second(Processes):
        def broadcast(self, value: float) -> float:
            return value + 1e-7

    training.processes = Second()
    training.begin_alike()
    assert training.progress.best_val_loss == 2.0 + 1e-7


def test_a_finished_run_can_be_made_longer(trained: Trained, resumed: Resumed, run_folder: Folders) -> None:
    settings = ("train.schedule=constant", "train.eval_every=1", "train.eval_flops_fraction=none")
    trained("whole", *settings, "train.max_steps=20")
    trained("a", *settings)

    outcome = resumed("a", max_steps=20)

    assert outcome.progress.step == 20
    assert_same_run(run_folder("a"), run_folder("whole"))


@pytest.mark.parametrize("is_link", [False, True])
def test_what_stands_where_checkpoints_belong_is_found_before_the_first_step(
    trained: Trained, resumed: Resumed, run_folder: Folders, is_link: bool
) -> None:
    trained("a")
    place = run_folder("a").checkpoints
    shutil.rmtree(place)
    if is_link:
        place.symlink_to("nowhere")
    else:
        place.write_text("mine")
    steps = At(1, lambda: pytest.fail("a step was taken"))
    with pytest.raises(DiskError, match=r"/checkpoints: not a folder, .*; move it away$"):
        resumed("a", reporter=steps)
    assert is_link or place.read_text() == "mine"


def test_a_finished_run_whose_process_was_killed_before_it_tidied_up_is_tidied_when_resumed(
    trained: Trained, resumed: Resumed, run_folder: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = "train.checkpoint_every=4", "train.keep_last=1"
    trained("whole", *settings)
    with monkeypatch.context() as killed:
        killed.setattr(CheckpointStore, "tidy", lambda *_: None)
        trained("killed", *settings)
    whole, killed_run = (run_folder(name).checkpoints for name in ("whole", "killed"))
    assert len(list_checkpoints(killed_run)) == 4

    resumed("killed")

    assert {path.name for path in killed_run.iterdir()} == {path.name for path in whole.iterdir()}
    assert (killed_run / "latest").readlink() == (whole / "latest").readlink()


def test_another_text_is_refused(trained: Trained, resumed: Resumed, text_file: Path) -> None:
    trained("a")
    text_file.write_text(text_file.read_text().replace("lazy", "zyla"))

    with pytest.raises(DataError, match="the data have changed since this run started"):
        resumed("a")


def test_a_run_goes_on_with_its_data_in_another_place(
    configure: Callable[..., RunConfig], trained: Trained, run_folder: Folders, text_file: Path
) -> None:
    trained("a", "train.schedule=constant")
    moved = text_file.rename(text_file.with_name("moved.txt"))

    longer = configure("train.schedule=constant", "train.max_steps=20", f"data.path={moved}")
    outcome = train(longer, run_folder("a"), Reporter(), resume=True)

    assert outcome.progress.step == 20
    assert run_folder("a").read_config().data.path == str(moved)


def test_data_that_have_moved_are_asked_for(trained: Trained, resumed: Resumed, text_file: Path) -> None:
    trained("a")
    text_file.rename(text_file.with_name("moved.txt"))

    with pytest.raises(DataError, match=r"if the data have moved, give their new place with data\.path=PATH"):
        resumed("a")


def test_other_data_in_another_place_are_refused(
    configure: Callable[..., RunConfig], trained: Trained, run_folder: Folders, text_file: Path
) -> None:
    trained("a")
    other = text_file.with_name("other.txt")
    other.write_text(text_file.read_text().replace("lazy", "zyla"))

    with pytest.raises(
        DataError, match=r"^data\.path=\S+other\.txt has SHA-256 .* that \S+ was trained on had"
    ):
        train(configure(f"data.path={other}"), run_folder("a"), Reporter(), resume=True)
    assert run_folder("a").read_config().data.path == str(text_file)


def test_a_checkpoint_of_another_model_is_refused(
    trained: Trained, resumed: Resumed, run_folder: Folders
) -> None:
    trained("a")
    folder = run_folder("a")
    config = folder.read_config()
    folder.write_config(config.replace(model=config.model.replace(d_model=9)))

    with pytest.raises(CheckpointError, match=r"step 13 does not fit config\.toml"):
        resumed("a")


# --- evaluations ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("every", "share", "n_rows"),
    [
        (5, 0.01, 1),  # 0.05 of a step, and at least one
        (50, 0.01, 6),  # 50 steps of 4 rows are 600 forward passes of a row
        (50, 0.05, 30),
        (5, 0.5, 30),
        (127, 0.05, 76),
        (128, 0.05, None),  # no fewer than there are
        (50, 1.0, None),
        (50, None, None),
        (None, 0.01, None),  # only after the last step
    ],
)
def test_evaluations_on_the_way_cost_a_share_of_the_training(
    begun: Callable[..., Training], every: int | None, share: float | None, n_rows: int | None
) -> None:
    training = begun("a", f"train.eval_flops_fraction={'none' if share is None else share}")

    assert training.task.n_held_out == 77
    assert training.evaluator.rows_within_share(every) == n_rows


def test_of_two_passes_a_step_s_evaluations_may_cost_as_much_more(begun: Callable[..., Training]) -> None:
    one, two = (
        begun(name, "train.eval_flops_fraction=0.05", "model.dropout=0.1", f"train.r_drop={alpha}")
        for name, alpha in (("a", 0), ("b", 5))
    )

    assert two.evaluator.rows_within_share(40) == 2 * one.evaluator.rows_within_share(40)  # type: ignore[operator]


@pytest.mark.parametrize("share", ["0", "-0.1", "1.01", "nan"])
def test_a_share_that_is_none_is_refused(configure: Callable[..., RunConfig], share: str) -> None:
    with pytest.raises(ConfigError, match=r"train\.eval_flops_fraction"):
        configure(f"train.eval_flops_fraction={share}")


def held_out(folder: RunFolder, what: str = "val_share") -> dict[int, float]:
    """What the lines say of evaluations, by step."""
    return {line["step"]: line[what] for line in read_metrics(folder.metrics_file) if what in line}


def test_the_whole_is_read_at_the_end(trained: Trained, run_folder: Folders) -> None:
    settings = ("train.eval_every=3", "train.checkpoint_every=5")
    outcome = trained("a", *settings, "train.eval_flops_fraction=0.1")
    trained("whole", *settings, "train.eval_flops_fraction=none")

    n_rows = outcome.task.n_held_out
    between, with_checkpoint = 4 / n_rows, 6 / n_rows  # of 3 x 3 and 3 x 5 steps' forward passes, 4 rows each
    shares = {
        3: between,
        5: with_checkpoint,
        6: between,
        9: between,
        10: with_checkpoint,
        12: between,
        13: 1.0,
    }
    assert held_out(run_folder("a")) == shares
    assert held_out(run_folder("whole")) == dict.fromkeys(shares, 1.0)
    ours, theirs = (held_out(run_folder(name), "val_loss") for name in ("a", "whole"))
    assert {step for step in shares if ours[step] == theirs[step]} == {13}
    assert outcome.evaluation is not None
    assert outcome.evaluation.loss == ours[13]


def test_an_evaluation_on_the_way_reads_the_same_rows_each_time(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Tensor] = []
    evaluate = next_token.evaluate_split

    def listening(model: Any, *args: Any, **options: Any) -> Any:
        seen: list[Tensor] = []

        def hidden(tokens: Tensor) -> Tensor:
            seen.append(tokens.flatten())
            return type(model).hidden(model, tokens)

        with patch.object(model, "hidden", hidden):
            measured = evaluate(model, *args, **options)
        read.append(torch.cat(seen))
        return measured

    monkeypatch.setattr(next_token, "evaluate_split", listening)

    trained("a", "train.eval_every=4", "train.eval_flops_fraction=0.1")

    assert len(read) == 4
    assert len(read[0]) == 5 * 7  # a tenth of 3 x 4 steps of 4 rows
    assert torch.equal(read[0], read[1])
    assert torch.equal(read[0], read[2])
    assert len(read[3]) > 60 * 7


def found_by(measured: Callable[..., Evaluation], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a function find what evaluations do, the part and the whole of the last one too."""

    def both(*args: Any, n_windows: int, **options: Any) -> tuple[Evaluation, Evaluation]:
        part = measured(*args, n_windows=n_windows, **options)
        return measured(*args, n_windows=None, **options), part

    monkeypatch.setattr(next_token, "evaluate_split", measured)
    monkeypatch.setattr(next_token, "evaluate_whole_and_part", both)


def test_checkpoints_are_compared_by_one_part_of_the_held_out_data(
    trained: Trained, run_folder: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses of other parts, which are far lower here and far higher, do not say which is the best."""
    evaluate, losses = next_token.evaluate_split, iter([3.0, 2.0, 2.5])
    of_parts = {4: 0.001, None: 9.0}  # between checkpoints, and of the whole

    def measured(*args: Any, n_windows: int | None, **options: Any) -> Evaluation:
        loss = next(losses) if n_windows == 6 else of_parts[n_windows]
        return replace(evaluate(*args, n_windows=n_windows, **options), loss=loss)

    found_by(measured, monkeypatch)

    outcome = trained("a", "train.eval_every=3", "train.checkpoint_every=5", "train.eval_flops_fraction=0.1")

    lines = held_out(run_folder("a"), "val_loss")
    assert lines == {3: 0.001, 5: 3.0, 6: 0.001, 9: 0.001, 10: 2.0, 12: 0.001, 13: 9.0}
    progress = load_checkpoint(last_checkpoint(run_folder("a"))).progress
    assert (progress.step, progress.val_loss) == (13, 2.5)
    assert (progress.best_step, progress.best_val_loss) == (10, 2.0)
    assert outcome.evaluation is not None
    assert outcome.evaluation.loss == 9.0


def test_a_state_between_checkpoints_is_not_compared(trained: Trained, run_folder: Folders) -> None:
    listener = At(9, interrupt)

    with pytest.raises(Interrupted):
        trained("a", "train.eval_every=3", "train.checkpoint_every=5", reporter=listener)

    progress = load_checkpoint(last_checkpoint(run_folder("a"))).progress
    assert 9 in held_out(run_folder("a"))
    assert (progress.step, progress.val_loss, progress.best_step) == (9, None, 5)


PATIENT = (
    "train.eval_every=1000",
    "train.checkpoint_every=2",
    "train.eval_flops_fraction=0.1",
    "train.max_steps=20",
    "train.patience=2",
)
OF_A_PART = 40  # windows, by which those checkpoints are compared: those of ten steps


def test_patience_ends_a_run_whose_checkpoints_get_no_better(
    trained: Trained, run_folder: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A better one in time begins the count anew; the whole held-out text is read at the end, as ever."""
    losses = Losses(monkeypatch, of_40=[3.0, 3.5, 2.0, 2.0, 2.5], whole=[9.0])
    reporter = At()

    outcome = trained("a", *PATIENT, reporter=reporter)

    assert losses.read == [OF_A_PART] * 5 + [None]
    progress = load_checkpoint(last_checkpoint(run_folder("a"))).progress
    assert (progress.step, progress.val_loss, progress.best_step) == (10, 2.5, 6)
    assert held_out(run_folder("a"), "val_loss") == {2: 3.0, 4: 3.5, 6: 2.0, 8: 2.0, 10: 9.0}
    assert outcome.evaluation is not None
    assert outcome.evaluation.loss == 9.0
    assert step_of((run_folder("a").checkpoints / "best").resolve()) == 6
    counts, said = [line for line in reporter.said if "patience" in line]
    assert counts.endswith("every 2 steps (train.checkpoint_every), compared by 40 of 77 held-out rows")
    assert said.startswith("train.patience=2: no checkpoint after step 6 has a lower held-out loss")


@pytest.mark.parametrize(("share", "patience", "n_rows"), [(0.001, "none", 1), (0.001, 2, 40), (0.5, 2, 60)])
def test_checkpoints_that_decide_the_end_are_compared_by_rows_enough(
    begun: Callable[..., Training], share: float, patience: int | str, n_rows: int
) -> None:
    settings = (
        f"train.eval_flops_fraction={share}",
        f"train.patience={patience}",
        "train.checkpoint_every=10",
    )
    training = begun("a", *settings)
    assert (training.task.rows_per_step, training.task.n_held_out) == (4, 77)
    assert training.evaluator.rows_with_checkpoint == n_rows


def test_who_has_more_patience_goes_on(
    trained: Trained, resumed: Resumed, run_folder: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    Losses(monkeypatch, of_40=[2.0, 3.0, 3.0, 3.0, 3.0, 3.0, 1.0, 3.0], whole=[9.0, 9.1, 9.2])
    trained("a", *PATIENT)
    assert step_of(last_checkpoint(run_folder("a"))) == 6

    resumed("a")  # finished: evaluated, and not trained
    assert step_of(last_checkpoint(run_folder("a"))) == 6

    resumed("a", patience=3)
    assert step_of(last_checkpoint(run_folder("a"))) == 8


def test_patience_counts_checkpoints_and_not_steps(
    trained: Trained, resumed: Resumed, run_folder: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not those that there would have been at a later distance; and a last one between two counts as well."""
    Losses(monkeypatch, of_40=[2.0, 3.0, 3.1, 3.2, 3.3], whole=[9.0] * 3)
    trained("a", *PATIENT, "train.patience=5", "train.max_steps=5")  # checkpoints of 2, 4 and 5
    progress = load_checkpoint(last_checkpoint(run_folder("a"))).progress
    assert (progress.best_step, progress.n_worse) == (2, 2)

    resumed("a", patience=4, checkpoint_every=1, max_steps=20)

    progress = load_checkpoint(last_checkpoint(run_folder("a"))).progress
    assert (progress.step, progress.best_step, progress.n_worse) == (7, 2, 4)


def test_a_patient_run_that_is_stopped_ends_where_it_would_have(
    trained: Trained, resumed: Resumed, run_folder: Folders
) -> None:
    settings = [*PATIENT, "train.lr=3.0", "train.patience=1", "train.max_steps=60"]
    trained("whole", *settings)
    assert step_of(last_checkpoint(run_folder("whole"))) < 60
    with pytest.raises(Interrupted):
        trained("a", *settings, reporter=At(3, interrupt))
    resumed("a")
    assert_same_run(run_folder("whole"), run_folder("a"))


def test_a_signal_while_the_step_is_compiled_ends_the_run_before_its_first_step(
    trained: Trained, resumed: Resumed, run_folder: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained("whole", "train.max_steps=4")
    with monkeypatch.context() as patched:
        patched.setattr(TrainStep, "prepare", lambda *_: interrupt())
        with pytest.raises(Interrupted, match="stopped at step 0"):
            trained("a", "train.max_steps=4")
    assert read_metrics(run_folder("a").metrics_file) == []
    resumed("a")
    assert_same_run(run_folder("whole"), run_folder("a"))


def test_patience_needs_something_to_count(trained: Trained) -> None:
    with pytest.raises(
        ConfigError, match=r"^train\.patience=2 counts checkpoints, but train\.checkpoint_every=none"
    ):
        trained("a", "train.patience=2", "train.checkpoint_every=none")
    with pytest.raises(ConfigError, match=r"^train\.patience: there are no held-out data to stop by"):
        trained("b", "train.patience=2", "train.checkpoint_every=2", "data.val_fraction=0")


class Losses:
    """Losses that evaluations find, by how many windows they read; and how many the evaluations before read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **losses: list[float]) -> None:
        self.read: list[int | None] = []
        left = {key: iter(values) for key, values in losses.items()}

        def measured(*args: Any, n_windows: int | None, **options: Any) -> Evaluation:
            self.read.append(n_windows)
            loss = next(left["whole" if n_windows is None else f"of_{n_windows}"])
            return replace(evaluate_split(*args, n_windows=n_windows, **options), loss=loss)

        found_by(measured, monkeypatch)


PARTS = (
    "train.eval_every=1000",
    "train.checkpoint_every=5",
    "train.eval_flops_fraction=0.1",
    "train.max_steps=10",
)


def best_of(folder: RunFolder) -> tuple[int | None, float | None, int | None]:
    progress = load_checkpoint(last_checkpoint(folder)).progress
    return progress.best_step, progress.best_val_loss, progress.best_n_rows


@pytest.mark.parametrize(
    ("of_5_anew", "best"), [(2.9, (15, 2.8, 12)), (2.7, (5, 2.7, 12))], ids=["later", "earlier"]
)
def test_where_another_part_is_read_the_best_is_measured_on_it(
    trained: Trained,
    resumed: Resumed,
    run_folder: Folders,
    monkeypatch: pytest.MonkeyPatch,
    of_5_anew: float,
    best: tuple[int, float, int],
) -> None:
    """The part that is read from now on is a harder one: all that was read before seems better and is not."""
    Losses(monkeypatch, of_6=[1.0, 1.2], whole=[9.0])
    trained("a", *PARTS)
    assert best_of(run_folder("a")) == (5, 1.0, 6)

    losses = Losses(monkeypatch, of_12=[of_5_anew, 2.8, 3.0], whole=[9.0])
    reporter = At()
    resumed("a", reporter=reporter, eval_flops_fraction=0.2, max_steps=20)

    assert losses.read == [12, 12, 12, None]
    assert best_of(run_folder("a")) == best
    assert "evaluating step 5, the best so far, on the current held-out data" in reporter.said


def test_what_is_measured_anew_are_the_weights_of_the_best(
    trained: Trained, resumed: Resumed, run_folder: Folders
) -> None:
    settings = ("train.lr=0.5", "train.keep_last=9")
    trained("parts", *PARTS, *settings)
    trained("whole", *PARTS, *settings, "train.eval_flops_fraction=none")
    step, _, _ = best_of(run_folder("parts"))
    of_whole = {
        step_of(path): load_checkpoint(path).progress.val_loss
        for path in list_checkpoints(run_folder("whole").checkpoints)
    }
    assert step in of_whole
    seen: list[Progress] = []
    reporter = At()
    reporter.begin = lambda config, progress: seen.append(progress)  # type: ignore[method-assign]

    resumed("parts", reporter=reporter, eval_flops_fraction=None)

    assert (seen[0].best_step, seen[0].best_n_rows) == (step, 77)
    assert seen[0].best_val_loss == of_whole[step]


def test_patience_counts_anew_where_other_rows_are_compared(
    trained: Trained, resumed: Resumed, run_folder: Folders
) -> None:
    """The losses of the earlier checkpoints are of other rows, and so is that of the step that it goes on from."""
    settings = ("train.lr=0.5", "train.max_steps=40", "train.schedule=constant")
    trained("a", *PARTS, *settings)
    before = load_checkpoint(last_checkpoint(run_folder("a"))).progress
    assert before.n_worse >= 2

    outcome = resumed("a", max_steps=60, patience=2, eval_flops_fraction=None)

    assert before.step < outcome.progress.step


@pytest.mark.parametrize("changes", [{}, {"max_steps": 20}, {"eval_every": 3, "log_every": 2}], ids=str)
def test_where_the_same_part_is_read_the_best_is_not_measured_again(
    trained: Trained,
    resumed: Resumed,
    run_folder: Folders,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, int],
) -> None:
    trained("a", *PARTS)
    before = best_of(run_folder("a"))
    reporter = At()

    resumed("a", reporter=reporter, **changes)

    assert reporter.said == ["resuming from step 10"]
    assert before[2] == best_of(run_folder("a"))[2] == 6


def test_a_run_of_before_whose_part_is_not_known_has_its_best_measured_again(
    trained: Trained, resumed: Resumed, run_folder: Folders
) -> None:
    trained("a", *PARTS)
    best = best_of(run_folder("a"))
    checkpoint = last_checkpoint(run_folder("a"))
    forget(checkpoint, "best_n_rows")
    seen: list[Progress] = []
    reporter = At()
    reporter.begin = lambda config, progress: seen.append(progress)  # type: ignore[method-assign]

    resumed("a", reporter=reporter)

    assert (seen[0].best_step, seen[0].best_val_loss, seen[0].best_n_rows) == best


def forget(checkpoint: Path, name: str) -> None:
    """Write a checkpoint's state as a version wrote it that did not know of something."""
    state, manifest = checkpoint / STATE, checkpoint / MANIFEST
    values = json.loads(state.read_text())
    del values[name]
    state.write_text(json.dumps(values))
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {STATE: describe(state)}))


def test_where_the_best_is_damaged_the_comparison_begins_anew(
    trained: Trained,
    resumed: Resumed,
    run_folder: Folders,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    Losses(monkeypatch, of_6=[1.0, 1.2], whole=[9.0])
    trained("a", *PARTS)
    (run_folder("a").checkpoints / "step-00000005" / MODEL).write_bytes(b"rubbish")

    Losses(monkeypatch, of_12=[3.0, 3.1], whole=[9.0])
    resumed("a", eval_flops_fraction=0.2, max_steps=20)

    assert best_of(run_folder("a")) == (15, 3.0, 12)
    assert "choosing the best checkpoint among later ones" in caplog.text


# --- evaluations that fail ----------------------------------------------------------------------------------


def test_held_out_text_with_nothing_to_predict_is_refused_before_anything_is_done(
    trained: Trained, run_folder: Folders, text_file: Path
) -> None:
    share = 0.999 / len(text_file.read_text())

    with pytest.raises(DataError, match="1 token"):
        trained("a", f"data.val_fraction={share:.12f}")
    assert not run_folder("a").path.exists()


def test_an_evaluation_that_fails_loses_no_step(
    trained: Trained, resumed: Resumed, run_folder: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trained("whole", "train.max_steps=8", "train.checkpoint_every=5")
    with monkeypatch.context() as patch:
        patch.setattr(next_token, "evaluate_split", lambda *args, **options: crash())
        with pytest.raises(CrashedError):
            trained("a", "train.max_steps=8", "train.checkpoint_every=5")  # at step 5

    assert [step_of(path) for path in list_checkpoints(run_folder("a").checkpoints)] == [5]
    assert [line["step"] for line in lines_of(run_folder("a"))] == [1, 2, 3, 4, 5]
    outcome = resumed("a")
    assert (last_checkpoint(run_folder("a")) / MODEL).read_bytes() == (
        last_checkpoint(run_folder("whole")) / MODEL
    ).read_bytes()
    # The evaluation is made up for, so that the checkpoint of step 5 may be the best one.
    losses = [
        {line["step"]: line.get("val_loss") for line in lines_of(run_folder(name))} for name in ("a", "whole")
    ]
    assert losses[0] == losses[1]
    assert losses[0][5] is not None
    assert (outcome.progress.best_step, outcome.progress.best_val_loss, outcome.progress.n_worse) == (
        whole.progress.best_step,
        whole.progress.best_val_loss,
        whole.progress.n_worse,
    )


@pytest.mark.parametrize("at", [3, 5, 8], ids=["between checkpoints", "with a checkpoint", "at the end"])
def test_a_signal_ends_an_evaluation_at_once_and_it_is_made_up(
    trained: Trained, resumed: Resumed, run_folder: Folders, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    settings = ["train.max_steps=8", "train.eval_every=3", "train.checkpoint_every=5"]
    whole = trained("whole", *settings)
    with monkeypatch.context() as patch:
        steps = iter([3, 5, 6, 8])

        def interrupted(evaluate: Callable[..., Any]) -> Callable[..., Any]:
            return lambda *arguments: interrupt() if next(steps) == at else evaluate(*arguments)

        for name in ("evaluate", "evaluate_whole_and_part"):
            patch.setattr(NextTokenTask, name, interrupted(getattr(NextTokenTask, name)))
        with pytest.raises(Interrupted, match=rf"^stopped at step {at}; "):
            trained("a", *settings)
    assert lines_of(run_folder("a"))[-1]["step"] == at
    assert "val_loss" not in lines_of(run_folder("a"))[-1]

    outcome = resumed("a")

    weights = [(last_checkpoint(run_folder(name)) / MODEL).read_bytes() for name in ("a", "whole")]
    assert weights[0] == weights[1]
    losses = [
        {line["step"]: line.get("val_loss") for line in lines_of(run_folder(name))} for name in ("a", "whole")
    ]
    assert losses[0] == losses[1]
    assert outcome.evaluation == whole.evaluation
    assert (outcome.progress.best_step, outcome.progress.best_val_loss) == (
        whole.progress.best_step,
        whole.progress.best_val_loss,
    )


def test_a_made_up_evaluation_counts_after_another_kill(
    trained: Trained, resumed: Resumed, run_folder: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted in an evaluation that a checkpoint waits for, resumed, killed before the next one, resumed."""
    settings = ["train.max_steps=12", "train.checkpoint_every=4", "train.keep_last=1"]
    whole, heard = trained("whole", *settings), []
    with monkeypatch.context() as patch:
        patch.setattr(NextTokenTask, "evaluate", lambda *_: interrupt())
        with pytest.raises(Interrupted, match=r"^stopped at step 4; "):
            trained("a", *settings)
    with monkeypatch.context() as patch:
        patch.setattr(Training, "due_line", lambda *_: crash())
        patch.setattr(CheckpointStore, "save_alone", lambda *_: None)  # as if killed
        with pytest.raises(CrashedError):
            resumed("a", At(4, lambda: heard.append("step 4")))
    assert heard == ["step 4"]  # loggers too
    losses = {line["step"]: line.get("val_loss") for line in lines_of(run_folder("a"))}
    [made_up] = list_checkpoints(run_folder("a").checkpoints)
    assert load_checkpoint(made_up).progress.val_loss == losses[4] is not None
    outcome = resumed("a")
    assert outcome.progress.best_step == whole.progress.best_step
    kept = [
        [step_of(path) for path in list_checkpoints(run_folder(name).checkpoints)] for name in ("a", "whole")
    ]
    assert kept[0] == kept[1]


def test_a_sample_that_fails_loses_no_step(
    trained: Trained, run_folder: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(next_token, "generate", lambda *args, **options: crash())

    with pytest.raises(CrashedError):
        trained("a", "train.sample_every=3", "train.sample_prompt=the")

    assert [step_of(path) for path in list_checkpoints(run_folder("a").checkpoints)] == [3]


def test_what_failed_first_is_told_where_saving_fails_too(
    trained: Trained, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hold = Hold(monkeypatch, step=5, error=DiskError("no space"))
    threading.Thread(target=hold.let_go).start()
    monkeypatch.setattr(next_token, "evaluate_split", lambda *args, **options: crash())

    with pytest.raises(CrashedError):
        trained("a")
    assert "no space" in caplog.text


# --- one writer -------------------------------------------------------------------------------------------


def test_a_run_that_another_process_trains_is_left_alone(
    trained: Trained, resumed: Resumed, run_folder: Folders, tmp_path: Path
) -> None:
    trained("a")
    folder = run_folder("a")
    before = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}

    with one_writer(folder.path), pytest.raises(RunInUseError, match=f"process {os.getpid()} on"):
        resumed("a", max_steps=20)

    assert {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()} == before
    with one_writer(run_folder("b").path), pytest.raises(RunInUseError):
        trained("b")
    assert not run_folder("b").path.exists()
    trained("b")


def test_a_run_is_held_from_its_beginning_to_its_end(trained: Trained, run_folder: Folders) -> None:
    folder, held = run_folder("a"), []

    def look() -> None:
        with pytest.raises(RunInUseError), one_writer(folder.path):
            pass
        held.append(True)

    trained("a", reporter=At(3, look))

    assert held == [True]
    with one_writer(folder.path):
        pass


def test_who_has_lost_a_run_writes_no_more(begun: Callable[..., Training]) -> None:
    training = begun("a", "train.checkpoint_every=2")

    def check() -> None:
        if training.progress.step == 5:
            raise RunInUseError("another process is training it")

    with pytest.raises(RunInUseError):
        training.run(Interrupts(), check)

    assert kept_steps(training) == [4, 2]
    assert [line["step"] for line in lines_of(training.folder)] == [1, 2, 3, 4]


def test_a_run_is_not_begun_where_there_is_one(trained: Trained, run_folder: Folders) -> None:
    trained("a")
    before = run_folder("a").config_file.read_bytes()

    with pytest.raises(RunError, match=r"runs/a holds a run; resume it"):
        trained("a", "seed=2")
    assert run_folder("a").config_file.read_bytes() == before


# --- checkpoints ------------------------------------------------------------------------------------------


def test_the_last_and_the_best_are_kept(
    trained: Trained, run_folder: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = iter([3.0, 2.0, 2.5, 2.2, 2.9])
    evaluate = next_token.evaluate_split
    monkeypatch.setattr(
        next_token, "evaluate_split", lambda *args, **kw: replace(evaluate(*args, **kw), loss=next(losses))
    )

    trained(
        "a",
        "train.checkpoint_every=3",
        "train.eval_every=1000",
        "train.eval_flops_fraction=none",
        "train.keep_last=1",
    )

    checkpoints = run_folder("a").checkpoints
    assert [step_of(folder) for folder in list_checkpoints(checkpoints)] == [13, 6]
    assert step_of((checkpoints / "best").resolve()) == 6
    assert step_of((checkpoints / "latest").resolve()) == 13
    progress = load_checkpoint(checkpoints / "step-00000013").progress
    assert (progress.val_loss, progress.best_step, progress.best_val_loss) == (2.9, 6, 2.0)


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_lets_the_step_be_finished_and_kept(
    trained: Trained, run_folder: Folders, number: int
) -> None:
    with pytest.raises(Interrupted, match=r"^stopped at step 7; .* saved in \S+/runs/a$") as e:
        trained("a", reporter=At(7, lambda: os.kill(os.getpid(), number)))

    assert e.value.exit_status == 128 + number
    assert step_of(last_checkpoint(run_folder("a"))) == 7
    assert lines_of(run_folder("a"))[-1]["step"] == 7
    progress = load_checkpoint(last_checkpoint(run_folder("a"))).progress
    assert (progress.val_loss, progress.best_step) == (
        None,
        None,
    )  # step 5 was evaluated, and this one was not


def test_a_signal_during_the_last_save_is_passed_on(
    trained: Trained, run_folder: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a loop of trainings would begin the next one."""
    save = checkpoint_store.save_checkpoint

    def interrupted(*arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return save(*arguments)

    monkeypatch.setattr(checkpoint_store, "save_checkpoint", interrupted)
    with pytest.raises(Interrupted, match=r"^stopped at step 9"):
        trained("a", "train.max_steps=9", "train.checkpoint_every=none")

    assert step_of(last_checkpoint(run_folder("a"))) == 9
    assert lines_of(run_folder("a"))[-1]["val_loss"] is not None


# --- checkpoints beside the training ----------------------------------------------------------------------


class Hold:
    """Holds what is written at its first call for a step, until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step: int, error: Exception | None = None) -> None:
        self.begun, self.may_go_on = threading.Event(), threading.Event()
        save = checkpoint_store.save_checkpoint

        def held(checkpoints: Path, checkpoint: Checkpoint) -> Path:
            if checkpoint.progress.step == step:
                self.begun.set()
                assert self.may_go_on.wait(60)
                if error:
                    raise error
            return save(checkpoints, checkpoint)

        monkeypatch.setattr(checkpoint_store, "save_checkpoint", held)

    def let_go(self) -> None:
        assert self.begun.wait(60)
        self.may_go_on.set()

    def let_go_soon(self) -> None:
        """Once training is likely to wait for it."""
        assert self.begun.wait(60)
        threading.Timer(0.1, self.may_go_on.set).start()


@pytest.mark.parametrize("settings", [(), ("train.ema=0.9", "train.optimizer=muon")], ids=str)
def test_training_goes_on_while_a_checkpoint_is_written_and_it_stays_as_it_was(
    trained: Trained, run_folder: Folders, monkeypatch: pytest.MonkeyPatch, settings: tuple[str, ...]
) -> None:
    settings = (*settings, "train.checkpoint_every=5", "train.keep_last=9")
    trained("whole", *settings)
    hold = Hold(monkeypatch, step=5)

    trained("a", *settings, reporter=At(9, hold.let_go))  # four steps further

    assert_same_run(run_folder("a"), run_folder("whole"))
    ours, theirs = (
        load_checkpoint(run_folder(name).checkpoints / "step-00000005") for name in ("a", "whole")
    )
    assert ours.progress.step == theirs.progress.step == 5
    for held, plain in ((ours.model, theirs.model), (ours.optimizer, theirs.optimizer)):
        assert held.keys() == plain.keys()
        assert all(torch.equal(held[name], plain[name]) for name in held)


def test_the_next_checkpoint_waits_for_the_one_before(
    trained: Trained, run_folder: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = Hold(monkeypatch, step=5)

    trained("a", "train.checkpoint_every=5", "train.keep_last=9", reporter=At(10, hold.let_go_soon))

    assert [step_of(folder) for folder in list_checkpoints(run_folder("a").checkpoints)] == [13, 10, 5]


@pytest.mark.parametrize("step", [5, 13])
def test_a_run_ends_when_all_is_written(
    trained: Trained, run_folder: Folders, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    hold = Hold(monkeypatch, step)
    threading.Thread(target=hold.let_go_soon).start()

    trained("a", "train.checkpoint_every=5", "train.keep_last=9")

    assert [step_of(folder) for folder in list_checkpoints(run_folder("a").checkpoints)] == [13, 10, 5]


@pytest.mark.parametrize(("action", "error"), [(interrupt, Interrupted), (crash, CrashedError)])
def test_whatever_ends_a_run_waits_for_what_is_being_written(
    trained: Trained,
    run_folder: Folders,
    monkeypatch: pytest.MonkeyPatch,
    action: Callable[[], object],
    error: type[Exception],
) -> None:
    hold = Hold(monkeypatch, step=5)

    def end() -> None:
        hold.let_go_soon()
        action()

    with pytest.raises(error):
        trained("a", "train.checkpoint_every=5", reporter=At(7, end))

    kept = [step_of(folder) for folder in list_checkpoints(run_folder("a").checkpoints)]
    assert kept == ([7, 5] if error is Interrupted else [5])
    assert not list(run_folder("a").checkpoints.glob(".unfinished-*"))


def test_an_interrupt_says_that_all_is_kept_when_it_is(
    trained: Trained, run_folder: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of its own checkpoint; and not where that could not be written."""
    hold = Hold(monkeypatch, step=7)
    threading.Thread(target=hold.let_go_soon).start()
    with pytest.raises(Interrupted, match="progress is saved"):
        trained("a", reporter=At(7, interrupt))
    assert step_of(last_checkpoint(run_folder("a"))) == 7

    hold = Hold(monkeypatch, step=7, error=DiskError("no space"))
    threading.Thread(target=hold.let_go_soon).start()
    with pytest.raises(DiskError, match="no space"):
        trained("b", reporter=At(7, interrupt))


@pytest.mark.parametrize(("step", "let_go_at"), [(5, 7), (5, 10), (13, 13)])
def test_what_cannot_be_written_ends_the_run(
    trained: Trained, run_folder: Folders, monkeypatch: pytest.MonkeyPatch, step: int, let_go_at: int
) -> None:
    """While it goes on, at the next checkpoint, and at its end; no later checkpoint is written."""
    hold = Hold(monkeypatch, step, DiskError("no space"))
    action = hold.let_go_soon
    if step == let_go_at:
        action = threading.Thread(target=hold.let_go_soon).start

    with pytest.raises(DiskError, match="no space"):
        trained("a", "train.checkpoint_every=5", "train.keep_last=9", reporter=At(let_go_at, action))

    kept = [step_of(folder) for folder in list_checkpoints(run_folder("a").checkpoints)]
    assert kept == ([10, 5] if step == 13 else [])
    assert lines_of(run_folder("a"))[-1]["step"] <= (13 if step == 13 else 10)


def test_a_checkpoint_is_never_ahead_of_its_metrics(
    trained: Trained, run_folder: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All lines up to its step are on the disk before it is."""
    on_disk, ahead = [], []
    sync, save = Metrics.sync, checkpoint_store.save_checkpoint

    def synced(metrics: Metrics) -> None:
        on_disk[:] = [line["step"] for line in read_metrics(run_folder("a").metrics_file)]
        sync(metrics)

    def saved(checkpoints: Path, checkpoint: Checkpoint) -> Path:
        ahead.append(checkpoint.progress.step not in on_disk)
        return save(checkpoints, checkpoint)

    monkeypatch.setattr(Metrics, "sync", synced)
    monkeypatch.setattr(checkpoint_store, "save_checkpoint", saved)

    trained("a", "train.checkpoint_every=3")

    assert ahead == [False] * 5


# --- what is not finite -----------------------------------------------------------------------------------


def run_until_it_fails(training: Training, match: str) -> None:
    """Run; it must stop with that message, exit status 1 and weights that were not updated."""
    seen: dict[int, dict[str, Tensor]] = {}
    step = training.step

    def remembering() -> StepResult:
        seen[training.progress.step] = {n: p.detach().clone() for n, p in training.model.named_parameters()}
        return step()

    training.step = remembering  # type: ignore[method-assign]
    with pytest.raises(NonFiniteError, match=match) as caught:
        training.run(Interrupts())
    assert caught.value.exit_status == 1
    assert "\n" not in str(caught.value)
    before = seen[max(seen)]
    if training.progress.step == max(seen):
        for name, p in training.model.named_parameters():
            assert torch.equal(p.nan_to_num(), before[name].nan_to_num()), name


def kept_steps(training: Training) -> list[int]:
    return [step_of(folder) for folder in list_checkpoints(training.folder.checkpoints)]


@pytest.fixture
def sabotaged(begun: Callable[..., Training]) -> Callable[..., Training]:
    """A run that something is done to after a step."""

    def sabotaged(step: int, sabotage: Callable[[Training], object], *settings: str) -> Training:
        reporter = At(step)
        training = begun("a", DEEPER, *settings, reporter=reporter)
        reporter.action = lambda: sabotage(training)
        return training

    return sabotaged


def spoil_a_weight(training: Training) -> None:
    weight: Any = training.model.get_parameter("blocks.1.mlp.W_in.weight")
    weight.data[3, 2] = float("nan")


def make_a_layer_overflow(training: Training) -> None:
    weight: Any = training.model.get_parameter("blocks.1.mlp.W_in.weight")
    weight.data.fill_(3e38)
    weight.data[:, ::2] = -3e38


def make_a_gradient_infinite(training: Training) -> None:
    weight = training.model.get_parameter("blocks.0.mlp.W_out.weight")
    weight.register_hook(lambda gradient: gradient + float("inf"))


def spoil_every_second_batch(training: Training) -> None:
    calls = 0

    def spoil(module: object, inputs: object, output: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return output * float("nan") if calls % 2 == 0 else output

    training.model.get_submodule("blocks.1.mlp").register_forward_hook(spoil)


def test_a_spoilt_weight_stops_the_run_and_is_not_kept(sabotaged: Callable[..., Training]) -> None:
    training = sabotaged(5, spoil_a_weight, "train.checkpoint_every=2", "train.eval_every=100")

    run_until_it_fails(
        training,
        r"step 6: the loss is not finite; first in the weights of blocks\.1\.mlp\.W_in; "
        r"the last good state is the checkpoint of step 4 in",
    )

    assert kept_steps(training) == [4, 2]


def test_a_sample_whose_scores_are_not_finite_stops_the_run_and_the_state_is_kept(
    sabotaged: Callable[..., Training],
) -> None:
    training = sabotaged(5, make_a_layer_overflow, "train.sample_every=5", "train.eval_every=100")

    run_until_it_fails(
        training,
        r"step 5: the score of a sample is not finite; first in the output of blocks\.1\.mlp\.W_in; "
        r"the state before it is saved as step 5 in",
    )

    assert kept_steps(training) == [5]


def test_where_looking_for_the_place_fails_the_state_is_kept_all_the_same(
    sabotaged: Callable[..., Training],
) -> None:
    """Uncompiled, a step may need more memory than there is."""

    def spoil(training: Training) -> None:
        def fill_the_memory(*_: object) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory")

        make_a_gradient_infinite(training)
        training.train_step.find_nonfinite = fill_the_memory  # type: ignore[method-assign]

    training = sabotaged(3, spoil)
    run_until_it_fails(
        training,
        r"step 4: the gradient is .* a place that could not be looked for \(OutOfMemoryError\); the state",
    )
    assert kept_steps(training) == [3]


def test_without_an_earlier_checkpoint_that_is_said(sabotaged: Callable[..., Training]) -> None:
    training = sabotaged(3, spoil_a_weight)

    run_until_it_fails(training, "step 4: .*no checkpoint has been written")

    assert kept_steps(training) == []


def test_a_layer_that_overflows_stops_the_run_and_the_state_before_is_kept(
    sabotaged: Callable[..., Training],
) -> None:
    training = sabotaged(3, make_a_layer_overflow)

    run_until_it_fails(
        training,
        r"step 4: the loss is not finite; first in the output of blocks\.1\.mlp\.W_in; "
        r"the state before it is saved as step 3 in",
    )

    assert kept_steps(training) == [3]
    kept = load_checkpoint(last_checkpoint(training.folder))
    assert all(torch.equal(kept.model[name], p) for name, p in training.model.named_parameters())


def test_a_gradient_that_overflows_stops_the_run(sabotaged: Callable[..., Training]) -> None:
    training = sabotaged(3, make_a_gradient_infinite)

    run_until_it_fails(
        training,
        r"step 4: the gradient is not finite; first in the gradient of blocks\.0\.mlp\.W_out\.weight; "
        r"the state before it is saved as step 3",
    )

    assert kept_steps(training) == [3]


def test_the_culprit_is_found_in_a_later_part_of_the_batch(sabotaged: Callable[..., Training]) -> None:
    training = sabotaged(3, spoil_every_second_batch, "train.grad_accum_steps=2")

    run_until_it_fails(training, r"first in the output of blocks\.1\.mlp;")


def test_a_held_out_loss_that_is_not_finite_stops_the_run(
    sabotaged: Callable[..., Training], monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate = next_token.evaluate_split
    monkeypatch.setattr(
        next_token, "evaluate_split", lambda *args, **kw: replace(evaluate(*args, **kw), loss=math.nan)
    )
    training = sabotaged(-1, lambda _: None)

    run_until_it_fails(training, "step 5: the held-out loss is not finite; first in no single module")

    assert all(math.isfinite(line["loss"]) for line in read_metrics(training.folder.metrics_file))


def test_an_update_that_spoils_the_weights_never_becomes_a_checkpoint(
    sabotaged: Callable[..., Training],
) -> None:
    """Without held-out text nothing reads the weights between the update and the checkpoint."""
    training = sabotaged(6, spoil_a_weight, "train.checkpoint_every=3", "data.val_fraction=0.0")

    run_until_it_fails(
        training, r"step 6: the update is not finite; first in the weights of blocks\.1\.mlp\.W_in"
    )

    assert kept_steps(training) == [3]


def test_the_last_good_state_is_named_once_it_is_written(
    sabotaged: Callable[..., Training], monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = Hold(monkeypatch, step=4)

    def spoil(training: Training) -> None:
        hold.let_go_soon()
        spoil_a_weight(training)

    training = sabotaged(5, spoil, "train.checkpoint_every=4")

    run_until_it_fails(training, r"step 6: the loss is not finite; .* the checkpoint of step 4 in")

    assert kept_steps(training) == [4]


def test_a_run_that_failed_can_be_resumed_and_fails_no_later(
    sabotaged: Callable[..., Training], resumed: Resumed
) -> None:
    """The state is the last good one: the same step fails again, and nothing is lost."""
    training = sabotaged(3, make_a_layer_overflow)
    run_until_it_fails(training, "step 4")

    with pytest.raises(NonFiniteError, match="step 4"):
        resumed("a")
    assert kept_steps(training) == [3]
    assert json.loads((last_checkpoint(training.folder) / "state.json").read_text())["step"] == 3


def test_first_weights_whose_held_out_loss_is_not_finite_are_told_of_in_a_line(trained: Trained) -> None:
    """A run by the clock evaluates them before its first step, to measure how long that takes."""
    wild = ("model.init=gpt2", "model.init.std=1e30", "train.max_wall_seconds=60")
    with pytest.raises(
        NonFiniteError, match="step 0: the held-out loss is not finite; first in the output of"
    ):
        trained("a", *wild)
