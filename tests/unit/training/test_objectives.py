"""Objectives: pure data and the arithmetic of it."""

import ast
import inspect
from typing import ClassVar, Literal

import pytest

from clearformer.errors import ConfigError
from clearformer.model.config import ModelConfig
from clearformer.training import config, objectives
from clearformer.training.objectives import (
    ClassificationObjective,
    MaskedObjective,
    NextTokenObjective,
    ObjectiveSpec,
    TranslationObjective,
)

MASKED, PAIRS = MaskedObjective(fraction=0.3), TranslationObjective(batch_tokens=1000)


@pytest.mark.parametrize(
    ("objective", "tokens", "texts", "batch"),
    [
        (NextTokenObjective(), 12 * 31, 4, "12 x 31 tokens"),
        (MASKED, 12 * 31, 4, "12 x 31 tokens"),
        (ClassificationObjective(), 12 * 31, 4, "12 x 31 tokens"),
        (PAIRS, 1000, 333 // 31, "up to 1,000 tokens"),
    ],
)
def test_the_size_of_a_batch(objective: ObjectiveSpec, tokens: int, texts: int, batch: str) -> None:
    assert objective.tokens_per_step(12, 31) == tokens
    assert objective.texts_per_part(12, 3, 31) == texts
    assert objective.describe_batch(12, 31, "text") == batch


def test_labelled_texts_are_counted_and_a_part_has_at_least_one_text() -> None:
    assert MASKED.describe_batch(12, 31, "labelled") == "12 texts"
    assert TranslationObjective(batch_tokens=7).texts_per_part(12, 1, 31) == 1


def test_only_masked_training_needs_logits_of_some_tokens() -> None:
    assert MASKED.logits_fraction == 0.3
    assert {spec.logits_fraction for spec in (NextTokenObjective(), PAIRS, ClassificationObjective())} == {
        1.0
    }


def test_batches_that_cannot_be_made_are_refused() -> None:
    PAIRS.check_batches(32, 5)
    with pytest.raises(ConfigError, match=r"^train\.grad_accum_steps: 5 does not divide"):
        MASKED.check_batches(32, 5)
    with pytest.raises(ConfigError, match=r"set train\.objective\.batch_tokens"):
        PAIRS.check_batches(8, 1)


def test_masked_training_refuses_what_it_does_not_train() -> None:
    encoder = ModelConfig(family="encoder")
    ClassificationObjective().check_model(encoder.replace(n_classes=3, pooling="mean"))
    MASKED.check_model(encoder)
    with pytest.raises(ConfigError, match=r"^model\.n_classes: "):
        MASKED.check_model(encoder.replace(n_classes=3))
    with pytest.raises(ConfigError, match=r"^model\.pooling: "):
        MASKED.check_model(encoder.replace(pooling="mean"))


@pytest.mark.parametrize("module", [objectives, config])
def test_neither_objectives_nor_the_configuration_know_the_tasks(module: object) -> None:
    tree = ast.parse(inspect.getsource(module))  # type: ignore[arg-type]
    imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert "clearformer.config" in imported
    forbidden = ("clearformer.training.tasks",) + (
        ("clearformer.training.config",) if module is objectives else ()
    )
    assert not [name for name in imported if name.startswith(forbidden)]


def test_a_loss_of_two_passes_is_not_inherited() -> None:
    """A kind that derives from one of ours may have another loss, which would leave the setting without effect."""

    class Other(NextTokenObjective):
        kind: Literal["other"] = "other"  # type: ignore[assignment]

    class OtherOfTwoPasses(Other):
        has_r_drop: ClassVar[bool] = True

    assert NextTokenObjective().takes_r_drop
    assert not Other().takes_r_drop
    assert OtherOfTwoPasses().takes_r_drop
    assert not MaskedObjective().takes_r_drop
