"""Masked modelling: what is guessed, on what text, and that it learns."""

import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from clearformer.data.masking import MaskedBatch
from clearformer.errors import ConfigError, DataError
from clearformer.evaluation.masked import evaluate_masked
from clearformer.model import Encoder
from clearformer.run import load
from clearformer.runs.scores import evaluate
from clearformer.training.config import RunConfig
from clearformer.training.loop import Training, TrainResult
from clearformer.training.store.checkpoint import list_checkpoints, load_checkpoint
from clearformer.training.store.folder import RunFolder, read_metrics
from clearformer.training.tasks.losses import IGNORED
from clearformer.training.tasks.masked import masked_in_order

Trained = Callable[..., TrainResult]
Begun = Callable[..., Training]


@pytest.mark.parametrize("task", ["masked", "masked-labelled"])
def test_the_loss_is_the_mean_over_what_is_masked(begun: Begun, task: str) -> None:
    training = begun("a", task)
    tokens, padding, targets, weight = training.task.batch(0, 0, 1)

    loss = training.task.loss(training.model, tokens, padding, targets, weight)

    guessed = targets != IGNORED
    logits = training.model(tokens, padding)
    assert loss.item() == pytest.approx(F.cross_entropy(logits[guessed], targets[guessed]).item(), rel=1e-5)
    assert not guessed[~padding].any()
    assert training.task.n_tokens(0) == int(padding.sum())


def test_a_step_masks_anew_and_the_same_step_the_same(begun: Begun) -> None:
    training, again = begun("a", "masked"), begun("b", "masked")

    for step in (0, 1):
        for ours, theirs in zip(training.task.batch(step, 0, 1), again.task.batch(step, 0, 1), strict=True):
            assert torch.equal(ours, theirs)
    steps = [training.task.batch(step, 0, 1)[2] for step in range(5)]
    assert len({tuple((targets != IGNORED).flatten().tolist()) for targets in steps}) == 5


@pytest.mark.parametrize("fraction", [0.15, 0.6])
def test_the_fraction_is_the_part_that_is_guessed(begun: Begun, fraction: float) -> None:
    training = begun("a", "masked", f"train.objective.fraction={fraction}")
    batches = [training.task.batch(step, 0, 1) for step in range(60)]

    n_guessed = sum(int((targets != IGNORED).sum()) for _, _, targets, _ in batches)
    n_tokens = sum(int(padding.sum()) - 2 * len(padding) for _, padding, _, _ in batches)

    assert n_guessed / n_tokens == pytest.approx(fraction, abs=0.04)


def test_whole_words_are_masked_together(begun: Begun) -> None:
    training = begun("a", "masked", "train.objective.whole_words=true")
    tokenizer = training.task.tokenizer
    _, _, targets, _ = training.task.batch(0, 0, 1)

    masked = "".join("." if t == IGNORED else tokenizer.decode([t]) for t in targets.flatten().tolist())

    words = [word for word in re.split(r"[.\s;]+", masked) if word]
    whole = re.compile(r"the|and|[a-e]{1,7}|\d+")
    assert any(word in ("the", "and") for word in words)
    assert (
        sum(bool(whole.fullmatch(word)) for word in words) >= len(words) - 2
    )  # a window may cut its first and last


def test_the_held_out_text_is_masked_alike_in_every_run(begun: Begun) -> None:
    one, other = begun("a", "masked"), begun("b", "masked", "seed=2")
    other.model.load_state_dict(one.model.state_dict())

    a, b = (training.task.evaluate(training.model, torch.float32) for training in (one, other))

    assert a == b
    assert a is not None


# --- held-out text with nothing to guess ---------------------------------------------------------------------

KNOWN, UNKNOWN = (
    "the cat sat on the mat and on the hat ",
    "ж " * 19,
)  # of a letter that is in no training text


@pytest.mark.parametrize("task", ["masked", "masked-labelled"])
def test_the_held_out_text_is_masked_alike_whatever_the_size_of_a_batch(begun: Begun, task: str) -> None:
    def masked(name: str, batch_size: int) -> tuple[list[int], list[tuple[int, ...]]]:
        training = begun(name, task, f"train.batch_size={batch_size}")
        found = list(masked_in_order(training.config, training.task.dataset))  # type: ignore[attr-defined]
        rows = [
            tuple(row[real].tolist())
            for batch in found
            for row, real in zip(batch.targets, batch.padding, strict=True)
        ]
        return [len(batch.tokens) for batch in found], rows

    (sizes, few), (_, many) = masked("a", 3), masked("b", 500)
    assert max(sizes) == 3
    assert few == many


