"""Runs by their names or folders: finding, listing and naming them, reading and writing them whole."""

import os
import re
import unicodedata
from dataclasses import dataclass
from itertools import dropwhile
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from clearformer.config import slot_variants
from clearformer.data import Data, LabelledData, PairsData, TextData
from clearformer.decoding.arguments import check_whole
from clearformer.device import resolve_device
from clearformer.errors import (
    CheckpointError,
    RunError,
    UserError,
    did_you_mean,
    shortened,
    shown,
)
from clearformer.files import (
    discard,
    disk_errors,
    folder_made_whole,
    is_file,
    is_free,
    runs_folder,
    short_path,
    user_path,
)
from clearformer.model import ModelConfig, Transformer, build_undrawn
from clearformer.runs.kept_weights import find_weights
from clearformer.text import Tokenizer
from clearformer.training.config import RunConfig, TrainConfig
from clearformer.training.objectives import (
    ClassificationObjective,
    MaskedObjective,
    NextTokenObjective,
    Objective,
    TranslationObjective,
)
from clearformer.training.store.checkpoint import (
    MODEL,
    Checkpoint,
    Progress,
    link,
    save_checkpoint,
    step_of,
)
from clearformer.training.store.folder import RunFolder
from clearformer.training.store.lock import one_writer

TASKS: dict[str, tuple[Data, Objective]] = {
    "decoder": (TextData(), NextTokenObjective()),
    "encoder": (TextData(), MaskedObjective()),
    "classes": (LabelledData(), ClassificationObjective()),
    "encoder-decoder": (PairsData(), TranslationObjective()),
}
UNKEPT = "model"
"""The name of a run that is kept in no folder."""
STEPS = 1000  # `train.max_steps` of a run that was not trained here
LONGEST_NAME = 100  # characters of a run's name
MOST_BYTES = 200  # of a run's name; file systems take 255


def name_for(preset: str, config: RunConfig) -> str:
    """Return a free name made of the preset and the data; of the data alone if their name begins with the preset's."""
    label = config.data.label
    return free_name(label if f"{label}-".startswith(f"{preset}-") else f"{preset}-{label}")


@dataclass(frozen=True)
class Loaded:
    """A checkpoint that was read: its model in evaluation mode, the run's tokenizer and configuration.

    The weights are the mean of `average` checkpoints, the last of them that of `step`.
    """

    folder: RunFolder
    config: RunConfig
    model: Transformer
    tokenizer: Tokenizer
    step: int
    average: int = 1


class RunLike(Protocol):
    """The common interface of `Loaded` and `Run`."""

    @property
    def folder(self) -> RunFolder: ...
    @property
    def config(self) -> RunConfig: ...
    @property
    def model(self) -> Transformer: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def step(self) -> int: ...
    @property
    def average(self) -> int: ...


