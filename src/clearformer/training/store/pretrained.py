"""Starting a run with the weights of an earlier one."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from clearformer.config import differing
from clearformer.errors import CheckpointError, ConfigError, RunError
from clearformer.model import ModelConfig, Transformer
from clearformer.text import Tokenizer, TokenizerConfig
from clearformer.training.config import RunConfig
from clearformer.training.reporting.report import Reporter
from clearformer.training.store.checkpoint import (
    MODEL,
    Checkpoint,
    describe,
    load_checkpoint,
    newest_whole,
    step_folder,
)
from clearformer.training.store.folder import RunFolder

HEADS = ("head.", "head_bias", "masked_head.", "pooler.", "classifier.")  # parts that belong to one task
MAY_DIFFER = frozenset(
    {"vocab_size", "max_seq_len", "dropout", "init", "masked_head", "head_bias", "n_classes", "pooling"}
)
"""Settings of section `model` of the heads, and those that change no result of the weights."""
ABSENT = "absent"


def pretrained_tokenizer(config: RunConfig) -> Tokenizer | None:
    """Return the tokenizer of the run in `train.pretrained`, if any, as its weights are for those tokens.

    Raises:
        RunError: there is no such run.
        ConfigError: the configuration asks for another tokenizer.
    """
    if config.train.pretrained is None:
        return None
    folder = RunFolder(Path(config.train.pretrained))
    theirs = folder.read_config()
    if config.tokenizer != theirs.tokenizer:
        raise ConfigError(
            f"{_other_tokenizer(config.tokenizer, theirs.tokenizer)}: train.pretrained={folder.path} comes with its "
            "tokenizer; remove the setting to use that one"
        )
    return folder.read_tokenizer(theirs.model.vocab_size)


def load_pretrained(
    model: Transformer, run: Path, reporter: Reporter, began_with: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Load a model's weights from the newest checkpoint of another run.

    Heads that only one of the models has are skipped, and so is a classifier with another number of classes.

    Args:
        model: The model.
        run: The folder of the other run.
        reporter: Receives a line about it.
        began_with: What this function returned when the run began; the same weights are loaded then.

    Returns:
        `step`, the step of the checkpoint, and `sha256`, that of its weights.

    Raises:
        RunError: the run has no checkpoint, or no longer that one.
        CheckpointError: all of its checkpoints are damaged.
        DiskError: one may not be read.
        ConfigError: the models differ in more than their heads.
    """
    checkpoints = RunFolder(run).checkpoints
    checkpoint = newest_whole(checkpoints) if began_with is None else _same_again(checkpoints, began_with)
    if checkpoint is None:
        raise RunError(f"train.pretrained: {run} has no checkpoint")
    step = checkpoint.progress.step
    try:
        sha256 = _sha256(checkpoints, step)
    except FileNotFoundError:
        raise RunError(
            f"train.pretrained: {run}, which is being trained, has just deleted its checkpoint of step {step:,}: start "
            "again"
        ) from None
    weights, own = dict(checkpoint.model), model.state_dict()
    for name in sorted(own.keys() | weights.keys()):
        own_shape, pretrained_shape = _shape(own.get(name)), _shape(weights.get(name))
        if own_shape == pretrained_shape:
            continue
        is_other_head = ABSENT in (own_shape, pretrained_shape) and name.startswith(HEADS)
        if not is_other_head and not name.startswith("classifier."):
            raise ConfigError(
                f"train.pretrained: {name} is {pretrained_shape} in {run} and {own_shape} in this model; its sizes "
                f"must match {run / 'config.toml'}"
            )
        weights.pop(name, None)
    model.load_state_dict(weights, strict=False)
    anew = ", ".join(sorted({name.partition(".")[0] for name in own.keys() - weights.keys()}))
    reporter.say(f"starting from the weights of {run}, step {step}{anew and f'; new: {anew}'}")
    if other := _other_settings(model.config, RunFolder(run).read_config().model):
        reporter.say(f"these weights were trained with other settings: {other}")
    return {"step": step, "sha256": sha256}


def _same_again(checkpoints: Path, began_with: Mapping[str, Any]) -> Checkpoint:
    """Return the checkpoint that a run began with.

    Raises:
        RunError: it was deleted or written again.
    """
    step = began_with["step"]
    with suppress(CheckpointError, OSError):
        if _sha256(checkpoints, step) == began_with["sha256"]:
            return load_checkpoint(step_folder(checkpoints, step))
    raise RunError(
        f"train.pretrained: {checkpoints.parent} no longer has the weights of step {step:,} that this run began "
        "with; start a new run"
    )


def _sha256(checkpoints: Path, step: int) -> Any:
    return describe(step_folder(checkpoints, step) / MODEL)["sha256"]


def _other_tokenizer(own: TokenizerConfig, theirs: TokenizerConfig) -> str:
    """Return the settings of a tokenizer that differ from another's; of another kind's, the kind alone."""
    if own.kind != theirs.kind:
        return f"tokenizer.kind={own.kind} (there {theirs.kind})"
    others = differing(own, theirs).items()
    return ", ".join(f"tokenizer.{key}={mine} (there {its})" for key, (mine, its) in others)


def _other_settings(own: ModelConfig, theirs: ModelConfig) -> str:
    """Return the settings of a model that differ from those that its weights were trained with, but for its heads."""
    return ", ".join(
        f"model.{key}={mine} (there {its})"
        for key, (mine, its) in differing(own, theirs).items()
        if key.partition(".")[0] not in MAY_DIFFER
    )


def _shape(tensor: object) -> str:
    return ABSENT if tensor is None else "x".join(str(n) for n in getattr(tensor, "shape", ()))
