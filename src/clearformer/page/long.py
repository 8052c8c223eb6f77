"""Long computations: one at a time, alongside the quick ones; each reports its progress and can be cancelled."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

from clearformer.decoding.arguments import OnStep
from clearformer.errors import UserError

LOOK_EVERY_SECONDS = 0.1


class EndedError(UserError):
    """A computation was cancelled before it was done."""


class LongComputations:
    """Lets long computations run one at a time.

    A newer computation with the same name cancels the older one, whose answer is no longer wanted.
    """

    def __init__(self) -> None:
        self._turn = Lock()
        self._newest: dict[str, int] = {}
        self._progress: dict[str, tuple[int, int]] = {}
        self._last: dict[str, tuple[Any, Any]] = {}

    @contextmanager
    def turn(self, name: str, is_left: Callable[[], bool] = lambda: False) -> Iterator[OnStep]:
        """Wait for a computation's turn; yields a function that the computation calls to report its progress.

        Args:
            name: The computation.
            is_left: Says whether nobody waits for it any more.

        Raises:
            EndedError: from that function, or while waiting: the computation was cancelled, or nobody waits for it.
        """
        mine = self._newest[name] = self._newest.get(name, 0) + 1

        def on_step(done: int, total: int) -> None:
            if self._newest[name] != mine or is_left():
                raise EndedError(f"{name}: cancelled before it finished; ask again")
            self._progress[name] = (done, total)

        try:
            on_step(0, 0)
            while not self._turn.acquire(timeout=LOOK_EVERY_SECONDS):
                on_step(0, 0)
            try:
                yield on_step
            finally:
                self._turn.release()
        finally:
            if self._newest[name] == mine:
                self._progress.pop(name, None)

    def keep(self, name: str, question: Any, answer: Any) -> None:
        """Store the latest answer under a name, for its table and pictures."""
        self._last[name] = (question, answer)

    def kept(self, name: str, question: Any) -> Any:
        """Return the stored answer if it belongs to this question; else None."""
        asked, answer = self._last.get(name, (None, None))
        return answer if asked == question else None

    def end(self, name: str) -> None:
        """Cancel the computation with this name, whether it is running or waiting."""
        self._newest[name] = self._newest.get(name, 0) + 1
        self._progress.pop(name, None)

    def end_all(self) -> None:
        """Cancel every computation, whether it is running or waiting."""
        for name in list(self._newest):
            self.end(name)

    def progress(self, name: str) -> tuple[int, int] | None:
        """Return the work done and the total (0 until it is known); None if no such computation is under way."""
        return self._progress.get(name)