def list_runs() -> list[RunFolder]:
    """Return the runs in the runs' folder, sorted by name.

    Raises:
        RunError: the folder may not be read, so there may be runs in it.
    """
    try:
        folders = sorted(runs_folder().iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise RunError(
            f"{runs_folder()}: cannot be read: {error.strerror}; $CLEARFORMER_RUNS names another"
        ) from None
    return [RunFolder(path) for path in folders if is_file(path / "config.toml")]


def find_run(name_or_path: str | Path) -> RunFolder:
    """Return the folder of a run, given its name or a path.

    A name is looked for in the runs' folder first. A path, with a separator in it, is first what it says.

    Raises:
        RunError: there is no such run; the message names the nearest.
    """
    if not isinstance(name_or_path, str | PathLike):
        raise RunError(f"expected the name or folder of a run; got {shown(name_or_path)}")
    text = os.fspath(name_or_path)
    places = [runs_folder() / name_or_path, user_path(name_or_path)] if text else []
    if isinstance(name_or_path, PathLike) or {os.sep, os.altsep} & set(text):
        places.reverse()
    for path in places:
        if is_file(path / "config.toml"):
            return RunFolder(path)
    name = shortened(str(name_or_path))
    names = [folder.path.name for folder in list_runs()]
    hint = did_you_mean(name, names) or (f"; there are {', '.join(names[:8])}" if names else "")
    raise RunError(f"there is no run {name!r}: no config.toml in {runs_folder() / name}{hint}")


def is_run(name_or_path: str) -> bool:
    """Whether there is a run of that name or in that folder."""
    try:
        find_run(name_or_path)
    except RunError:
        return False
    return True


def folder_of(run: RunLike) -> RunFolder | None:
    """Return a run's folder; None for a run that is kept in none."""
    try:
        return run.folder
    except RunError:
        return None


def shown_name(run: RunLike) -> str:
    """Return the name of a run's folder, or `UNKEPT`."""
    folder = folder_of(run)
    return UNKEPT if folder is None else folder.path.name


def name_of(folder: RunFolder) -> str:
    """Return the name by which `find_run` finds a run, or its path if it is not in the runs' folder."""
    name = folder.path.name
    is_there = (runs_folder() / name).resolve() == folder.path.resolve()
    if is_there:
        return name
    path = short_path(folder.path)
    return str(path) if path.name != str(path) else f".{os.sep}{path}"  # a name alone could be another run's


OTHER_NAME = "choose another name, or delete it"


def new_run(
    name: str,
    option: str = "--run",
    way_out: str = "resume it with --resume, choose another name, or delete the folder",
) -> RunFolder:
    """Return the folder for a new run.

    Args:
        name: The run's name.
        option: The option that gave the name, for messages.
        way_out: Advice in the message if a run has that name already.

    Raises:
        RunError: the name has characters that are not allowed, or is taken.
    """
    if not isinstance(name, str) or not is_run_name(name):
        raise RunError(
            f"{option}: {shown(name)} is not a valid run name; use letters, digits, '.', '_' and '-', at most "
            f"{LONGEST_NAME} of them"
        )
    path = runs_folder() / name
    folder = RunFolder(path)
    if folder.config_file.exists():
        raise RunError(f"{option}: {path} exists; {way_out}")
    if path.exists() and not folder.is_left_over():
        raise RunError(f"{option}: {path} exists but is not a run; {OTHER_NAME}")
    return folder


def check_empty_folder(folder: Path) -> None:
    """Check that writing to the folder overwrites nothing.

    Raises:
        RunError: it is a file, or a folder that is not empty.
        DiskError: the folder cannot be read.
    """
    with disk_errors(folder):
        taken = folder.exists() and not (folder.is_dir() and is_free(folder))
    if taken:
        raise RunError(f"{folder} exists and is not an empty folder; choose another, or delete it")


def is_run_name(name: str) -> bool:
    """Whether a run may have that name: letters of any script, digits, and `.`, `_` and `-` after the first."""
    return (
        name[:1].isalnum()
        and all(map(is_allowed, name))
        and len(name) <= LONGEST_NAME
        and len(name.encode()) <= MOST_BYTES
    )


def is_allowed(character: str) -> bool:
    """Whether a run's name may have a character: a letter, a mark on one, a digit, or one of `.`, `_` and `-`."""
    return character in "._-" or unicodedata.category(character)[0] in "LMN"


def free_name(stem: str) -> str:
    """Return a free name for a new run: `stem`, or `stem-2`, `stem-3` ... if it is taken.

    Characters that a name may not have are replaced; a stem without any others becomes `run`. Accented letters are
    composed (NFC), as they are typed, whatever the file that the name comes from had.
    """
    composed = unicodedata.normalize("NFC", stem)
    safe = re.sub(" +", "-", "".join(each if is_allowed(each) else " " for each in composed))
    short = safe[:80].encode()[:160].decode(errors="ignore")
    stem = "".join(dropwhile(lambda each: not each.isalnum(), short)).rstrip("-._") or "run"
    number, name = 1, stem
    while (runs_folder() / name).exists():
        number += 1
        name = f"{stem}-{number}"
    return name


def checked_step(step: Any) -> int:
    """Return a number of steps as an int.

    Raises:
        UserError: it is not a whole number of 0 or more.
    """
    check_whole("step", step, least=0)
    return int(step)


@torch.inference_mode(False)  # else weights that move to a device could never have a gradient
def read_run(
    name_or_path: str | Path,
    checkpoint: str | int = "latest",
    device: str | torch.device = "auto",
    average: int = 1,
) -> Loaded:
    """Read a run's model, tokenizer and configuration; arguments and errors are those of `run.load`."""
    if not isinstance(average, Integral) or isinstance(average, bool):
        raise RunError(f"average: takes a whole number of checkpoints; got {shown(average)}")
    folder = find_run(name_or_path)
    config = folder.read_config()
    tokenizer = folder.read_tokenizer(config.model.vocab_size)
    where = resolve_device(device, key="device")
    model = build_undrawn(config.model)
    path, weights = find_weights(folder, str(checkpoint), int(average))
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        first = str(error).splitlines()[-1].strip()
        raise CheckpointError(f"{path / MODEL} does not fit {folder.config_file}: {first}") from None
    return Loaded(folder, config, model.to(where).eval(), tokenizer, step_of(path), int(average))


def opened(run: RunLike | str | Path, checkpoint: str | int) -> RunLike:
    """Return a run that may be loaded already; one that is named is read, with its model on the CPU.

    Raises:
        UserError: the run is open at another checkpoint.
        RunError: there is no such run or checkpoint.
        CheckpointError: the checkpoint is damaged.
    """
    if isinstance(run, str | Path):
        return read_run(run, checkpoint, device="cpu")
    check_open_at(run, checkpoint)
    return run


def check_open_at(run: RunLike, checkpoint: str | int) -> None:
    """Raise UserError if an open run is asked for at another checkpoint than its own."""
    if str(checkpoint) not in ("latest", str(run.step)):
        raise UserError(
            f"checkpoint={checkpoint!r}: this run is open already, at step {run.step}; give its name, or open it there "
            f"with cf.load(NAME, checkpoint={checkpoint!r})"
        )


def write_run(
    target: Path,
    config: RunConfig,
    tokenizer: Tokenizer,
    weights: dict[str, Tensor],
    step: int = 0,
    text_sha256: str = "",
) -> RunFolder:
    """Write a run's folder for a model that was not trained in it; it appears complete or not at all.

    Args:
        target: A folder that does not exist yet, or is empty.
        config: The run's configuration.
        tokenizer: The run's tokenizer.
        weights: The model's weights, by name.
        step: How many steps the model was trained for.
        text_sha256: The SHA-256 of its training data; empty if that is not known.

    Raises:
        DiskError: it cannot be written.
        CheckpointError: the weights do not fit the configuration.
    """
    _make_way(target)
    with folder_made_whole(target, "config.toml") as unfinished:
        made = RunFolder(unfinished)
        made.create(config, tokenizer, text_sha256)
        save_checkpoint(made.checkpoints, Checkpoint(Progress(step=step), weights, {}))
        link(made.checkpoints, {"latest": step})
        read_run(unfinished, device="cpu")  # fails if the run cannot be read again
    return RunFolder(target)


def _make_way(target: Path) -> None:
    """Delete what a training that was killed before its first step left in a run's folder.

    Raises:
        RunInUseError: a training is about to begin there.
    """
    if RunFolder(target).is_left_over() and not is_free(target):
        with one_writer(target):
            pass
        discard(target)


def run_config(
    model: ModelConfig, labels: tuple[str, ...] | None = None, tokenizer: Tokenizer | None = None
) -> RunConfig:
    """Return a run's configuration for a model from elsewhere; its data are unknown, so they are its task's default.

    Args:
        model: The model's settings.
        labels: The names of its classes; by default their numbers.
        tokenizer: Its tokenizer, whose kind and size are set if settings can name the kind.
    """
    data, objective = TASKS["classes" if model.n_classes is not None else model.family]
    if isinstance(data, LabelledData) and model.n_classes is not None:
        data = data.replace(labels=labels or tuple(map(str, range(model.n_classes))))
    train = TrainConfig(objective=objective, max_steps=STEPS, dtype="float32", compile=False)
    config = RunConfig(model=model, data=data, train=train)
    known = slot_variants(RunConfig.model_fields["tokenizer"])
    if tokenizer is None or tokenizer.kind not in known:
        return config
    spec = known[tokenizer.kind]
    size = {"vocab_size": tokenizer.vocab_size} if "vocab_size" in spec.model_fields else {}
    return config.replace(tokenizer=spec(**size))
