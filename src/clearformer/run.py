"""A run: a model with its tokenizer and its settings, and the ways to open, use and keep it."""

import logging
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from clearformer.config import as_written
from clearformer.decoding import generate, search, stream, translate
from clearformer.device import lacks_bfloat16, torch_as_it_begins
from clearformer.errors import ClearformerError, RunError, UserError, count, shown
from clearformer.evaluation.classes.scores import classify
from clearformer.evaluation.likelihood import score
from clearformer.files import user_path
from clearformer.model import Transformer
from clearformer.results import html_table
from clearformer.runs.folders import (
    OTHER_NAME,
    UNKEPT,
    Loaded,
    check_empty_folder,
    checked_step,
    find_run,
    name_of,
    new_run,
    read_run,
    run_config,
    write_run,
)
from clearformer.runs.int8 import int8_losses
from clearformer.runs.kept_weights import kept_steps as steps_kept_in
from clearformer.runs.scores import evaluate
from clearformer.text import Tokenizer
from clearformer.training.config import RunConfig
from clearformer.training.reporting.report import held_out
from clearformer.training.setup import LEFT_OPEN, differences
from clearformer.training.store.folder import RunFolder, read_metrics
from clearformer.training.store.state import weights_of

if TYPE_CHECKING:  # rarely needed, so imported where it is called
    from clearformer.decoding.arguments import OnStep
    from clearformer.interop.mapping.matching import ArchitectureMatch

logger = logging.getLogger(__name__)

WRAPPED = ("_orig_mod", "module")
"""Where torch.compile, and DataParallel or DistributedDataParallel, keep the model that they wrap."""


