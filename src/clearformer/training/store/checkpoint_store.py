"""The checkpoints of a run in progress: saved in the background, restored, pruned."""

from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Self

from clearformer.errors import CheckpointError, DiskError
from clearformer.files import disk_errors, remove_abandoned
from clearformer.training.processes.distributed import Processes
from clearformer.training.store.async_checkpoint import CheckpointWriter
from clearformer.training.store.checkpoint import (
    Checkpoint,
    Progress,
    amend_progress,
    link,
    list_checkpoints,
    newest_whole,
    prune,
    save_checkpoint,
    step_of,
)
from clearformer.training.store.folder import Record, RunFolder
from clearformer.training.store.snapshots import SnapshotStore
from clearformer.training.store.state import TrainState


class CheckpointStore:
    """Saves and restores the state of a run; the first process writes while training goes on.

    It is used as a `with` block, which ends when all is written.
    """

    def __init__(
        self, folder: RunFolder, keep_last: int, processes: Processes, every: int | None = None
    ) -> None:
        self.folder, self.keep_last, self.processes, self.every = folder, keep_last, processes, every
        self.records: Sequence[Record] = ()  # to be on the disk before a checkpoint is
        self.snapshots: SnapshotStore | None = None  # likewise
        self.writer = CheckpointWriter()
        self.damaged: set[int] = set()  # the steps of those after the one that the run was resumed from

    def save(self, state: TrainState, progress: Progress) -> None:
        """Save the state; called in all processes, and returns once the state is copied for the writer.

        The previous checkpoint is written by then.

        Raises:
            DiskError: the previous checkpoint could not be written.
        """
        if self.processes.is_main:
            self.save_alone(state, progress)
        self.processes.wait_for_all()

    def save_alone(self, state: TrainState, progress: Progress) -> None:
        """Save the state without waiting for the other processes, as when an error in this one ends the run."""
        self.writer.wait()
        wait_for_snapshots = self.snapshots.when_written() if self.snapshots else lambda: None
        self.writer.submit(partial(self.write_after, wait_for_snapshots, state.checkpoint(progress)))

    def write_after(self, wait: Callable[[], None], checkpoint: Checkpoint) -> None:
        """Write a checkpoint after `wait`: after the snapshots that must be on the disk before it."""
        wait()
        self.write(checkpoint)

    def write(self, checkpoint: Checkpoint) -> None:
        """Sync the records, write a checkpoint, and tidy up.

        Raises:
            DiskError: it cannot be written.
        """
        progress, checkpoints = checkpoint.progress, self.folder.checkpoints
        for record in self.records:
            record.sync()
        save_checkpoint(checkpoints, checkpoint)
        self.damaged.discard(progress.step)
        self.tidy(progress)

    def amend(self, progress: Progress) -> None:
        """Replace the progress in the checkpoint that the run was resumed from; called in all processes.

        Raises:
            DiskError: it cannot be written.
            CheckpointError: the checkpoint is damaged.
        """
        if self.processes.is_main:
            self.writer.wait()
            amend_progress(self.folder.checkpoints, progress)
            self.tidy(progress)
        self.processes.wait_for_all()

    def tidy(self, progress: Progress) -> None:
        """Point the links at the newest and the best checkpoint, and delete those that are no longer wanted.

        A resumed run begins with this: its process may have been killed between a checkpoint, even the last, and this.

        Raises:
            DiskError: the folder cannot be written.
        """
        checkpoints = self.folder.checkpoints
        with disk_errors(checkpoints):
            remove_abandoned(checkpoints, after_seconds=0)  # safe, as a run has one writer
        link(checkpoints, {"latest": progress.step, "best": progress.best_step})
        prune(checkpoints, self.keep_last, progress, self.every, self.damaged)

    def restore(self, state: TrainState) -> Progress | None:
        """Load the newest whole checkpoint into the state and return its progress; None if there is no checkpoint.

        Raises:
            CheckpointError: all of them are damaged, or it is of another model.
            DiskError: one may not be read, or there is something else in the place of their folder.
        """
        place = self.folder.checkpoints
        if (place.exists() or place.is_symlink()) and not place.is_dir():
            raise DiskError(f"{place}: not a folder, so no checkpoint can be written there; move it away")
        try:
            checkpoint = newest_whole(self.folder.checkpoints)
        except CheckpointError as error:
            raise CheckpointError(f"{error}: move {self.folder.checkpoints} away to start over") from None
        if checkpoint is None:
            return None
        try:
            state.load(checkpoint)
        except (KeyError, IndexError, ValueError, RuntimeError) as error:
            raise CheckpointError(
                f"{self.folder.checkpoints}: the checkpoint of step {checkpoint.progress.step} does not fit "
                f"config.toml: {error}"
            ) from None
        step = checkpoint.progress.step
        self.damaged = {at for at in map(step_of, list_checkpoints(self.folder.checkpoints)) if at > step}
        return checkpoint.progress

    def newest_step(self) -> int | None:
        """Wait until all is written and return the step of the newest checkpoint; None if there is none."""
        self.writer.wait()
        checkpoints = list_checkpoints(self.folder.checkpoints)
        return step_of(checkpoints[0]) if checkpoints else None

    def wait(self) -> None:
        """Wait until all is written; raise the error if writing failed."""
        self.writer.wait()

    def check(self) -> None:
        """Raise the error of a write that has failed by now."""
        self.writer.check()

    def __enter__(self) -> Self:
        self.writer.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.writer.__exit__(kind, error, trace)
