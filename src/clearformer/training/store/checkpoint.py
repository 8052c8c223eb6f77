"""Checkpoints: written completely or not at all, and verified before use.

    checkpoints/step-00001000/
        model.safetensors       the weights to use (the moving average, if the run keeps one)
        optimizer.safetensors   the optimizers' state, and the trained weights if the model is an average
        state.json              the progress of the run
        manifest.json           size and SHA-256 of the three; of a progress that was amended also those of before
    checkpoints/latest, best    links to two of them, for people; resuming goes by the manifests

A snapshot is the same without the optimizers' state, in `snapshots/`. Each is written to a temporary folder, synced,
and renamed.
"""

import contextlib
import hashlib
import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from clearformer.errors import CheckpointError, DiskError, shortened, shown
from clearformer.files import (
    discard,
    disk_errors,
    folder_made_whole,
    parse_json,
    remove_abandoned,
    write_file,
)

logger = logging.getLogger(__name__)

MODEL, OPTIMIZER, STATE, MANIFEST = (
    "model.safetensors",
    "optimizer.safetensors",
    "state.json",
    "manifest.json",
)
BEFORE = "before"  # in the manifest: what a file was like before it was replaced, which is as good


@dataclass(frozen=True)
class Progress:
    """The progress of a run.

    Attributes:
        step: Steps done.
        seconds: Seconds of training (steps alone).
        tokens: Tokens trained on: the targets; of encoders, all tokens that were read.
        val_loss: The loss of this state on the rows by which checkpoints are compared, in nats: the held-out split, or
            always the same part of it (see `train.eval_flops_fraction`). None if it was not evaluated at this step.
        best_step: The step of the checkpoint with the lowest such loss so far.
        best_val_loss: That loss.
        best_n_rows: The number of held-out rows that it was measured on; losses of other rows are not comparable.
        n_worse: How many checkpoints after that one were compared with it, for `train.patience`.
        wall_seconds: Seconds by the clock since the command began, including the earlier processes of a resumed run;
            like the next two, 0 without `train.max_wall_seconds`.
        wall_before: Seconds by the clock before the first step.
        wall_after: Seconds by the clock expected after the last step.
    """

    step: int = 0
    seconds: float = 0.0
    tokens: int = 0
    val_loss: float | None = None
    best_step: int | None = None
    best_val_loss: float | None = None
    best_n_rows: int | None = None
    n_worse: int = 0
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
    """Return the folder of a step's checkpoint, whether it exists or not."""
    return checkpoints / f"step-{step:08d}"


def save_checkpoint(checkpoints: Path, checkpoint: Checkpoint) -> Path:
    """Write one checkpoint, unless a whole one of that step exists already.

    Raises:
        DiskError: the disk is full or may not be written; earlier checkpoints are untouched.
    """
    tensors = {MODEL: checkpoint.model, OPTIMIZER: checkpoint.optimizer}
    return _save(checkpoints, checkpoint.progress, tensors)


def save_snapshot(snapshots: Path, progress: Progress, weights: dict[str, Tensor]) -> Path:
    """Write the weights alone, unless a whole snapshot of that step exists already.

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
        remove_abandoned(place, after_seconds=0)  # safe, as a run has one writer
    with folder_made_whole(final, MANIFEST, shared=True, parents=False) as folder:
        for name, each in tensors.items():
            write_tensors(each, folder / name)
        (folder / STATE).write_text(written(progress))
        manifest = {name: describe(folder / name) for name in names}
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    return final


def amend_progress(checkpoints: Path, progress: Progress) -> None:
    """Replace the progress that a step's checkpoint holds; the checkpoint is whole at every instant.

    The manifest first allows both, so that a kill between the two files leaves the earlier progress.

    Raises:
        DiskError: it cannot be written.
        CheckpointError: the checkpoint is damaged.
    """
    folder, content = step_folder(checkpoints, progress.step), written(progress).encode()
    verify(folder, STATE)
    manifest = parse_json((folder / MANIFEST).read_text(encoding="utf-8"))
    own = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest[STATE] = own | {BEFORE: describe(folder / STATE)}
    write_file(folder / MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())
    write_file(folder / STATE, content)


def written(progress: Progress) -> str:
    """Return the contents of a checkpoint's file of the progress."""
    return json.dumps(asdict(progress), indent=1) + "\n"


