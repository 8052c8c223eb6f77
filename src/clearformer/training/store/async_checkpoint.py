"""Asynchronous checkpoints: a thread writes them while training goes on."""

import logging
from collections.abc import Callable
from threading import Thread
from types import TracebackType
from typing import Self

logger = logging.getLogger(__name__)


class CheckpointWriter:
    """Writes one checkpoint after the other, beside whatever else goes on.

    Inside its `with` block; the block ends when all is written. What is submitted must not be changed meanwhile. An
    error of writing is raised by the next call of any method, or at the block's end.
    """

    def __init__(self) -> None:
        self._thread: Thread | None = None
        self._error: BaseException | None = None

    def submit(self, write: Callable[[], object]) -> None:
        """Begin to write, once what was submitted before is written."""
        self.wait()
        # A daemon: who interrupts again and again ends the process at once, and half a checkpoint is none.
        self._thread = Thread(target=self._run, args=(write,), name="checkpoints", daemon=True)
        self._thread.start()

    def when_written(self) -> Callable[[], None]:
        """Waits, in whatever thread it is called, until what was submitted so far is written, well or not."""
        thread = self._thread
        return thread.join if thread else lambda: None

    def check(self) -> None:
        """Raise the error of what was submitted, if it has failed by now."""
        if self._thread is not None and not self._thread.is_alive():
            self.wait()

    def wait(self) -> None:
        """Wait until all is written."""
        if self._thread is not None:
            self._thread.join()
        self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, write: Callable[[], object]) -> None:
        try:
            write()
        except BaseException as error:  # whatever it is, it is raised where training sees it
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
            logger.warning("%s", failure)  # the error that ended the block is the one to raise
