"""The number of torch's threads: as many as have a core to themselves.

OpenMP's threads wait for each other by spinning. If another program takes a core, all of them wait for the thread on
that core, at every product, and everything takes several times as long as with one thread less.
"""

import threading
from collections.abc import Callable
from functools import cache
from types import TracebackType
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Shaped

from clearformer.resources import free_cores, n_cores

_lock = threading.RLock()
_open = _fixed = 0  # blocks of any kind, and those that fix the number
_given = 0  # the number outside of all blocks
_set_here = threading.local()
"""Its `number` is what a block has set in this thread of Python: OpenMP keeps a number for each."""


@cache
def most_threads() -> int:
    """Return the number of cores, cached because it is slow to find; torch itself ignores a container's quota."""
    return n_cores()


class Threads:
    """A `with` block that may change the number of torch's threads.

    At its end torch has as many as outside of all such blocks, however blocks overlap (those of two streams, say);
    while another one is open, no more than cores that this process may use.

    Attributes:
        fixes: Whether the number stays the same in the blocks inside.
        most: The most threads to use: those of torch outside, but no more than cores that this process may use.
    """

    fixes: ClassVar[bool] = False

    def __init__(self) -> None:
        self.most = min(torch.get_num_threads(), most_threads())

    def __enter__(self) -> "Threads":
        global _open, _fixed, _given
        with _lock:
            number = torch.get_num_threads()
            if not _open or number != getattr(_set_here, "number", number):  # else a block may have set it
                _given = number
            _open += 1
            _fixed += self.fixes
        self.most = min(_given, most_threads())
        self.set(self.most)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        global _open, _fixed
        with _lock:
            _open -= 1
            _fixed -= self.fixes
            number = min(_given, most_threads()) if _open else _given
        self.set(number)

    def set(self, number: int) -> None:
        """Set the number for this thread of Python."""
        if number != torch.get_num_threads():
            torch.set_num_threads(number)
        _set_here.number = number

    def adapt(self, step: int = 0) -> None:
        """Change the number if necessary; called before each step, counted from 0, or each batch."""


class FixedThreads(Threads):
    """As many threads as there may be, also in the blocks inside, whatever the load."""

    fixes: ClassVar[bool] = True


class ThreadsOfThen(Threads):
    """As many threads as a run had at each step, where that was recorded."""

    def __init__(self, recorded: Shaped[np.ndarray, " steps"]) -> None:
        """Take the numbers of a `threads.u16` file."""
        super().__init__()
        self.recorded = recorded

    def adapt(self, step: int = 0) -> None:
        number = int(self.recorded[step]) if step < len(self.recorded) else 0
        if number:
            self.set(number)


class ThreadsByLoad(Threads):
    """Takes threads away from torch while other programs use the cores, and gives them back afterwards.

    If the system does not report how busy its cores are, the number stays the same.
    """

    def __init__(self, say: Callable[[str], None] | None = None) -> None:
        """Prepare the `with` block.

        Args:
            say: Receives a message when there are fewer for the first time.
        """
        super().__init__()
        self.say = say

    def __enter__(self) -> "ThreadsByLoad":
        super().__enter__()
        self.adapt()
        return self

    def adapt(self, step: int = 0) -> None:
        """Set as many as there are free cores; the load is measured once a second."""
        number = self.most if _fixed else min(self.most, free_cores().number())
        self.set(number)
        if self.say is not None and number < self.most:
            self.say(f"other programs are using this machine: using {number} of {self.most} threads for now")
            self.say = None
