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
    """Lets long computations run one at a time, also those with the same name, which several windows may wait for."""

    def __init__(self) -> None:
        self._turn = Lock()
        self._wanted: dict[str, set[object]] = {}
        self._progress: dict[str, tuple[int, int]] = {}
        self._last: dict[str, tuple[Any, Any]] = {}

    @contextmanager
    def turn(self, name: str, is_left: Callable[[], bool]) -> Iterator[OnStep]:
        """Wait for a computation's turn; yields a function that the computation calls to report its progress.

        Args:
            name: The computation.
            is_left: Says whether nobody waits for it any more.

        Raises:
            EndedError: from that function, or while waiting: the computation was cancelled, or nobody waits for it.
        """
        mine = object()
        wanted = self._wanted.setdefault(name, set())
        wanted.add(mine)

        def check() -> None:
            if mine not in wanted or is_left():
                raise EndedError(f"{name}: cancelled before it finished; ask again")

        def on_step(done: int, total: int) -> None:
            check()
            self._progress[name] = (done, total)

        try:
            check()
            while not self._turn.acquire(timeout=LOOK_EVERY_SECONDS):
                check()
            try:
                yield on_step
            finally:
                self._progress.pop(name, None)
                self._turn.release()
        finally:
            wanted.discard(mine)

    def keep(self, name: str, question: Any, answer: Any) -> None:
        """Store the latest answer under a name, for its table and pictures."""
        self._last[name] = (question, answer)

    def kept(self, name: str, question: Any) -> Any:
        """Return the stored answer if it belongs to this question; else None."""
        asked, answer = self._last.get(name, (None, None))
        return answer if asked == question else None

    def end(self, name: str) -> None:
        """Cancel the computations with this name, whether they are running or waiting."""
        self._wanted.get(name, set()).clear()
        self._progress.pop(name, None)

    def end_all(self) -> None:
        """Cancel every computation, whether it is running or waiting."""
        for name in list(self._wanted):
            self.end(name)

    def progress(self, name: str) -> tuple[int, int] | None:
        """Return the work done and the total (0 until it is known); None if no such computation is under way."""
        return self._progress.get(name, (0, 0) if self._wanted.get(name) else None)
