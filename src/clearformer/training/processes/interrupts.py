"""Signals that end a run at the end of its step, or of its evaluation at once."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import FrameType, TracebackType

HANGUP = getattr(signal, "SIGHUP", None)  # sent when a terminal is closed; Windows has none
BREAK = getattr(signal, "SIGBREAK", None)  # sent when a console is closed, on Windows alone
ENDING = sorted(
    int(number) for number in (HANGUP, BREAK, signal.SIGINT, signal.SIGTERM) if number is not None
)
PARENT_SECONDS = 1.0  # between looks at whether the parent process lives
ONE_TERMINATION = 5.0
"""Seconds in which SIGTERM counts once: a queue signals all processes of a job, and torchrun hands the signal on."""


@cache  # one thread watches a parent, however many trainings one process has
def end_with_parent(parent: int) -> None:
    """Send this process SIGTERM once its parent process, with the id `parent`, has gone.

    Does nothing on Windows: there the parent of a virtual environment's Python is a launcher of its own, which ends it,
    and a process keeps its parent's id after that has ended.
    """
    if os.name == "nt":
        return

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent", daemon=True).start()


class StoppedError(BaseException):
    """A signal came inside `Interrupts.at_once`; it is recorded, and what was done there is to be left.

    As KeyboardInterrupt, it is no Exception: code that handles failures of its own must not take it for one.
    """


class Interrupts:
    """Records SIGINT, SIGTERM and SIGHUP inside its `with` block; a second SIGINT or SIGTERM ends the process at once.

    The second one must be the same signal: programs that end a process often send one signal after another, and SIGHUP
    twice. SIGTERM within `ONE_TERMINATION` seconds of the first is the same one, from another sender. A process that
    ignores SIGHUP from the start (`nohup`) goes on ignoring it.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, object] = {}
        self._terminated: float | None = None  # when SIGTERM first came, by `time.monotonic`
        self._stops_at_once = False

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            for number in ENDING:
                if number != HANGUP or signal.getsignal(number) != signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            if handler is not None:  # else it was installed outside Python, which cannot install it again
                signal.signal(number, handler)  # type: ignore[arg-type]
        self._before = {}

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Let a signal end the `with` block at once: for what takes long and can be done again later.

        Raises:
            StoppedError: a signal came, inside the block or before it.
        """
        self._stops_at_once = True
        try:
            if self.received:
                raise StoppedError
            yield
        finally:
            self._stops_at_once = False

    def _note(self, number: int, frame: FrameType | None) -> None:
        is_first, self.received = self.received is None, self.received or number
        # Not the handlers from before: a process started in the background ignores SIGINT.
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        elif number == signal.SIGTERM:
            now = time.monotonic()
            if self._terminated is None:
                self._terminated = now
            elif now > self._terminated + ONE_TERMINATION:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                signal.raise_signal(signal.SIGTERM)
        if is_first and self._stops_at_once:
            raise StoppedError
