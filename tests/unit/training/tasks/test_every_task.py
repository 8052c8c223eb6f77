"""What holds for every task: parts make the whole, resuming is exact, looking changes nothing."""

import math
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from clearformer.data.text.batches import IGNORED
from clearformer.errors import DataError, Interrupted
from clearformer.evaluation.subsets import evenly_spaced
from clearformer.training.loop import Training, TrainResult
from clearformer.training.reporting.report import Reporter
from clearformer.training.store.checkpoint import (
    MODEL,
    OPTIMIZER,
    Progress,
    list_checkpoints,
    load_checkpoint,
    step_of,
)
from clearformer.training.store.folder import RunFolder, read_metrics
from clearformer.training.tasks.masked import masked_in_order

Trained = Callable[..., TrainResult]
Begun = Callable[..., Training]
Folders = Callable[[str], RunFolder]

TASKS = ("next_token", "translation", "masked", "masked-labelled", "classification")
NEW_TASKS = TASKS[1:]
every_task = pytest.mark.parametrize("task", TASKS)
every_new_task = pytest.mark.parametrize("task", NEW_TASKS)

LINE = {"step", "tokens", "seconds", "loss", "lr", "grad_norm", "tokens_per_second"}
OF_THE_CLOCK = {"seconds", "tokens_per_second"}
SAID_OF_AN_EVALUATION = {
    "next_token": {"val_loss", "val_share"},
    "translation": {"val_loss", "val_share", "val_perplexity"},
    "masked": {"val_loss", "val_share", "val_accuracy"},
    "masked-labelled": {"val_loss", "val_share", "val_accuracy"},
    "classification": {"val_loss", "val_share", "val_accuracy", "val_macro_f1"},
}


class Listener(Reporter):
    """Remembers the samples; does something when a step is done."""

    def __init__(self, step: int = -1, action: Callable[[], object] = lambda: None) -> None:
        self.step, self.action = step, action
        self.samples: list[str] = []

    def stepped(self, progress: Progress, metrics: object) -> None:
        if progress.step == self.step:
            self.action()

    def sampled(self, text: str) -> None:
        self.samples.append(text)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0)


def lines_of(folder: RunFolder) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in line.items() if name not in OF_THE_CLOCK}
        for line in read_metrics(folder.metrics_file)
    ]


def last_checkpoint(folder: RunFolder) -> Path:
    return list_checkpoints(folder.checkpoints)[0]


def same_weights(a: TrainResult, b: TrainResult) -> bool:
    return all(torch.equal(p, q) for p, q in zip(a.model.parameters(), b.model.parameters(), strict=True))


# --- parts ------------------------------------------------------------------------------------------------


def mean_of_parts(training: Training, step: int, n_parts: int) -> tuple[Tensor, dict[str, Tensor], list[int]]:
    """The mean of the parts' losses, of their gradients, and the rows of each."""
    training.model.zero_grad()
    total, rows = torch.zeros(()), []
    for part in range(n_parts):
        batch = training.task.batch(step, part, n_parts)
        loss = training.task.loss(training.model, *batch) / n_parts
        loss.backward()
        total, rows = total + loss.detach(), [*rows, len(batch[0])]
    gradients = {name: p.grad.clone() for name, p in training.model.named_parameters() if p.grad is not None}
    return total, gradients, rows


@pytest.mark.parametrize(
    ("task", "n_parts"),
    [("next_token", 3), *product(NEW_TASKS, [3, 4])],  # of a text the parts are even
)
def test_the_mean_of_the_parts_is_the_whole(begun: Begun, task: str, n_parts: int) -> None:
    """Also where the parts hold unequally many rows and targets."""
    training = begun("a", task, "train.label_smoothing=0.1")
    whole, gradients, [n_rows] = mean_of_parts(training, 1, 1)

    mean, of_parts, rows = mean_of_parts(training, 1, n_parts)

    assert sum(rows) == n_rows
    torch.testing.assert_close(mean, whole)
    assert of_parts.keys() == gradients.keys() == dict(training.model.named_parameters()).keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(of_parts[name], gradient, atol=1e-6, rtol=1e-4)


@every_new_task
def test_a_part_may_have_no_rows(begun: Begun, task: str) -> None:
    """Where a batch has fewer rows than there are processes times parts."""
    training = begun("a", task)
    whole, gradients, [n_rows] = mean_of_parts(training, 0, 1)

    mean, of_parts, rows = mean_of_parts(training, 0, n_rows + 2)

    assert rows[-2:] == [0, 0]
    torch.testing.assert_close(mean, whole)
    for name, gradient in gradients.items():
        torch.testing.assert_close(of_parts[name], gradient, atol=1e-6, rtol=1e-4)


@every_new_task
def test_a_batch_in_parts_trains_the_same(trained: Trained, task: str) -> None:
    settings = ("train.max_steps=5", "train.optimizer=adam")
    whole, parts = trained("a", task, *settings), trained("b", task, *settings, "train.grad_accum_steps=3")

    assert whole.progress.tokens == parts.progress.tokens
    for p, q in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        torch.testing.assert_close(p, q, atol=1e-4, rtol=1e-3)


