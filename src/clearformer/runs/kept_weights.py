"""The weights that a run keeps: its checkpoints and snapshots, found by step, verified and read."""

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from clearformer.errors import CheckpointError, RunError, shown
from clearformer.training.store.checkpoint import (
    MODEL,
    STATE,
    best_step,
    list_checkpoints,
    newest_due,
    step_of,
    verify,
)
from clearformer.training.store.folder import RunFolder

TIMES_LISTED = 20  # attempts to read checkpoints that training may delete meanwhile
STEPS_LISTED = 16  # in a message


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
        paths = list_checkpoints(folder.checkpoints)[:1]  # which tells the best one
        try:
            path = find_checkpoint(folder, checkpoint)
            paths = [path] if average == 1 else last_checkpoints(folder, step_of(path), average)
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

    One that a signal left between two due ones counts only where there are too few without it, so that the mean of an
    interrupted run is that of an uninterrupted one.

    Raises:
        RunError: there are fewer, or the step has a snapshot only.
    """
    if n < 1:
        raise RunError(f"average: takes at least 1 checkpoint; got {n}")
    paths = [path for path in list_checkpoints(folder.checkpoints) if step_of(path) <= step]
    if step not in map(step_of, paths):
        raise RunError(
            f"average: only checkpoints are averaged, and step {step} of {folder.path} is a snapshot: "
            "choose the step of a checkpoint, or average 1"
        )
    if len(paths) < n:
        raise RunError(
            f"average: {folder.path} has {len(paths)} checkpoint{'s' * (len(paths) != 1)} up to step {step}, but "
            f"{n} are needed; train.keep_last sets how many are kept, train.checkpoint_every how often one is written"
        )
    due = newest_due(paths, n, folder.read_config().train.checkpoint_every)
    return due if len(due) == n else paths[:n]


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