def unknown_in_the_end(tmp_path: Path, held_out: str) -> tuple[str, ...]:
    """The settings of a run whose held-out text, the last tenth, is this."""
    text = KNOWN * (9 * len(held_out) // len(KNOWN) + 1)
    (tmp_path / "text.txt").write_text(text + held_out)
    share = len(held_out) / len(text + held_out)
    return (f"data.path={tmp_path / 'text.txt'}", f"data.val_fraction={share:.6f}", "tokenizer=wordpiece")


def test_where_nothing_at_all_can_be_guessed_that_is_said_before_training(
    trained: Trained, run_folder: Callable[[str], RunFolder], tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=r"held-out split has no token to mask: .*\[UNK\]; .*val_fraction=0"):
        trained("a", "masked", *unknown_in_the_end(tmp_path, UNKNOWN * 8))
    assert not run_folder("a").path.exists()


def test_a_part_with_nothing_to_guess_has_no_loss_and_is_never_the_best(
    trained: Trained, run_folder: Callable[[str], RunFolder], tmp_path: Path
) -> None:
    """What is read on the way is the middle row alone, and that one is unknown."""
    settings = unknown_in_the_end(tmp_path, KNOWN * 3 + UNKNOWN * 6 + KNOWN * 3)
    outcome = trained(
        "a",
        "masked",
        *settings,
        "train.checkpoint_every=4",
        "train.eval_every=3",
        "train.eval_flops_fraction=0.0001",
    )

    lines = {line["step"]: line for line in read_metrics(run_folder("a").metrics_file)}
    assert {step for step, line in lines.items() if "val_loss" in line} == {13}
    assert lines[13]["val_share"] == 1
    progress = load_checkpoint(list_checkpoints(run_folder("a").checkpoints)[0]).progress
    assert (progress.val_loss, progress.best_step) == (None, None)
    assert outcome.evaluation is not None
    assert outcome.evaluation.loss > 0


def test_labels_are_left_aside(
    trained: Trained, run_folder: Callable[[str], RunFolder], tmp_path: Path
) -> None:
    """One is enough, and held-out texts may have others."""
    for name, label in (("train", "x"), ("val", "z"), ("other", "y")):
        rows = "".join(f"a b c {n} {name}\t{label}\n" for n in range(9))
        (tmp_path / f"{name}.tsv").write_text(f"text\tlabel\n{rows}")
    paths = (f"data.path={tmp_path / 'train.tsv'}", f"data.val_path={tmp_path / 'val.tsv'}")
    result = trained("a", "masked-labelled", *paths, "train.max_steps=2")
    assert len(result.task.dataset.splits["val"]) == 9  # type: ignore[attr-defined]
    run = load(run_folder("a").path)
    assert evaluate(run, tmp_path / "other.tsv").loss > 0
    assert evaluate(run).loss > 0


def test_a_mean_over_nothing_is_none(begun: Begun) -> None:
    training = begun("a", "masked")
    tokens, padding, targets, _ = (tensor.numpy() for tensor in training.task.batch(0, 0, 1))
    nothing = MaskedBatch(tokens, padding, np.full_like(targets, IGNORED))
    assert isinstance(training.model, Encoder)

    assert evaluate_masked(training.model, [nothing]) is None
    assert evaluate_masked(training.model, []) is None
    both = evaluate_masked(training.model, [nothing, MaskedBatch(tokens, padding, targets)])
    assert both == evaluate_masked(training.model, [MaskedBatch(tokens, padding, targets)])


# --- learning ---------------------------------------------------------------------------------------------


def test_it_learns(trained: Trained, tmp_path: Path) -> None:
    """Every letter stands between others that tell it."""
    (tmp_path / "text.txt").write_text("abcdefghijkl" * 1000)

    outcome = trained(
        "a",
        "masked",
        f"data.path={tmp_path / 'text.txt'}",
        "model.d_model=24",
        "model.n_layers=1",
        "model.position=rope",
        "model.init=xavier",
        "train.objective.fraction=0.3",
        "train.optimizer=adam",
        "train.lr=0.01",
        "train.max_steps=300",
        "train.eval_every=1000",
    )

    assert outcome.evaluation is not None
    assert outcome.evaluation.loss < 0.25 * math.log(12)
    assert outcome.evaluation.accuracy > 0.8  # type: ignore[attr-defined]


def test_a_sample_shows_what_was_masked(trained: Trained) -> None:
    outcome = trained("a", "masked", "train.max_steps=1")

    sample = outcome.task.sample(outcome.model)

    assert sample.startswith("[CLS] ")
    assert re.search(r"\[[^ |]+(\|[^ |]+)?\]", sample.removeprefix("[CLS]").removesuffix("[SEP]"))
    assert len(sample.split(" ")) <= 40


def test_its_model_tells_no_classes(configure: Callable[..., RunConfig]) -> None:
    with pytest.raises(ConfigError, match=r"model\.n_classes: masked training .*remove it"):
        configure("masked", "model.n_classes=3")


@pytest.mark.parametrize("task", ["masked", "classification"])
def test_a_text_needs_room_between_its_ends(configure: Callable[..., RunConfig], task: str) -> None:
    with pytest.raises(ConfigError, match=r"model\.max_seq_len: 2 leaves no room .*3 or more"):
        configure(task, "model.max_seq_len=2")
