"""A run: a model with its tokeniser and its settings, and what one does with it."""

import logging
from functools import cached_property
from html import escape
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from clearformer.decoding import generate, search, stream, translate
from clearformer.device import lacks_bfloat16
from clearformer.errors import ClearformerError, RunError, UserError, count, shown
from clearformer.evaluation.classes.scores import classify
from clearformer.files import user_path
from clearformer.model import Transformer
from clearformer.runs.folders import (
    UNKEPT,
    Loaded,
    find_run,
    name_of,
    new_run,
    read_run,
    run_config,
    write_run,
)
from clearformer.runs.folders import kept_steps as steps_kept_in
from clearformer.runs.int8 import int8_losses
from clearformer.runs.scores import evaluate
from clearformer.text import Tokenizer
from clearformer.training.config import RunConfig
from clearformer.training.setup import LEFT_OPEN, as_written, differences
from clearformer.training.store.folder import RunFolder, read_metrics
from clearformer.training.store.state import weights_of

if TYPE_CHECKING:  # what few runs need is imported where it is called
    from clearformer.interop.mapping.matching import ArchitectureMatch
    from clearformer.runs.replay import OnStep

logger = logging.getLogger(__name__)


class Run:
    """A model with its tokeniser and its settings: a run that was opened, or a model from a loop of one's own.

        run = cf.load("NAME")
        run = cf.Run(model, tokenizer)        # then run.save("NAME") keeps it

    Its methods are the functions of the same names, with the run as their first argument.

    Attributes:
        model: On its device; in evaluation mode, where it was opened.
        tokenizer: The one that it was trained with.
        config: All settings; of a model from elsewhere those with which its task begins.
        step: How many steps it was trained for; 0, where that is not known.
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
        """A run of a model and the tokeniser that it was trained with.

        Args:
            model: Made by `build`.
            tokenizer: Of this package, made by `tokenize` or by a tokeniser's spec.
            config: The settings, whose `model` is the model's; where not given, those with which its task begins.
            folder: Where it is kept, if anywhere.
            step: How many steps it was trained for.
            labels: The names of its classes, where it classifies and no config is given.

        Raises:
            UserError: one of them is of another type, the tokeniser has tokens that the model does not, or the config
                or the labels are not the model's.
        """
        check_fit(model, tokenizer)
        check_place(folder, step)
        if labels is not None:
            check_labels(labels, model, config)
        self.model, self.tokenizer, self.step = model, tokenizer, step
        if config is None:
            self.config = run_config(model.config, labels, tokenizer.kind)
        else:
            self.config = fitted_config(config, model)
        # Absolute: it must stay the same run's where the current directory changes.
        self._folder = None if folder is None else RunFolder(folder.path.absolute())
        self._has_own_weights = True  # and not a mean of several checkpoints

    generate = generate
    stream = stream
    search = search
    translate = translate
    classify = classify
    evaluate = evaluate
    int8_losses = int8_losses

    def kept_steps(self) -> list[int]:
        """The steps at which `load` opens this run at once, the earliest first; `replay` opens those between.

        They are those of its checkpoints and of its snapshots (`train.snapshot_megabytes`). A run that still trains
        comes to keep others.

        Raises:
            RunError: it is kept nowhere.
        """
        return steps_kept_in(self.folder)

    def export(self, target: str | Path) -> "ArchitectureMatch":
        """Write the model as a folder that transformers loads, or as one file for llama.cpp (`NAME.gguf`).

        The model as it is now, whether the run is kept in a folder or not.

        Raises:
            ConfigError: the model is no architecture of theirs; the settings that differ from the nearest are named.
            RunError: there is something in the target already.
            DiskError: it cannot be written.
        """
        if str(target).lower().endswith(".gguf"):
            from clearformer.interop.gguf import to_gguf

            return to_gguf(self, target)
        from clearformer.interop import to_hf

        return to_hf(self, target)

    def save(self, name_or_path: str | Path) -> "Run":
        """Keep the model, its tokeniser and its settings in a folder; `load` opens it as any other run.

        Args:
            name_or_path: A name under the runs' folder, or a path (with a slash in it) to a new or empty folder.

        Returns:
            The run in its folder.

        Raises:
            RunError: the name is taken or is none, or the folder holds something.
            DiskError: it cannot be written.
        """
        target = folder_for(name_or_path)
        folder = write_run(
            target, self.config, self.tokenizer, weights_of(self.model), self.step, self._text_sha256()
        )
        return Run(self.model, self.tokenizer, self.config, folder=folder, step=self.step)

    @property
    def folder(self) -> RunFolder:
        """Where the run is kept.

        Raises:
            RunError: it is kept nowhere.
        """
        if self._folder is None:
            raise RunError("this run is kept in no folder; run.save(NAME) makes one")
        return self._folder

    @property
    def name(self) -> str:
        """Its name or path, by which `load` finds it; `UNKEPT` where it is kept nowhere."""
        return UNKEPT if self._folder is None else name_of(self._folder)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the matrix products: that of its training, or float32 on a processor without units for it."""
        dtype = self.config.train.matrix_dtype
        if dtype == torch.float32 or not lacks_bfloat16(next(self.model.parameters()).device):
            return dtype
        logger.info(
            "matrix products in float32: this processor has no units for bfloat16, the training's type"
        )
        return torch.float32

    @property
    def n_parameters(self) -> int:
        """Parameters of the model; one that two parts share counts once."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    @cached_property
    def val_loss(self) -> float | None:
        """The held-out loss of this step in metrics.jsonl, in nats; None where there is none."""
        if self._folder is None or not self._has_own_weights:
            return None
        try:
            lines = read_metrics(self._folder.metrics_file)
        except (ClearformerError, OSError):
            return None
        return next((line.get("val_loss") for line in reversed(lines) if line["step"] == self.step), None)

    def facts(self) -> dict[str, str]:
        """The first facts to know of it: name, family, parameters, step, held-out loss."""
        loss = "-" if self.val_loss is None else f"{self.val_loss:.4f}"
        return {
            "run": self.name,
            "family": self.model.config.family,
            "parameters": f"{self.n_parameters:,}",
            "step": f"{self.step:,}",
            "held-out loss": loss,
        }

    def __repr__(self) -> str:
        facts = self.facts()
        loss = "" if self.val_loss is None else f", held-out loss {facts['held-out loss']}"
        return f"Run({facts['run']!r}, {facts['family']}, {facts['parameters']} parameters, step {facts['step']}{loss})"

    def _repr_html_(self) -> str:
        """The same as a notebook shows it."""
        rows = "".join(
            f"<tr><th style='text-align:left'>{escape(name)}</th><td style='text-align:left'>{escape(value)}</td></tr>"
            for name, value in self.facts().items()
        )
        return f"<table>{rows}</table>"

    def _text_sha256(self) -> str:
        """Of what it was trained on; nothing where that is not known."""
        try:
            return (self._folder.trained_on() if self._folder else None) or ""
        except RunError:
            return ""


def check_fit(model: Any, tokenizer: Any) -> None:
    """Raise UserError where two things are no model and its tokeniser."""
    if not isinstance(model, Transformer):
        raise UserError(f"a run's model is made by clearformer.build(...); got {type(model).__name__}")
    if not isinstance(tokenizer, Tokenizer):
        raise UserError(f"a run's tokenizer is one of clearformer's; got {type(tokenizer).__name__}")
    n_known = model.embed.num_embeddings
    if tokenizer.vocab_size > n_known:
        raise UserError(
            f"the tokenizer has {tokenizer.vocab_size:,} tokens and the model knows {n_known:,} "
            "(vocab_size): they do not belong together"
        )


def check_place(folder: Any, step: Any) -> None:
    """Raise UserError where a run's folder or its step is none."""
    if folder is not None and not isinstance(folder, RunFolder):
        raise UserError(
            f"folder: a run's RunFolder is wanted (run.save(NAME) makes one); got {shown(folder)}"
        )
    if not isinstance(step, int) or isinstance(step, bool) or step < 0:
        raise UserError(f"step takes a whole number of 0 or more; got {shown(step)}")