class Run:
    """A model with its tokenizer and its settings: a run that was opened, or a model from your own training loop.

        run = cf.load("NAME")
        run = cf.Run(model, tokenizer)        # then run.save("NAME") keeps it

    `generate`, `stream`, `search`, `translate`, `classify`, `score` and `evaluate` are the functions of the same names,
    with the run as their first argument.

    Attributes:
        model: The model, on its device; in evaluation mode if it was opened.
        tokenizer: The tokenizer that the model was trained with.
        config: All settings. For a model from elsewhere, the default settings of its task.
        step: How many steps the model was trained for; 0 where that is not known.
        average: The number of checkpoints whose mean the weights are; 1 for those of a step itself.
    """

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer,
        config: RunConfig | None = None,
        *,
        folder: RunFolder | None = None,
        step: int = 0,
        labels: tuple[str, ...] | None = None,
    ) -> None:
        """Make a run of a model and the tokenizer that it was trained with.

        Args:
            model: Made by `build`.
            tokenizer: A tokenizer of this package, made by `tokenize` or by a tokenizer's spec.
            config: The settings, whose `model` section must be the model's. By default those of its task.
            folder: Where it is kept, if anywhere.
            step: How many steps it was trained for.
            labels: The names of its classes, for a classifier without a config.

        Raises:
            UserError: one of them is of another type, the tokenizer has tokens that the model does not, or the config
                or the labels are not the model's.
        """
        check_fit(model, tokenizer)
        check_folder(folder)
        if labels is not None:
            check_labels(labels, model, config)
        self.model, self.tokenizer, self.step = model, tokenizer, checked_step(step)
        if config is None:
            self.config = run_config(model.config, labels, tokenizer)
        else:
            self.config = fitted_config(config, model)
        # Absolute, so that it stays valid when the current directory changes.
        self._folder = None if folder is None else RunFolder(folder.path.absolute())
        self.average = 1

    generate = generate
    stream = stream
    search = search
    translate = translate
    classify = classify
    score = score
    evaluate = evaluate
    int8_losses = int8_losses

    def kept_steps(self) -> list[int]:
        """Return the steps at which `load` can open this run, the earliest first; `replay` makes those between them.

        These are the steps of its checkpoints and of its snapshots (`train.snapshot_megabytes`). They change while
        the run is still training.

        Raises:
            RunError: the run is not kept in a folder.
        """
        return steps_kept_in(self.folder)

    def export(self, target: str | Path) -> "ArchitectureMatch":
        """Write the model as a folder that transformers loads, or as one file for llama.cpp (`NAME.gguf`).

        The weights are the model's present ones; the run need not be kept in a folder.

        Raises:
            ConfigError: the model is none of their architectures; the message says how it differs from the nearest.
            TokenizerError: the target has no place for the kind of tokenizer.
            RunError: the target is not empty.
            DiskError: it cannot be written.
        """
        if str(target).lower().endswith(".gguf"):
            from clearformer.interop.gguf import to_gguf

            return to_gguf(self, target)
        from clearformer.interop import to_hf

        return to_hf(self, target)

    def save(self, name_or_path: str | Path) -> "Run":
        """Write the model, its tokenizer and its settings to a folder, which `load` opens like any other run.

        Weights are written in the model's type; `load` gives them back in float32, whatever that was.

        Args:
            name_or_path: A name under the runs' folder, or a path (with a slash in it) to a new or empty folder.

        Returns:
            The run in its folder.

        Raises:
            RunError: the name is taken or cannot be a run's name, or the folder is not empty.
            DiskError: it cannot be written.
        """
        target = folder_for(name_or_path)
        folder = write_run(
            target, self.config, self.tokenizer, weights_of(self.model), self.step, self._text_sha256()
        )
        return Run(self.model, self.tokenizer, self.config, folder=folder, step=self.step)

    @property
    def folder(self) -> RunFolder:
        """The folder where the run is kept.

        Raises:
            RunError: it is kept in none.
        """
        if self._folder is None:
            raise RunError("this run has no folder; save it with run.save(NAME)")
        return self._folder

    @property
    def name(self) -> str:
        """The name or path by which `load` finds it; `UNKEPT` for a run that is kept in no folder."""
        return UNKEPT if self._folder is None else name_of(self._folder)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the matrix products: the training's, or float32 on a processor without units for that type."""
        dtype = self.config.train.matrix_dtype
        if dtype == torch.float32 or not lacks_bfloat16(next(self.model.parameters()).device):
            return dtype
        logger.info(
            "matrix products in float32: this processor has no native support for bfloat16, the type used in training"
        )
        return torch.float32

    @property
    def n_parameters(self) -> int:
        """The number of the model's parameters; shared ones count once."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def val_loss(self) -> float | None:
        """The held-out loss of this step, in nats, from metrics.jsonl; None where it was not measured.

        It is of a part of the held-out split, unless the run ended here.
        """
        return self._evaluated.get("val_loss")

    @cached_property
    def _evaluated(self) -> dict[str, Any]:
        """The line of metrics.jsonl with this step's evaluation; empty where there is none."""
        if self._folder is None or self.average != 1:
            return {}
        try:
            lines = read_metrics(self._folder.metrics_file)
        except (ClearformerError, OSError):
            return {}
        line = next((line for line in reversed(lines) if line["step"] == self.step), {})
        return line if isinstance(line.get("val_loss"), int | float) else {}

    def facts(self) -> dict[str, str]:
        """Return the basic facts, as text: name, family, parameters, step and held-out loss."""
        return {
            "run": self.name,
            "family": self.model.config.family,
            "parameters": f"{self.n_parameters:,}",
            "step": f"{self.step:,}",
            "held-out loss": held_out(self._evaluated),
        }

    def __repr__(self) -> str:
        facts = self.facts()
        loss = "" if self.val_loss is None else f", held-out loss {facts['held-out loss']}"
        return f"Run({facts['run']!r}, {facts['family']}, {facts['parameters']} parameters, step {facts['step']}{loss})"

    def _repr_html_(self) -> str:
        """Return the facts as a table, which a notebook displays."""
        return html_table(self.facts())

    def _text_sha256(self) -> str:
        """Return the SHA-256 of the training data; empty where that is not known."""
        try:
            return (self._folder.trained_on() if self._folder else None) or ""
        except RunError:
            return ""


def check_fit(model: Any, tokenizer: Any) -> None:
    """Raise UserError where the two are not a model and a tokenizer that fits it."""
    if not isinstance(model, Transformer):
        inner = next((f"; give its .{name}" for name in WRAPPED if hasattr(model, name)), "")
        raise UserError(
            f"a run's model must come from clearformer.build(...); got {type(model).__name__}{inner}"
        )
    if not isinstance(tokenizer, Tokenizer):
        raise UserError(f"a run's tokenizer must be one of clearformer's; got {type(tokenizer).__name__}")
    n_known = model.embed.num_embeddings
    if tokenizer.vocab_size > n_known:
        raise UserError(
            f"the tokenizer has {tokenizer.vocab_size:,} tokens, but the model has {n_known:,} "
            "(vocab_size): they do not match"
        )


def check_folder(folder: Any) -> None:
    """Raise UserError where a run's folder is of another type."""
    if folder is not None and not isinstance(folder, RunFolder):
        raise UserError(f"folder: expected a RunFolder (run.save(NAME) makes one); got {shown(folder)}")


def check_labels(labels: Any, model: Transformer, config: RunConfig | None) -> None:
    """Raise UserError where labels cannot be the names of a model's classes."""
    n_classes = model.config.n_classes
    if config is not None:
        raise UserError("labels: the config already names the classes (data.labels); remove one of the two")
    if n_classes is None:
        raise UserError("labels: the model has no classes (n_classes); remove them")
    if not isinstance(labels, tuple | list) or not all(isinstance(label, str) for label in labels):
        raise UserError(f"labels takes the names of the classes; got {shown(labels)}")
    if not all(label.strip() for label in labels):
        raise UserError(
            f"labels: a class needs a name, as texts without any are given none; got {shown(labels)}"
        )
    if len(labels) != n_classes:
        raise UserError(
            f"labels: {count(len(labels), 'name')}, but the model has {n_classes} classes (n_classes)"
        )


