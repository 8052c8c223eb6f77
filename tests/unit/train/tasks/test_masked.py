"""Masked modelling: what is guessed, on what text, and that it learns."""

import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from clearformer.errors import ConfigError
from clearformer.train.config import RunConfig
from clearformer.train.loop import Outcome, Training
from clearformer.train.objective import IGNORED

Trained = Callable[..., Outcome]
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


def test_it_learns(trained: Trained, tmp_path: Path) -> None:
    """Every letter stands between others that tell it."""
    (tmp_path / "text.txt").write_text("abcdefghijkl" * 300)

    outcome = trained(
        "a",
        "masked",
        f"data.path={tmp_path / 'text.txt'}",
        "model.d_model=24",
        "model.n_layers=2",
        "model.position=rope",
        "model.init=xavier",
        "train.objective.fraction=0.3",
        "train.optimizer=adam",
        "train.lr=0.01",
        "train.max_steps=200",
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
    with pytest.raises(ConfigError, match=r"model\.n_classes: masked training .*leave it out"):
        configure("masked", "model.n_classes=3")


@pytest.mark.parametrize("task", ["masked", "classification"])
def test_a_text_needs_room_between_its_ends(configure: Callable[..., RunConfig], task: str) -> None:
    with pytest.raises(ConfigError, match=r"model\.max_seq_len: 2 leaves no room .*3 or more"):
        configure(task, "model.max_seq_len=2")