def check_labels(labels: Any, model: Transformer, config: RunConfig | None) -> None:
    """Raise UserError where names are not those of a model's classes."""
    n_classes = model.config.n_classes
    if config is not None:
        raise UserError(
            "labels: a config is given, which names the classes itself (data.labels); leave one out"
        )
    if n_classes is None:
        raise UserError("labels: the model has no classes (n_classes); leave them out")
    if not isinstance(labels, tuple | list) or not all(isinstance(label, str) for label in labels):
        raise UserError(f"labels takes the names of the classes; got {shown(labels)}")
    if len(labels) != n_classes:
        raise UserError(
            f"labels: {count(len(labels), 'name')}, and the model has {n_classes} classes (n_classes)"
        )


def fitted_config(config: Any, model: Transformer) -> RunConfig:
    """The settings of a run with its model's own in place of those that are left open.

    Raises:
        UserError: they are no settings of a run, or those of another model; the first that differs is named.
    """
    if not isinstance(config, RunConfig):
        raise UserError(f"a run's config is a RunConfig, such as cf.preset(...); got {shown(config)}")
    for key, given, own in differences(config.model, model.config, "model."):
        if not (key in LEFT_OPEN and given == LEFT_OPEN[key]):
            raise UserError(
                f"config.{key} is {as_written(given)}, and the model's is {as_written(own)}: give its own by "
                "config.replace(model=model.config)"
            )
    return config if config.model == model.config else config.replace(model=model.config)


