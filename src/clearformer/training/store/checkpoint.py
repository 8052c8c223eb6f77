"""Checkpoints: complete or not there, and checked before they are used.

    checkpoints/step-00001000/
        model.safetensors       the weights to use (the moving average, where the run keeps one)
        optimizer.safetensors   the optimisers' state, and the raw weights beside an average
        state.json              where the run stood
        manifest.json           size and SHA-256 of the three
    checkpoints/latest, best    links to two of them, for people; resuming looks at the manifests

A snapshot is the same without the optimisers' state, in `snapshots/`. Each is written into a folder beside, synced, and
renamed.
"""

import contextlib
import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from clearformer.errors import CheckpointError, shortened, shown
from clearformer.files import discard, disk_errors, folder_made_whole, parse_json, remove_abandoned, sync

logger = logging.getLogger(__name__)

MODEL, OPTIMIZER, STATE, MANIFEST = (
    "model.safetensors",
    "optimizer.safetensors",
    "state.json",
    "manifest.json",
)


@dataclass(frozen=True)
class Progress:
    """Where a run stands.

    Attributes:
        step: Steps done.
        seconds: Seconds of training (steps alone).
        tokens: Targets trained on.
        val_loss: Of this state on what checkpoints are compared by, in nats per token: the held-out split, or always
            the same part of it (see `train.eval_flops_fraction`). None where there is no split, or it was not read
            then.
        best_step: The step with the lowest such loss so far, among those that became checkpoints.
        best_val_loss: That loss.
        best_n_rows: The rows of the held-out split that it is of. Losses of other rows are not compared with it.
        wall_seconds: Seconds by the clock since the command began, those of resumed runs together; like the next two 0
            without `train.max_wall_seconds`.
        wall_before: Those of them before the first step.
        wall_after: Those expected behind the last step.
    """

    step: int = 0
    seconds: float = 0.0
    tokens: int = 0
    val_loss: float | None = None
    best_step: int | None = None
    best_val_loss: float | None = None
    best_n_rows: int | None = None
    wall_seconds: float = 0.0
    wall_before: float = 0.0
    wall_after: float = 0.0


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint's contents."""

    progress: Progress
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]


def step_folder(checkpoints: Path, step: int) -> Path:
    """Where the checkpoint of a step is, or will be."""
    return checkpoints / f"step-{step:08d}"


def save_checkpoint(checkpoints: Path, checkpoint: Checkpoint) -> Path:
    """Write one checkpoint; where that step's is there already and whole, it stays.

    Raises:
        DiskError: the disk is full or may not be written; earlier checkpoints are untouched.
    """
    tensors = {MODEL: checkpoint.model, OPTIMIZER: checkpoint.optimizer}
    return _save(checkpoints, checkpoint.progress, tensors)


def save_snapshot(snapshots: Path, progress: Progress, weights: dict[str, Tensor]) -> Path:
    """Write the weights alone; where those of that step are there already and whole, they stay.

    Raises:
        DiskError: the disk is full or may not be written; earlier snapshots are untouched.
    """
    return _save(snapshots, progress, {MODEL: weights})


def _save(place: Path, progress: Progress, tensors: Mapping[str, dict[str, Tensor]]) -> Path:
    final, names = step_folder(place, progress.step), (*tensors, STATE)
    if final.exists():
        with contextlib.suppress(CheckpointError):
            verify(final, *names)
            return final
    with disk_errors(final):
        if final.exists():
            discard(final)
        remove_abandoned(place, after_seconds=0)  # a run writes its checkpoints alone
    with folder_made_whole(final, MANIFEST, shared=True) as folder:
        for name, each in tensors.items():
            write_tensors(each, folder / name)
        (folder / STATE).write_text(json.dumps(asdict(progress), indent=1) + "\n")
        manifest = {name: describe(folder / name) for name in names}
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
        for path in folder.iterdir():
            with path.open("r+b") as file:
                sync(file.fileno())
    return final


def write_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """A safetensors file.

    Raises:
        OSError: it cannot be written; safetensors has an error of its own for that.
    """
    try:
        save_file(tensors, path)
        # As the umask gave its folder (asking for the umask sets it for a moment, and for every thread).
        path.chmod(path.parent.stat().st_mode & 0o666)
    except SafetensorError as error:
        raise OSError(str(error)) from error


