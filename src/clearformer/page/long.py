"""Computations that take long: one at a time beside the quick ones; each says how far it is, and can be ended."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

from clearformer.errors import UserError

LOOK_EVERY_SECONDS = 0.1

OnStep = Callable[[int, int], None]
"""Receives how much is done, and how much there is to do."""


class EndedError(UserError):
    """A computation was ended before it was done."""


class LongComputations:
    """Turns of what takes long.

    A newer computation of the same name ends the one before: its answer is no longer waited for.
    """

    def __init__(self) -> None:
        self._turn = Lock()
        self._newest: dict[str, int] = {}
        self._progress: dict[str, tuple[int, int]] = {}
        self._last: dict[str, tuple[Any, Any]] = {}

    @contextmanager
    def turn(self, name: str) -> Iterator[OnStep]:
        """The turn of a computation, once it comes; gives what it is to call as it goes on.

        Raises:
            EndedError: from that call, or before the turn has come: it was ended.
        """
        mine = self._newest[name] = self._newest.get(name, 0) + 1

        def on_step(done: int, total: int) -> None:
            if self._newest[name] != mine:
                raise EndedError(f"{name}: it was ended before it was done; ask again")
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
        """Keep the last answer of a name, for its table and its pictures."""
        self._last[name] = (question, answer)

    def kept(self, name: str, question: Any) -> Any:
        """That answer, where it is of this question; else None."""
        asked, answer = self._last.get(name, (None, None))
        return answer if asked == question else None

    def end(self, name: str) -> None:
        """End a computation, where one of this name is under way or waits."""
        self._newest[name] = self._newest.get(name, 0) + 1
        self._progress.pop(name, None)

    def progress(self, name: str) -> tuple[int, int] | None:
        """How much of a computation is done, and how much there is to do: 0 while that is not known; None of none."""
        return self._progress.get(name)