# --- a run ------------------------------------------------------------------------------------------------


@every_new_task
def test_a_stopped_run_goes_on_as_if_it_had_not_stopped(
    trained: Trained, resumed: Trained, run_folder: Folders, task: str
) -> None:
    settings = ("model.dropout=0.2", "train.ema=0.5", "train.optimizer=muon", "train.label_smoothing=0.1")
    trained("whole", task, *settings)

    with pytest.raises(Interrupted):
        trained("a", task, *settings, reporter=Listener(6, interrupt))
    assert step_of(last_checkpoint(run_folder("a"))) == 6
    resumed("a")

    ours, theirs = (last_checkpoint(run_folder(name)) for name in ("a", "whole"))
    for name in (MODEL, OPTIMIZER):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes()
    of_ours, of_theirs = (replace(load_checkpoint(path).progress, seconds=0) for path in (ours, theirs))
    assert of_ours == of_theirs
    assert lines_of(run_folder("a")) == lines_of(run_folder("whole"))


@every_new_task
@pytest.mark.parametrize(
    "settings",
    [
        ("train.eval_every=1",),
        ("train.eval_every=1", "train.eval_flops_fraction=none"),
        ("train.sample_every=1",),
    ],
    ids="+".join,
)
def test_looking_never_changes_the_steps(trained: Trained, task: str, settings: tuple[str, ...]) -> None:
    quiet = ("train.eval_every=1000", "model.dropout=0.2", "train.max_steps=4")

    assert same_weights(trained("a", task, *quiet), trained("b", task, *quiet, *settings))


@every_task
def test_the_lines_say_what_an_evaluation_found(trained: Trained, run_folder: Folders, task: str) -> None:
    outcome = trained("a", task, "train.eval_every=4", "train.max_steps=9")

    lines = read_metrics(run_folder("a").metrics_file)
    for line in lines:
        evaluated = line["step"] in (4, 8, 9)
        layers = {name: norm for name, norm in line.items() if name.startswith("grad_norm/")}
        assert any("blocks.0" in name for name in layers)
        assert math.hypot(*layers.values()) == pytest.approx(line["grad_norm"], rel=1e-6)
        assert line.keys() - layers == LINE | (SAID_OF_AN_EVALUATION[task] if evaluated else set())
        assert all(0 <= line[name] <= 1 for name in ("val_accuracy", "val_macro_f1") if name in line)
        assert not evaluated or (line["val_share"] == 1) == (line["step"] == 9)
    assert lines[-1]["val_loss"] == outcome.progress.val_loss
    assert (
        lines[-1]["tokens"]
        == sum(outcome.task.n_tokens(step) for step in range(9))
        == outcome.progress.tokens
    )


# --- a part of the held-out data --------------------------------------------------------------------------


def rows_read(training: Training, n_rows: int | None) -> list[tuple[int, ...]]:
    """The rows of the held-out data that an evaluation reads."""
    rows: list[tuple[int, ...]] = []

    def look(_: object, inputs: tuple[Tensor, ...]) -> None:
        rows.extend(tuple(row.tolist()) for row in inputs[0])

    with training.model.embed.register_forward_pre_hook(look):
        training.task.evaluate(training.model, torch.float32, n_rows)
    return rows


@every_task
def test_a_part_has_as_many_rows_as_asked_for_and_the_same_each_time(begun: Begun, task: str) -> None:
    training = begun("a", task)
    per_row = 2 if task == "translation" else 1  # a source and a target
    n_all = training.task.n_held_out

    assert n_all > 9
    assert len(rows_read(training, None)) == len(rows_read(training, n_all)) == per_row * n_all
    for n_rows in (1, 4, n_all - 1):
        rows = rows_read(training, n_rows)
        assert len(rows) == per_row * n_rows
        assert rows == rows_read(training, n_rows)
        parts = [training.task.evaluate(training.model, torch.float32, n_rows) for _ in range(2)]
        assert parts[0].loss == parts[1].loss  # type: ignore[union-attr]


@every_new_task
def test_the_rows_of_a_part_are_evenly_spaced_ones_of_the_whole(begun: Begun, task: str) -> None:
    """Of a running text the rows are stretches, with [CLS] and [SEP] around them."""
    training = begun("a", task)
    split = training.task.dataset.splits["val"]  # type: ignore[attr-defined]
    tokenizer, n_rows = training.task.tokenizer, 5
    places = evenly_spaced(n_rows, training.task.n_held_out).tolist()
    if task == "translation":
        expected = [(*split.source(place).tolist(), tokenizer.eos_id) for place in places]
        expected += [(tokenizer.bos_id, *split.target(place).tolist()) for place in places]
    elif task == "masked":
        text = split.read(0, len(split))
        stretches = [text[21 * place : 21 * (place + 1)].tolist() for place in places]
        expected = [(tokenizer.bos_id, *stretch, tokenizer.eos_id) for stretch in stretches]
    else:
        expected = [tuple(split.row(place).tolist()) for place in places]

    if task.startswith("masked"):
        batches = masked_in_order(training.config, training.task.dataset, n_rows=n_rows)  # type: ignore[attr-defined]
        found = [
            tuple(np.where(targets == IGNORED, tokens, targets)[padding].tolist())
            for batch in batches
            for tokens, padding, targets in zip(*batch, strict=True)
        ]
    else:
        found = [tuple(t for t in row if t != tokenizer.pad_id) for row in rows_read(training, n_rows)]

    assert sorted(found) == sorted(expected)


