"""Snapshots: the weights alone along a run, densely at its beginning and evenly after, within a number of bytes.

    snapshots/step-00000008/{model.safetensors, state.json, manifest.json}

They are kept after 0, 1, 2, 4, 8 ... steps and then every so many (as Biderman et al. 2023 do for Pythia). How long a
run gets is often not known, so the spacing is not: where the next snapshot would not fit, every second of the even ones
goes, and the spacing is twice what it was. Which are kept follows from the steps done and from how many fit, and from
nothing else; so a run that was killed and resumed has those of a run that never was.
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
"""Steps between the even snapshots of a run for which they all fit: small models have short steps."""
FEWEST, MOST = 8, 128
"""Snapshots of a run: where not even the fewest fit, it keeps none."""
LEFT_FREE = 8
"""How many more must find room on the disk: as much is left for two checkpoints with Adam's state and an average."""
BYTES_BESIDES = 2_000
"""An upper bound of what a snapshot takes besides tensors: state.json, manifest.json, the start of its safetensors."""
BYTES_PER_TENSOR = 250
"""An upper bound of what safetensors says of a tensor: its name, shape and place."""


@dataclass(frozen=True)
class SnapshotSteps:
    """The steps of the snapshots of a run for which at most so many fit."""

    most: int

    def after(self, n_steps: int) -> list[int]:
        """The snapshots that are kept as of so many steps; others go when the next one is written.

        Those after one step more are among these, or are the new one.
        """
        spacing = self.spacing(n_steps)
        early = [step for step in self.powers(spacing) if step <= n_steps]
        return [0, *early, *range(spacing, n_steps + 1, spacing)]

    def includes(self, step: int) -> bool:
        """Whether a snapshot is kept when the step is done."""
        spacing = self.spacing(step)
        return step % spacing == 0 or step in self.powers(spacing)

    def spacing(self, n_steps: int) -> int:
        """The steps between even snapshots."""
        spacing = FIRST_SPACING
        while 1 + len(self.powers(spacing)) + n_steps // spacing > self.most:
            spacing *= 2
        return spacing

    def powers(self, spacing: int) -> list[int]:
        """The powers of 2 before the even ones; of 4, of 16 ... where they would be more than half of all."""
        exponents = range(spacing.bit_length() - 1)
        every = 1
        while len(exponents[::every]) > self.most // 2:
            every *= 2
        return [2**exponent for exponent in exponents[::every]]


def steps_within(model: nn.Module, megabytes: float | None) -> SnapshotSteps | None:
    """The steps of the snapshots of a model that fit; None where too few do, or none are wanted."""
    if megabytes is None:
        return None
    most = int(min(MOST, megabytes * 1e6 / snapshot_bytes(model.state_dict())))
    return SnapshotSteps(most) if most >= FEWEST else None


def snapshot_bytes(weights: Mapping[str, Tensor]) -> int:
    """The bytes that a snapshot of a model's weights takes at most."""
    return BYTES_BESIDES + sum(BYTES_PER_TENSOR + tensor.nbytes for tensor in weights.values())


def check_room(place: Path, weights: Mapping[str, Tensor]) -> None:
    """Raise DiskError where a snapshot would take the room that checkpoints need."""
    n_bytes = snapshot_bytes(weights)
    free = shutil.disk_usage(place).free
    if free < (1 + LEFT_FREE) * n_bytes:
        raise DiskError(
            f"{place}: no snapshot of {n_bytes / 1e6:,.1f} MB is written, for {free / 1e6:,.1f} MB are left and "
            "checkpoints need them"
        )


class SnapshotStore:
    """Keeps the snapshots of a run; the first process writes, and the training goes on meanwhile.

    Inside its `with` block, which ends when all is written. A snapshot that cannot be written, or only in the room that
    checkpoints need, does not end the run: it is told once, and no more are kept until the run is resumed.
    """

    def __init__(self, folder: RunFolder, steps: SnapshotSteps | None, processes: Processes) -> None:
        self.place, self.is_main = folder.snapshots, processes.is_main
        self.steps = steps if processes.is_main else None
        self.writer = CheckpointWriter()

    def go_on_from(self, n_steps: int) -> None:
        """Delete what a run that is resumed makes anew, and what it left half-written."""
        if not self.is_main or not self.place.is_dir():
            return
        with disk_errors(self.place):
            remove_abandoned(self.place, after_seconds=0)
            for folder in list_checkpoints(self.place):
                if step_of(folder) > n_steps:
                    discard(folder)

    def save(self, state: TrainState, progress: Progress) -> None:
        """Begin to write the weights to use, where a snapshot of this step is kept.

        One of weights that the last update has spoilt is not: the next step ends the run by them.
        """
        steps = self.steps
        if steps is None or not steps.includes(progress.step) or not weights_are_finite(state.weights_to_use):
            return
        self.writer.wait()  # so that one copy of the weights is in memory at most
        if self.steps is None:  # the one before could not be written
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
            logger.warning("%s; the run goes on without further snapshots", error)

    def when_written(self) -> Callable[[], None]:
        """Waits, in whatever thread it is called, until the snapshots so far are written."""
        return self.writer.when_written()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.writer.__exit__(kind, error, trace)
