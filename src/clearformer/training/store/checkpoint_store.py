"""The checkpoints of a run under way: saved beside the training, restored, pruned."""

from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Protocol, Self

from clearformer.errors import CheckpointError
from clearformer.training.processes.distributed import Processes
from clearformer.training.store.async_checkpoint import CheckpointWriter
from clearformer.training.store.checkpoint import (
    Checkpoint,
    Progress,
    link,
    list_checkpoints,
    newest_whole,
    prune,
    save_checkpoint,
    step_of,
)
from clearformer.training.store.folder import RunFolder
from clearformer.training.store.snapshots import SnapshotStore
from clearformer.training.store.state import TrainState


class Record(Protocol):
    """A file that grows as the run goes on."""

    def sync(self) -> None:
        """Wait until all of it is on the disk."""


class CheckpointStore:
    """Saves and restores the state of a run; the first process writes, and the training goes on meanwhile.

    Inside its `with` block, which ends when all is written.
    """

    def __init__(self, folder: RunFolder, keep_last: int, processes: Processes) -> None:
        self.folder, self.keep_last, self.processes = folder, keep_last, processes
        self.records: Sequence[Record] = ()  # which must be on the disk before a checkpoint is
        self.snapshots: SnapshotStore | None = None  # likewise
        self.writer = CheckpointWriter()

    def save(self, state: TrainState, progress: Progress) -> None:
        """Save the state, in all processes together: none returns before it is copied and with the writer.

        The checkpoint before is written by then.

        Raises:
            DiskError: the checkpoint before could not be written.
        """
        if self.processes.is_main:
            self.save_alone(state, progress)
        self.processes.wait_for_all()

    def save_alone(self, state: TrainState, progress: Progress) -> None:
        """Save the state in this process, whatever the others do: where the run ends by an error of this one."""
        self.writer.wait()
        wait_for_snapshots = self.snapshots.when_written() if self.snapshots else lambda: None
        self.writer.submit(partial(self.write_after, wait_for_snapshots, state.checkpoint(progress)))

    def write_after(self, wait: Callable[[], None], checkpoint: Checkpoint) -> None:
        """Write a checkpoint once what it must not be ahead of is written."""
        wait()
        self.write(checkpoint)

    def write(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, the records before it, and delete those that are no longer wanted.

        Raises:
            DiskError: it cannot be written.
        """
        progress, checkpoints = checkpoint.progress, self.folder.checkpoints
        for record in self.records:
            record.sync()
        save_checkpoint(checkpoints, checkpoint)
        link(checkpoints, {"latest": progress.step, "best": progress.best_step})
        prune(checkpoints, self.keep_last, progress)

    def restore(self, state: TrainState) -> Progress | None:
        """Set the state from the newest whole checkpoint; None where there is no checkpoint.

        Raises:
            CheckpointError: all of them are damaged, or it is of another model.
        """
        checkpoint = newest_whole(self.folder.checkpoints)
        if checkpoint is None:
            return None
        try:
            state.load(checkpoint)
        except (KeyError, RuntimeError) as error:
            raise CheckpointError(
                f"{self.folder.checkpoints}: the checkpoint of step {checkpoint.progress.step} does not fit "
                f"config.toml: {error}"
            ) from None
        return checkpoint.progress

    def newest_step(self) -> int | None:
        """The step of the newest checkpoint, once all is written; None where there is none."""
        self.writer.wait()
        checkpoints = list_checkpoints(self.folder.checkpoints)
        return step_of(checkpoints[0]) if checkpoints else None

    def wait(self) -> None:
        """Wait until all is written; raises the error of writing."""
        self.writer.wait()

    def check(self) -> None:
        """Raise the error of what was saved, if writing it has failed by now."""
        self.writer.check()

    def __enter__(self) -> Self:
        self.writer.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.writer.__exit__(kind, error, trace)
