"""The number of torch's threads: as many as have a core to themselves.

OpenMP's threads wait for each other by spinning. If another program takes a core, all of them wait for the thread on
that core, many times a step, and a step takes several times as long as with one thread less.
"""

import time
from types import TracebackType

import numpy as np
import torch
from jaxtyping import Shaped

from clearformer.cores import Usage, n_cores, own_cores, usage
from clearformer.training.reporting.report import Reporter

LOOK_SECONDS = 1.0
"""Between measurements of the load; in a shorter time, brief work of other programs would look like a steady load."""


class Threads:
    """A `with` block that may change the number of torch's threads, and restores it at the end."""

    def __init__(self) -> None:
        self.before = torch.get_num_threads()

    def __enter__(self) -> "Threads":
        self.before = torch.get_num_threads()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        torch.set_num_threads(self.before)

    def adapt(self, step: int) -> None:
        """Change the number if necessary; called before each step, counted from 0."""

    def reset(self) -> None:
        """Forget the load measured so far: after compiling it includes the compilers of this run."""


class ThreadsOfThen(Threads):
    """As many threads as a run had at each step, where that was recorded."""

    def __init__(self, recorded: Shaped[np.ndarray, " steps"]) -> None:
        """Take the numbers of a `threads.u16` file."""
        super().__init__()
        self.recorded = recorded

    def adapt(self, step: int) -> None:
        number = int(self.recorded[step]) if step < len(self.recorded) else 0
        if number and number != torch.get_num_threads():
            torch.set_num_threads(number)


class ThreadsByLoad(Threads):
    """Takes threads away from torch while other programs use the cores, and gives them back afterwards.

    There are never more threads than torch had before, nor more than cores that this process may use. If the system
    does not report how busy its cores are, the number stays the same.
    """

    def __init__(self, reporter: Reporter, may_change: bool = True) -> None:
        """Prepare the `with` block.

        Args:
            reporter: Receives a message when the number changes for the first time.
            may_change: Whether it may change within the block; the last bits of some products depend on it.
        """
        super().__init__()
        self.reporter, self.may_change = reporter, may_change
        self.most = min(self.before, n_cores())
        self.wanted = self.present = self.most
        self.is_told = False
        self.last: Usage | None = None

    def __enter__(self) -> "ThreadsByLoad":
        super().__enter__()
        if self.most < self.before:
            torch.set_num_threads(self.most)
        self.last = usage() if self.may_change and self.most > 1 else None
        return self

    def adapt(self, step: int) -> None:
        """Measure the load if `LOOK_SECONDS` have passed, and set the number of threads that is fastest with it."""
        if self.last is None or time.perf_counter() - self.last.clock < LOOK_SECONDS:
            return
        now = usage()
        if now is None:
            return
        wanted = threads_that_pay(self.most, len(own_cores()), now.by_others_since(self.last))
        # One measurement is enough to take threads away; giving them back needs two in a row.
        number = min(wanted, max(self.wanted, self.present))
        self.last, self.wanted = now, wanted
        if number != self.present:
            self.change(number)

    def reset(self) -> None:
        if self.last is not None:
            self.last = usage()

    def change(self, number: int) -> None:
        """Set the number of threads, and report the first change."""
        torch.set_num_threads(number)
        self.present = number
        if not self.is_told:
            self.is_told = True
            self.reporter.say(
                f"other programs are using this machine: using {number} of {self.most} threads for now"
            )


def threads_that_pay(most: int, cores: int, used_by_others: float) -> int:
    """Return how many cores others leave free, from 1 to `most`; half a core counts as one."""
    return max(1, min(most, int(cores - used_by_others + 0.5)))