def folder_for(name_or_path: str | Path) -> Path:
    """Where a run of a name or path is to be kept.

    Raises:
        RunError: there is something already, or the name is none.
    """
    if not isinstance(name_or_path, str | PathLike):
        raise RunError(f"a run is kept under a name or in a folder; got {shown(name_or_path)}")
    if isinstance(name_or_path, str) and "/" not in name_or_path and "\\" not in name_or_path:
        return new_run(name_or_path, "name", "choose another name, or delete it").path
    path = user_path(name_or_path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise RunError(f"{path} exists and is not an empty folder; choose another, or delete it")
    return path


def load(
    name_or_path: str | Path,
    checkpoint: str | int = "latest",
    device: str | torch.device = "auto",
    average: int = 1,
) -> Run:
    """Open a run: its model in evaluation mode, its tokeniser and its configuration.

    Args:
        name_or_path: A name under the runs' folder, or a path to a run's folder.
        checkpoint: `latest` (the newest), `best` (the lowest held-out loss) or a step's number, one of
            `Run.kept_steps`.
        device: `auto`, `cpu`, `mps`, `cuda`, or one GPU of several: `cuda:1`.
        average: How many checkpoints' weights to take the mean of: that one and those before it.

    Raises:
        RunError: there is no such run or checkpoint, or there are not as many to take the mean of.
        CheckpointError: a checkpoint is damaged.
        ConfigError: there is no such device here.
    """
    run = run_of(read_run(name_or_path, checkpoint, device, average))
    run._has_own_weights = average == 1
    return run


def replay(
    run: Run | str | Path, step: int, device: str | torch.device = "auto", on_step: "OnStep" = lambda *_: None
) -> Run:
    """Open a run as it was after any of its steps, to the bit.

        cf.replay("NAME", 700)

    Where the run keeps no weights of that step, its training is made again in memory: from the nearest checkpoint
    before, or from the first weights, and on to the next step that it keeps, with which the outcome is compared.

    Args:
        run: One that was trained in its folder, whose data are where they were; by its name, its folder, or opened.
        step: How many steps had been taken.
        device: Where the model is put; the steps are taken on the run's own `train.device`.
        on_step: Called after each step with how many are taken, and how many there are to take.

    Raises:
        UserError: the run has not taken that many steps.
        RunError: the run cannot be made again, or does not come out the same: this is another machine.
        DataError: its data cannot be read, or have changed.
        CheckpointError: what it keeps is damaged, or of another model.
    """
    from clearformer.runs.replay import replay_run

    folder = run.folder if isinstance(run, Run) else find_run(run)
    return run_of(replay_run(folder, step, device, on_step))


def from_hf(folder: str | Path, name: str | None = None) -> Run:
    """Make a run of a model that transformers saved: it evaluates, samples, translates and opens like any other.

    Args:
        folder: With config.json, model.safetensors and a tokenizer.
        name: The run's, under the runs' folder; the folder's own where not given, as far as that can be a run's.

    Raises:
        RunError: the folder holds no model, or the name is taken.
        ConfigError: config.json asks for what clearformer's models do not have, or for code.
        CheckpointError: the tensors are damaged, or not those that config.json speaks of.
        TokenizerError: there is no tokenizer, or none that can be read.
    """
    from clearformer.interop import from_hf as import_hf

    return run_of(import_hf(folder, name))


def run_of(loaded: Loaded) -> Run:
    """A run of what was read from its folder."""
    return Run(loaded.model, loaded.tokenizer, loaded.config, folder=loaded.folder, step=loaded.step)
