"""Snapshots of the weights alone along a run: dense at its beginning and evenly spaced later, within a size limit.

    snapshots/step-00000008/{model.safetensors, state.json, manifest.json}

They are kept after 0, 1, 2, 4, 8 ... steps and then evenly spaced (as Biderman et al. 2023 do for Pythia). A run's
length is often not known, so the spacing adapts: if the next snapshot would not fit, every second one of the evenly
spaced is deleted and the spacing doubles. Which snapshots exist depends only on the steps done and on how many fit, so
a run that was killed and resumed has the same ones as a run that was not.
"""

import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from torch import Tensor, nn

from clearformer.errors import DiskError
from clearformer.files import discard, disk_errors, remove_abandoned
from clearformer.training.nonfinite import weights_are_finite
from clearformer.training.processes.distributed import Processes
from clearformer.training.store.async_checkpoint import CheckpointWriter
from clearformer.training.store.checkpoint import Progress, list_checkpoints, save_snapshot, step_of
from clearformer.training.store.folder import RunFolder
from clearformer.training.store.state import TrainState, weights_of

logger = logging.getLogger(__name__)

FIRST_SPACING = 64
"""The first spacing of the evenly spaced snapshots, in steps; it doubles when they no longer fit."""
FEWEST, MOST = 8, 128
"""The number of snapshots of a run; if not even the fewest fit, it keeps none."""
LEFT_FREE = 8
"""The disk must have room for so many more: enough for two checkpoints with Adam's state and an average."""
BYTES_BESIDES = 2_000
"""An upper bound of a snapshot's bytes without tensors: state.json, manifest.json, the start of its safetensors."""
BYTES_PER_TENSOR = 250
"""An upper bound of the header bytes for each tensor in safetensors: its name, shape and place."""


@dataclass(frozen=True)
class SnapshotSteps:
    """The steps at which a run keeps snapshots, if at most `most` of them fit."""

    most: int

    def after(self, n_steps: int) -> list[int]:
        """Return the steps of the snapshots that are kept after `n_steps` steps.

        One step later, the list has no others, except possibly that step itself.
        """
        spacing = self.spacing(n_steps)
        early = [step for step in self.powers(spacing) if step <= n_steps]
        return [0, *early, *range(spacing, n_steps + 1, spacing)]

    def includes(self, step: int) -> bool:
        """Whether to keep a snapshot when this step is done."""
        spacing = self.spacing(step)
        return step % spacing == 0 or step in self.powers(spacing)

    def spacing(self, n_steps: int) -> int:
        """Return the spacing of the evenly spaced snapshots after `n_steps` steps."""
        spacing = FIRST_SPACING
        while 1 + len(self.powers(spacing)) + n_steps // spacing > self.most:
            spacing *= 2
        return spacing

    def powers(self, spacing: int) -> list[int]:
        """Return the powers of 2 below the spacing; powers of 4, 16 ... if they would be more than half of all."""
        exponents = range(spacing.bit_length() - 1)
        every = 1
        while len(exponents[::every]) > self.most // 2:
            every *= 2
        return [2**exponent for exponent in exponents[::every]]


def steps_within(model: nn.Module, megabytes: float | None) -> SnapshotSteps | None:
    """Return the steps for snapshots of a model within so many megabytes; None if too few fit or none are wanted."""
    if megabytes is None:
        return None
    most = int(min(MOST, megabytes * 1e6 / snapshot_bytes(model.state_dict())))
    return SnapshotSteps(most) if most >= FEWEST else None


def snapshot_bytes(weights: Mapping[str, Tensor]) -> int:
    """Return an upper bound of the bytes of a snapshot."""
    return BYTES_BESIDES + sum(BYTES_PER_TENSOR + tensor.nbytes for tensor in weights.values())


def check_room(place: Path, weights: Mapping[str, Tensor]) -> None:
    """Raise DiskError if a snapshot would take the room that checkpoints need."""
    n_bytes = snapshot_bytes(weights)
    free = shutil.disk_usage(place).free
    if free < (1 + LEFT_FREE) * n_bytes:
        raise DiskError(
            f"{place}: no snapshot of {n_bytes / 1e6:,.1f} MB is written: {free / 1e6:,.1f} MB are free, and "
            "checkpoints need them"
        )


class SnapshotStore:
    """Keeps the snapshots of a run; the first process writes while training goes on.

    It is used as a `with` block, which ends when all is written. A snapshot that cannot be written, or only in the room
    that checkpoints need, does not end the run: one warning is logged, and no more are kept until the run is resumed.
    """

    def __init__(self, folder: RunFolder, steps: SnapshotSteps | None, processes: Processes) -> None:
        self.place, self.is_main = folder.snapshots, processes.is_main
        self.steps = steps if processes.is_main else None
        self.writer = CheckpointWriter()

    def go_on_from(self, n_steps: int) -> None:
        """Delete snapshots after `n_steps`, which a resumed run will make again, and unfinished ones."""
        if not self.is_main or not self.place.is_dir():
            return
        with disk_errors(self.place):
            remove_abandoned(self.place, after_seconds=0)
            for folder in list_checkpoints(self.place):
                if step_of(folder) > n_steps:
                    discard(folder)

    def save(self, state: TrainState, progress: Progress) -> None:
        """Start writing the weights to use, if this step keeps a snapshot.

        Weights that the last update has spoilt are not written; the next step will end the run.
        """
        steps = self.steps
        if steps is None or not steps.includes(progress.step) or not weights_are_finite(state.weights_to_use):
            return
        self.writer.wait()  # so that at most one copy of the weights is in memory
        if self.steps is None:  # the previous one could not be written
            return
        weights = weights_of(state.weights_to_use, copy=True)
        self.writer.submit(partial(self.write, steps, progress, weights))

    def write(self, steps: SnapshotSteps, progress: Progress, weights: dict[str, Tensor]) -> None:
        """Delete the snapshots that are no longer kept, and write the new one."""
        kept = set(steps.after(progress.step))
        try:
            with disk_errors(self.place):
                check_room(self.place.parent, weights)
                for folder in list_checkpoints(self.place):
                    if step_of(folder) not in kept:
                        discard(folder)
            save_snapshot(self.place, progress, weights)
        except DiskError as error:
            self.steps = None
            logger.warning("%s; continuing without snapshots", error)

    def when_written(self) -> Callable[[], None]:
        """Return a function for any thread that waits until the snapshots so far are written."""
        return self.writer.when_written()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.writer.__exit__(kind, error, trace)