def write_tensors(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file, which may be read by whoever may read its folder.

    Args:
        tensors: The tensors, by name.
        path: The file.
        metadata: What its header says besides.

    Raises:
        OSError: it cannot be written, in place of safetensors' own error.
    """
    try:
        save_file(tensors, path, metadata)
        # From its folder's mode: reading the umask would set it for a moment, for every thread.
        path.chmod(path.parent.stat().st_mode & 0o666)
    except SafetensorError as error:
        raise OSError(str(error)) from error


def describe(path: Path) -> dict[str, int | str]:
    """Return a file's size in bytes and its SHA-256."""
    with path.open("rb") as file:
        return {"size": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def verify(folder: Path, *names: str) -> None:
    """Compare a checkpoint's files with its manifest: all of them, or only those that are named.

    A snapshot has no optimizers' state, so its files must be named.

    Raises:
        CheckpointError: a file is missing or differs from what was written; the message names it.
        DiskError: a file may not be read, which says nothing of its contents.
    """
    try:
        manifest = parse_json((folder / MANIFEST).read_text(encoding="utf-8"))
        expected = {name: dict(manifest[name]) for name in names or (MODEL, OPTIMIZER, STATE)}
    except PermissionError as error:
        raise _unreadable(folder / MANIFEST, error) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{folder}: damaged: {MANIFEST} is missing or invalid ({error})") from None
    for name in expected:
        try:
            actual = describe(folder / name)
        except PermissionError as error:
            raise _unreadable(folder / name, error) from None
        except OSError as error:
            raise CheckpointError(f"{folder / name}: damaged: cannot be read ({error.strerror})") from None
        before = expected[name].pop(BEFORE, None)
        if actual not in (expected[name], before):
            what = "size does" if actual["size"] != expected[name].get("size") else "contents do"
            raise CheckpointError(f"{folder / name}: damaged: its {what} not match the manifest")


def _unreadable(path: Path, error: OSError) -> DiskError:
    return DiskError(
        f"{path}: cannot be read: {error.strerror}; make it readable (chmod), or ask its owner to"
    )


def load_checkpoint(folder: Path) -> Checkpoint:
    """Verify a checkpoint and read it.

    Raises:
        CheckpointError: it is damaged.
    """
    verify(folder)
    try:
        return Checkpoint(read_progress(folder), load_file(folder / MODEL), load_file(folder / OPTIMIZER))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{folder}: damaged: {error}") from None


def read_progress(folder: Path) -> Progress:
    """Read the progress of the run at a checkpoint.

    Raises:
        CheckpointError: its file is damaged.
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
        raise CheckpointError(f"{folder / STATE}: damaged: it contains a negative number")
    return progress


def list_checkpoints(checkpoints: Path) -> list[Path]:
    """Return the folders of checkpoints or snapshots, newest first, whether whole or damaged."""
    return sorted(
        (path for path in checkpoints.glob("step-*") if path.name.removeprefix("step-").isdecimal()),
        key=step_of,
        reverse=True,
    )


def step_of(folder: Path) -> int:
    """Return the step of a checkpoint's folder."""
    return int(folder.name.removeprefix("step-"))


def best_step(checkpoints: Path) -> int | None:
    """Return the step with the lowest held-out loss, as recorded by the newest checkpoint; None if none was evaluated.

    Raises:
        CheckpointError: the newest checkpoint is damaged.
    """
    [newest, *_] = list_checkpoints(checkpoints)
    verify(newest)
    return read_progress(newest).best_step


def newest_whole(checkpoints: Path) -> Checkpoint | None:
    """Read the newest whole checkpoint; None if there is no checkpoint. Damaged ones are logged.

    Raises:
        CheckpointError: there are checkpoints, and all of them are damaged.
        DiskError: one may not be read.
    """
    damage = None
    for folder in list_checkpoints(checkpoints):
        try:
            return load_checkpoint(folder)
        except CheckpointError as error:
            logger.warning("%s; trying an earlier one", error)
            damage = damage or error
    if damage:
        raise CheckpointError(f"{damage}; no checkpoint is intact")
    return None


def newest_due(checkpoints: Sequence[Path], n: int, every: int | None) -> list[Path]:
    """Return the first of some checkpoints and up to n - 1 of the others that are written every `every` steps.

    They come newest first. What a signal, an error or an end that was moved left between two of them does not count: an
    uninterrupted run has no checkpoint there.
    """
    due = [folder for folder in checkpoints[1:] if every is not None and step_of(folder) % every == 0]
    return [*checkpoints[:1], *due[: n - 1]]


def prune(
    checkpoints: Path,
    keep: int,
    progress: Progress,
    every: int | None = None,
    damaged: Collection[int] = (),
) -> None:
    """Delete all checkpoints up to this step but the newest `keep`, as many of `newest_due`, and the best.

    So an interrupted run has all those that an uninterrupted one has. Later ones do not count: they are damaged, or the
    run would have resumed from them.

    Args:
        checkpoints: Their folder.
        keep: How many are kept.
        progress: The progress of the run.
        every: The steps between two checkpoints of an uninterrupted run; None if it has the last one only.
        damaged: The steps of checkpoints that are known to be damaged, which are deleted once the run has passed them.

    Raises:
        DiskError: the folder cannot be written.
    """
    done = [folder for folder in list_checkpoints(checkpoints) if step_of(folder) <= progress.step]
    whole = [folder for folder in done if step_of(folder) not in damaged]
    kept = {*whole[:keep], *newest_due(whole, keep, every), step_folder(checkpoints, progress.best_step or 0)}
    with disk_errors(checkpoints):
        for folder in done:
            if folder not in kept:
                discard(folder)


def link(checkpoints: Path, names: Mapping[str, int | None]) -> None:
    """Point the links `latest` and `best` at their steps' folders, if the file system has links."""
    for name, step in names.items():
        if step is None:
            continue
        fresh = checkpoints / f".{name}-new"
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(step_folder(checkpoints, step).name)
            fresh.replace(checkpoints / name)
