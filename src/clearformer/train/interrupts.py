"""Signals that end a run at the end of its step."""

import signal
import threading
from types import FrameType, TracebackType


class Interrupts:
    """Inside its `with` block SIGINT and SIGTERM are noted; a second one ends the process at once."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, object] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._before = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        # Not the handlers from before: a process that was started in the background began by ignoring SIGINT.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