@every_task
def test_the_rows_of_a_step_are_those_of_its_batches(begun: Begun, task: str) -> None:
    training = begun("a", task)
    n_steps = training.task.batches.batches_per_epoch if task == "translation" else 3  # type: ignore[attr-defined]

    counts = [len(training.task.batch(step, 0, 1)[0]) for step in range(n_steps)]

    assert training.task.rows_per_step == pytest.approx(sum(counts) / len(counts), rel=0.05)


@pytest.mark.parametrize("task", ["masked-labelled", "classification"])
def test_the_rows_of_a_step_are_fewer_than_a_full_batch_where_an_epoch_is_spread_evenly(
    begun: Begun, task: str
) -> None:
    training = begun("a", task, "train.batch_size=100")

    counts = [len(training.task.batch(step, 0, 1)[0]) for step in range(2)]

    assert max(counts) < 80
    assert training.task.rows_per_step == sum(counts) / 2


@every_task
def test_without_held_out_data_there_are_no_rows(begun: Begun, task: str) -> None:
    training = begun("a", task, "data.val_fraction=0.0")

    assert training.task.n_held_out == 0
    assert training.evaluate() == {}
    assert training.evaluation is None


@every_new_task
def test_the_best_and_the_last_are_kept(trained: Trained, run_folder: Folders, task: str) -> None:
    """At this rate it soon becomes worse."""
    settings = (
        "train.checkpoint_every=2",
        "train.eval_every=2",
        "train.eval_flops_fraction=none",
        "train.keep_last=1",
        "train.schedule=constant",
    )
    outcome = trained("a", task, *settings, "train.lr=0.5", "train.optimizer=adam", "train.max_steps=8")

    losses = {
        line["step"]: line["val_loss"]
        for line in read_metrics(run_folder("a").metrics_file)
        if "val_loss" in line
    }
    best = min(losses, key=losses.__getitem__)
    assert outcome.progress.best_step == best
    assert {step_of(path) for path in list_checkpoints(run_folder("a").checkpoints)} == {best, 8}


@every_new_task
def test_without_held_out_data_nothing_is_evaluated(trained: Trained, run_folder: Folders, task: str) -> None:
    listener = Listener()

    outcome = trained(
        "a", task, "data.val_fraction=0.0", "train.sample_every=13", "train.eval_every=6", reporter=listener
    )

    assert outcome.evaluation is None
    assert all("val_loss" not in line for line in read_metrics(run_folder("a").metrics_file))
    assert len(listener.samples) == 1  # then of the training data


@every_new_task
def test_samples_on_the_way_are_the_same_for_the_same_state(trained: Trained, task: str) -> None:
    listener, other = Listener(), Listener()
    settings = ("train.sample_every=5", "model.dropout=0.5")

    outcome = trained("a", task, *settings, reporter=listener)
    trained("b", task, *settings, "train.eval_every=1", reporter=other)

    assert len(listener.samples) == 2
    assert listener.samples == other.samples
    assert outcome.task.sample(outcome.model) == outcome.task.sample(outcome.model)
    assert all(sample.strip() for sample in listener.samples)
    assert (
        all(len(line) < 130 for sample in listener.samples for line in sample.split("\n")) or "masked" in task
    )


@every_new_task
def test_label_smoothing_has_an_effect_on_training_and_none_on_evaluation(begun: Begun, task: str) -> None:
    plain, smooth = begun("a", task), begun("b", task, "train.label_smoothing=0.3")

    losses = [
        training.task.loss(training.model, *training.task.batch(0, 0, 1)) for training in (plain, smooth)
    ]
    held_out = [training.task.evaluate(training.model, torch.float32) for training in (plain, smooth)]

    assert abs(losses[0] - losses[1]) > 1e-5
    assert held_out[0].loss == held_out[1].loss  # type: ignore[union-attr]


@every_task
def test_the_vocabulary_is_the_tokenizers(trained: Trained, run_folder: Folders, task: str) -> None:
    outcome = trained("a", task, "train.max_steps=1")

    assert run_folder("a").read_config().model.vocab_size == outcome.task.tokenizer.vocab_size
    assert outcome.model.embed.num_embeddings == outcome.task.tokenizer.vocab_size


@pytest.mark.parametrize("task", ["masked-labelled", "classification"])
def test_a_held_out_text_that_is_too_long_is_refused_before_anything_is_done(
    trained: Trained, run_folder: Folders, tmp_path: Path, task: str
) -> None:
    (tmp_path / "val.tsv").write_text(f"text\tlabel\nshort\triver\n{'long ' * 9}\triver\n")

    with pytest.raises(DataError, match=r"val\.tsv, line 3: 46 tokens"):
        trained("a", task, f"data.val_path={tmp_path / 'val.tsv'}")
    assert not run_folder("a").path.exists()