def fitted_config(config: Any, model: Transformer) -> RunConfig:
    """Return a run's settings with the model's own values for those that are left open.

    Raises:
        UserError: these are not a run's settings, or another model's; the message names the first that differs.
    """
    if not isinstance(config, RunConfig):
        raise UserError(f"a run's config is a RunConfig, such as cf.preset(...); got {shown(config)}")
    for key, given, own in differences(config.model, model.config, "model."):
        if not (key in LEFT_OPEN and given == LEFT_OPEN[key]):
            raise UserError(
                f"config.{key} is {as_written(given)}, but the model's is {as_written(own)}: pass "
                "config.replace(model=model.config)"
            )
    return config if config.model == model.config else config.replace(model=model.config)


def folder_for(name_or_path: str | Path) -> Path:
    """Return the folder in which to keep a run of this name or path.

    Raises:
        RunError: the folder is in use or not empty, or this cannot be a run's name.
        DiskError: the folder cannot be read.
    """
    if not isinstance(name_or_path, str | PathLike):
        raise RunError(f"a run is saved under a name or in a folder; got {shown(name_or_path)}")
    if isinstance(name_or_path, str) and "/" not in name_or_path and "\\" not in name_or_path:
        return new_run(name_or_path, "name", OTHER_NAME).path
    path = user_path(name_or_path)
    check_empty_folder(path)
    return path


@torch_as_it_begins()
def load(
    name_or_path: str | Path,
    checkpoint: str | int = "latest",
    *,
    device: str | torch.device = "auto",
    average: int = 1,
) -> Run:
    """Open a run: its model in evaluation mode, its tokenizer and its configuration.

    Args:
        name_or_path: A name under the runs' folder, or a path to a run's folder.
        checkpoint: `latest` (the newest), `best` (the lowest held-out loss) or a step's number, one of
            `Run.kept_steps`.
        device: `auto`, `cpu`, `mps`, `cuda`, or one GPU of several: `cuda:1`.
        average: Take the mean of the weights of this many checkpoints: that one and those before it.

    Raises:
        RunError: there is no such run or checkpoint, or there are too few checkpoints to average.
        CheckpointError: a checkpoint is damaged.
        ConfigError: there is no such device here.
    """
    return run_of(read_run(name_or_path, checkpoint, device, average))


@torch_as_it_begins()
def replay(
    run: Run | str | Path,
    step: int,
    *,
    device: str | torch.device = "auto",
    on_step: "OnStep" = lambda *_: None,
) -> Run:
    """Open a run as it was after any of its steps, bit for bit.

        cf.replay("NAME", 700)

    If the run has no weights of that step on disk, training is repeated in memory. It starts at the nearest earlier
    checkpoint, or at the first weights, and continues to the next step on disk, whose weights must come out the same.

    Args:
        run: An opened run, its name or its folder. It must have been trained there, and its data be where they were.
        step: The number of steps taken.
        device: Where the model is put; the steps are repeated on the run's own `train.device`.
        on_step: Called after each step with the number of steps repeated so far, and the number to repeat in all.

    Raises:
        UserError: the run has not taken that many steps.
        RunError: the training cannot be repeated, or came out different, as it does on another machine.
        DataError: its data cannot be read, or have changed.
        CheckpointError: a checkpoint is damaged, or of another model.
    """
    from clearformer.runs.replay import replay_run

    folder = run.folder if isinstance(run, Run) else find_run(run)
    return run_of(replay_run(folder, step, device, on_step))


@torch_as_it_begins()
def from_hf(folder: str | Path, name: str | None = None) -> Run:
    """Make a run of a model that transformers saved; it can then be used like any other run.

    Args:
        folder: A folder with config.json, model.safetensors and a tokenizer.
        name: The run's name under the runs' folder. By default a free name made of the folder's.

    Raises:
        RunError: the folder holds no model, or the name is taken.
        ConfigError: config.json asks for a part that clearformer's models do not have, or for code.
        CheckpointError: the tensors are damaged, or not those that config.json describes.
        TokenizerError: there is no tokenizer, or it cannot be read.
    """
    from clearformer.interop import from_hf as import_hf

    return run_of(import_hf(folder, name))


def run_of(loaded: Loaded) -> Run:
    """Return the run that was read from a folder."""
    run = Run(loaded.model, loaded.tokenizer, loaded.config, folder=loaded.folder, step=loaded.step)
    run.average = loaded.average
    return run