def describe(path: Path) -> dict[str, int | str]:
    """A file's size in bytes and its SHA-256."""
    with path.open("rb") as file:
        return {"size": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def verify(folder: Path, *names: str) -> None:
    """Compare a checkpoint's files with its manifest: all of them, or those that are named and read.

    A snapshot has no optimisers' state: of it the others are named.

    Raises:
        CheckpointError: a file is missing or is not what was written; the message names it.
    """
    try:
        manifest = parse_json((folder / MANIFEST).read_text(encoding="utf-8"))
        expected = {name: dict(manifest[name]) for name in names or (MODEL, OPTIMIZER, STATE)}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{folder}: damaged: {MANIFEST} is missing or no manifest ({error})") from None
    for name in expected:
        try:
            actual = describe(folder / name)
        except OSError as error:
            raise CheckpointError(f"{folder / name}: damaged: cannot be read ({error.strerror})") from None
        if actual != expected[name]:
            what = "size is" if actual["size"] != expected[name].get("size") else "contents are"
            raise CheckpointError(f"{folder / name}: damaged: its {what} not what the manifest says")


def load_checkpoint(folder: Path) -> Checkpoint:
    """A checkpoint's contents, verified.

    Raises:
        CheckpointError: it is damaged.
    """
    verify(folder)
    try:
        return Checkpoint(read_progress(folder), load_file(folder / MODEL), load_file(folder / OPTIMIZER))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{folder}: damaged: {error}") from None


def read_progress(folder: Path) -> Progress:
    """Where the run stood at a checkpoint.

    Raises:
        CheckpointError: its file does not say so.
    """
    try:
        progress = Progress(**parse_json((folder / STATE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"{folder / STATE}: damaged: {shortened(str(error), 300)}") from None
    for field in fields(Progress):
        value: Any = getattr(progress, field.name)
        kind: Any = field.type
        if isinstance(value, bool) or not isinstance(value, kind | int):
            raise CheckpointError(f"{folder / STATE}: damaged: {field.name} is {shown(value)}")
    if min(progress.step, progress.tokens, progress.seconds) < 0:
        raise CheckpointError(f"{folder / STATE}: damaged: a number of it is negative")
    return progress


def list_checkpoints(checkpoints: Path) -> list[Path]:
    """The folders of checkpoints or snapshots, newest first; whole or not."""
    return sorted(
        (path for path in checkpoints.glob("step-*") if path.name.removeprefix("step-").isdecimal()),
        key=step_of,
        reverse=True,
    )


def step_of(folder: Path) -> int:
    """The step of a checkpoint's folder."""
    return int(folder.name.removeprefix("step-"))


def best_step(checkpoints: Path) -> int | None:
    """The step with the lowest held-out loss, as the newest checkpoint says; None where none was evaluated.

    Raises:
        CheckpointError: the newest checkpoint is damaged.
    """
    [newest, *_] = list_checkpoints(checkpoints)
    verify(newest)
    return read_progress(newest).best_step


def newest_whole(checkpoints: Path) -> Checkpoint | None:
    """The newest checkpoint that is whole; None where there is no checkpoint. Damaged ones are named in the log.

    Raises:
        CheckpointError: there are checkpoints, and all of them are damaged.
    """
    damage = None
    for folder in list_checkpoints(checkpoints):
        try:
            return load_checkpoint(folder)
        except CheckpointError as error:
            logger.warning("%s; looking for an earlier one", error)
            damage = damage or error
    if damage:
        raise CheckpointError(f"{damage}; there is no whole one: delete {checkpoints} to begin anew")
    return None


def prune(checkpoints: Path, keep: int, progress: Progress) -> None:
    """Delete all but the newest `keep` checkpoints up to this step, and the best.

    Later ones are damaged, or the run would have gone on from there: they do not count, and the run makes them anew.

    Raises:
        DiskError: the folder cannot be written.
    """
    done = [folder for folder in list_checkpoints(checkpoints) if step_of(folder) <= progress.step]
    with disk_errors(checkpoints):
        for folder in done[keep:]:
            if step_of(folder) != progress.best_step:
                discard(folder)


def link(checkpoints: Path, names: Mapping[str, int | None]) -> None:
    """Point `latest` and `best` at their steps' folders; where links cannot be made, none is."""
    for name, step in names.items():
        if step is None:
            continue
        fresh = checkpoints / f".{name}-new"
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(step_folder(checkpoints, step).name)
            fresh.replace(checkpoints / name)
