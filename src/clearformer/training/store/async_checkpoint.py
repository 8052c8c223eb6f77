"""Asynchronous checkpoints: a thread writes them while training goes on."""

import logging
import time
from collections.abc import Callable
from threading import Thread
from types import TracebackType
from typing import Self

logger = logging.getLogger(__name__)


class CheckpointWriter:
    """Writes one checkpoint after the other in a background thread.

    It is used as a `with` block, which ends when all is written. Tensors that are being written must not change. An
    error in writing is raised by the next call of `submit`, `check` or `wait`, or at the end of the block.

    Attributes:
        seconds: How long the latest checkpoint took to write.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._thread: Thread | None = None
        self._error: BaseException | None = None

    def submit(self, write: Callable[[], object]) -> None:
        """Wait for the previous write, then start this one."""
        self.wait()
        # A daemon, so that repeated interrupts end the process at once; half a checkpoint does no harm.
        self._thread = Thread(target=self._run, args=(write,), name="checkpoints", daemon=True)
        self._thread.start()

    def when_written(self) -> Callable[[], None]:
        """Return a function for any thread that waits until what was submitted so far is written or has failed."""
        thread = self._thread
        return thread.join if thread else lambda: None

    def check(self) -> None:
        """Raise the error of a write that has failed by now."""
        if self._thread is not None and not self._thread.is_alive():
            self.wait()

    def wait(self) -> None:
        """Wait until all is written; raise the error if writing failed."""
        if self._thread is not None:
            self._thread.join()
        self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, write: Callable[[], object]) -> None:
        start = time.monotonic()
        try:
            write()
            self.seconds = time.monotonic() - start
        except BaseException as error:  # raised later in the training thread
            self._error = error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.wait()
        except Exception as failure:
            if error is None:
                raise
            logger.warning("%s", failure)  # the error that ended the block is raised instead
