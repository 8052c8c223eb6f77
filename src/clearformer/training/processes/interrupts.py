"""Signals that end a run at the end of its step."""

import signal
import threading
from types import FrameType, TracebackType

HANGUP = getattr(signal, "SIGHUP", None)  # of a terminal that was closed; Windows has none
ENDING = sorted(int(number) for number in (HANGUP, signal.SIGINT, signal.SIGTERM) if number is not None)


class Interrupts:
    """Notes SIGINT, SIGTERM and SIGHUP inside its `with` block; a second SIGINT or SIGTERM ends the process at once.

    The second one must be of the same number: what ends a process often sends one signal after another, and SIGHUP
    twice. A process that ignores SIGHUP from the start (`nohup`) goes on ignoring it.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, object] = {}

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
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._before = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = self.received or number
        # Not the handlers from before: a process that was started in the background began by ignoring SIGINT.
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        elif number == signal.SIGTERM:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
