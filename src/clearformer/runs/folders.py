"""Runs by their names or folders: finding, listing and naming them, reading their checkpoints and their data."""

import os
import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from clearformer.config import slot_variants
from clearformer.data import Data, LabelledData, PairsData, Prepared, TextData, prepare_data
from clearformer.decoding.arguments import check_whole
from clearformer.device import resolve_device
from clearformer.errors import (
    CheckpointError,
    DataError,
    RunError,
    TokenizerError,
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
    STATE,
    Checkpoint,
    Progress,
    best_step,
    link,
    list_checkpoints,
    save_checkpoint,
    step_of,
    verify,
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
OTHERS = "data=FILE, on the command line --data FILE"
STEPS = 1000  # `train.max_steps` of a run that was not trained here
TIMES_LISTED = 20  # attempts to read checkpoints that training may delete meanwhile
STEPS_LISTED = 16  # in a message
LONGEST_NAME = 100  # characters of a run's name
MOST_BYTES = 200  # of a run's name; file systems take 255


def name_for(preset: str, config: RunConfig) -> str:
    """Return a free name made of the preset and the data; of the data alone if their name begins with the preset's."""
    label = config.data.label
    return free_name(label if f"{label}-".startswith(f"{preset}-") else f"{preset}-{label}")


@dataclass(frozen=True)
class Loaded:
    """A checkpoint that was read: its model in evaluation mode, the run's tokenizer and configuration."""

    folder: RunFolder
    config: RunConfig
    model: Transformer
    tokenizer: Tokenizer
    step: int


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

    Raises:
        RunError: there is no such run; the message names the nearest.
    """
    if not isinstance(name_or_path, str | PathLike):
        raise RunError(f"expected the name or folder of a run; got {shown(name_or_path)}")
    places = (runs_folder() / name_or_path, user_path(name_or_path)) if os.fspath(name_or_path) else ()
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
    return name if is_there else str(short_path(folder.path))


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
    return Loaded(folder, config, model.to(where).eval(), tokenizer, step_of(path))


def opened(run: RunLike | str | Path, checkpoint: str) -> RunLike:
    """Return a run that may be loaded already; one that is named is read, with its model on the CPU.

    Raises:
        RunError: there is no such run or checkpoint.
        CheckpointError: the checkpoint is damaged.
    """
    return read_run(run, checkpoint, device="cpu") if isinstance(run, str | Path) else run


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


def kept_steps(folder: RunFolder) -> list[int]:
    """Return the steps whose weights a run keeps, in checkpoints or snapshots, the earliest first."""
    return sorted(kept_folders(folder))


def kept_folders(folder: RunFolder) -> dict[int, Path]:
    """Return the folders of the weights that a run keeps, by step; a checkpoint comes before a snapshot."""
    paths = [*list_checkpoints(folder.snapshots), *list_checkpoints(folder.checkpoints)]
    return {step_of(path): path for path in paths}


def find_kept(folder: RunFolder, step: int) -> Path | None:
    """Return the checkpoint or snapshot of a step; None if the run keeps neither."""
    return kept_folders(folder).get(step)


def find_weights(folder: RunFolder, checkpoint: str, average: int) -> tuple[Path, dict[str, Tensor]]:
    """Return the folder of a checkpoint or snapshot and its weights, or the mean of several checkpoints; see `load`.

    A run in progress deletes old checkpoints. If one is gone before it is read, they are listed again.
    """
    for _ in range(TIMES_LISTED):
        path = find_checkpoint(folder, checkpoint)
        paths = [path] if average == 1 else last_checkpoints(folder, step_of(path), average)
        try:
            return path, mean_weights(paths)
        except CheckpointError:
            if all(each.is_dir() for each in paths):
                raise
    raise CheckpointError(f"{folder.checkpoints}: checkpoints are deleted faster than they are read")


def mean_weights(checkpoints: Sequence[Path]) -> dict[str, Tensor]:
    """Return the mean of the weights of some checkpoints, each verified; summed in float64.

    The mean of a run's last checkpoints is often better than each of them (Vaswani et al. 2017, 6.1, take five).

    Raises:
        CheckpointError: one of them is damaged, or they are not of the same model.
    """
    first = verified_weights(checkpoints[0])
    if len(checkpoints) == 1:
        return first
    shapes = {name: weight.shape for name, weight in first.items()}
    sums = {name: weight.double() for name, weight in first.items()}
    for path in checkpoints[1:]:
        weights = verified_weights(path)
        if {name: weight.shape for name, weight in weights.items()} != shapes:
            raise CheckpointError(f"{path / MODEL}: its weights are not those of {checkpoints[0] / MODEL}")
        for name, weight in weights.items():
            sums[name] += weight
    return {name: (total / len(checkpoints)).to(first[name].dtype) for name, total in sums.items()}


def verified_weights(checkpoint: Path) -> dict[str, Tensor]:
    """Verify a checkpoint or snapshot and read its weights.

    Raises:
        CheckpointError: it is damaged.
    """
    verify(checkpoint, MODEL, STATE)
    try:
        return load_file(checkpoint / MODEL)
    except (OSError, SafetensorError) as error:  # deleted meanwhile, by the training that goes on
        raise CheckpointError(f"{checkpoint / MODEL}: damaged: {error}") from None


def last_checkpoints(folder: RunFolder, step: int, n: int) -> list[Path]:
    """Return `n` checkpoints, that of a step and those before it, the newest first.

    Raises:
        RunError: there are fewer, or the step has a snapshot only.
    """
    if n < 1:
        raise RunError(f"average: takes at least 1 checkpoint; got {n}")
    paths = [path for path in list_checkpoints(folder.checkpoints) if step_of(path) <= step]
    if step not in map(step_of, paths):
        raise RunError(
            f"average: only checkpoints are averaged, and step {step} of {folder.path} is a snapshot; remove it"
        )
    if len(paths) < n:
        raise RunError(
            f"average: {folder.path} has {len(paths)} checkpoint{'s' * (len(paths) != 1)} up to step {step}, but "
            f"{n} are needed; train.keep_last sets how many are kept, train.checkpoint_every how often one is written"
        )
    return paths[:n]


def find_checkpoint(folder: RunFolder, which: str) -> Path:
    """Return the folder of a checkpoint: `latest`, `best`, or the number of a step, which may be a snapshot's.

    Raises:
        RunError: the run has no such checkpoint.
        CheckpointError: the newest checkpoint, which records the best one, is damaged.
    """
    kept = kept_folders(folder)
    by_number = {str(step): path for step, path in kept.items()}
    if which in by_number:
        return by_number[which]
    steps = {step_of(path): path for path in list_checkpoints(folder.checkpoints)}
    if not steps:
        meanwhile = f", or open one of its snapshots: {listed(kept)}" if kept else ""
        raise RunError(f"{folder.path} has no checkpoint yet; train it with --resume{meanwhile}")
    if which == "latest":
        return steps[max(steps)]
    if which == "best":
        best = best_step(folder.checkpoints)
        if best not in steps:
            raise RunError(f"checkpoint: no checkpoint of {folder.path} was evaluated; use latest")
        return steps[best]
    snapshots = f"; snapshots of {steps_listed(kept.keys() - steps)}" if len(kept) > len(steps) else ""
    replayed = which in map(str, range(max(steps)))
    raise RunError(
        f"checkpoint: {folder.path} has no checkpoint {shown(which)}; there are latest, best and "
        f"{steps_listed(steps)}{snapshots}{'; cf.replay(run, STEP) in Python recreates any earlier step' * replayed}"
    )


def steps_listed(steps: Collection[int]) -> str:
    """Name steps for a message: `step 5`, `steps 5, 10`."""
    return f"step{'s' * (len(steps) != 1)} {listed(steps)}"


def listed(steps: Iterable[int]) -> str:
    """Format steps for a message; of many, the first ones and the last."""
    numbers = [str(step) for step in sorted(steps)]
    return ", ".join(
        numbers if len(numbers) <= STEPS_LISTED else [*numbers[: STEPS_LISTED - 1], "...", numbers[-1]]
    )


@dataclass(frozen=True)
class OwnData:
    """The data that a run was trained on, in its own tokens.

    Attributes:
        prepared: The splits by name, and how they were made.
        changed: Whether the data have changed since training, so that held-out data may have been training data.
    """

    prepared: Prepared
    changed: bool


def read_own_data(run: RunLike, *, allow_changed: bool = False, can_choose: bool = False) -> OwnData:
    """Read the data that a run was trained on, and compare them with the data of that time.

    All code that evaluates a run on its own data reads them here.

    Args:
        run: Any run.
        allow_changed: Whether to accept data that have changed since training; otherwise they are refused.
        can_choose: Whether the caller takes other data (`data=`) or changed ones, so that errors may advise it.

    Raises:
        DataError: they have changed since training, or cannot be read.
        RunError: the run was imported or is kept in no folder and has none, or its env.json does not record them.
    """
    check_has_own_data(run, can_choose)
    others = f", or give others ({OTHERS})" if can_choose else ""
    try:
        prepared = prepare_data(
            run.config.data,
            run.tokenizer,
            max_tokens=run.config.model.max_seq_len,
            uses_labels=run.config.train.objective.predicts_classes,
        )
    except (DataError, TokenizerError) as error:
        raise DataError(f"{error}; the run was trained on these: restore them{others}") from None
    difference = run.folder.difference_of_text(prepared.manifest["source"]["sha256"])
    if difference and not allow_changed:
        accept = (
            f", give others ({OTHERS}), or accept the change (allow_changed=True, --changed-data)"
            if can_choose
            else ""
        )
        raise DataError(f"{difference}, so held-out text may be training text: restore the data{accept}")
    return OwnData(prepared, difference is not None)


def check_has_own_data(run: RunLike, can_choose: bool) -> None:
    """Raise RunError for a run whose training data are unknown, before data are read that are not its own."""
    whose = "this run"
    try:
        whose = str(run.folder.path)
        run.folder.trained_on()
    except RunError:
        way_on = (
            f"evaluate it on your own ({OTHERS})" if can_choose else "this needs a run that was trained here"
        )
        raise RunError(
            f"{whose}: its training data are unknown, as it was imported or made in Python; {way_on}"
        ) from None
