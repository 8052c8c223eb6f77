"""Threads given up while other programs use the cores."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch

from clearformer.cores import Usage
from clearformer.training import threads
from clearformer.training.reporting.report import Reporter
from clearformer.training.threads import ThreadsByLoad, ThreadsOfThen, threads_that_pay


class Noting(Reporter):
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, message: str) -> None:
        self.said.append(message)


@pytest.fixture
def _four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What others use of four cores from one look to the next; a look every second."""
    looks: list[float] = []
    clock = cores = 0.0

    def usage() -> Usage:
        nonlocal clock, cores
        if clock:
            cores += looks.pop(0)
        clock += 1.0
        return Usage(clock, cores, 0.0)

    monkeypatch.setattr(threads, "usage", usage)
    monkeypatch.setattr(threads.time, "perf_counter", lambda: clock + 1)
    monkeypatch.setattr(threads, "n_cores", lambda: 4)
    monkeypatch.setattr(threads, "own_cores", lambda: {0, 1, 2, 3})
    return looks


def numbers(
    used: list[float], by_others: Sequence[float], reporter: Reporter, may_change: bool = True
) -> list[int]:
    """The number of threads after each look."""
    used += by_others
    found = []
    with ThreadsByLoad(reporter, may_change) as of_run:
        for step in range(len(by_others)):
            of_run.adapt(step)
            found.append(torch.get_num_threads())
    return found


@pytest.mark.usefixtures("_four_threads")
def test_threads_are_given_up_at_once_and_taken_back_when_two_looks_agree(used: list[float]) -> None:
    reporter = Noting()
    assert numbers(used, [0, 1, 0, 1, 0, 0, 2.2, 1, 1], reporter) == [4, 3, 3, 3, 3, 4, 2, 2, 3]
    assert torch.get_num_threads() == 4
    assert reporter.said == ["other programs are using this machine: using 3 of 4 threads for now"]


@pytest.mark.usefixtures("_four_threads")
def test_the_load_of_compiling_is_forgotten(used: list[float]) -> None:
    used += [2.0, 0.0]  # two cores used by compilers, then none
    with ThreadsByLoad(Noting()) as of_run:
        of_run.reset()
        of_run.adapt(0)
        assert torch.get_num_threads() == 4


@pytest.mark.usefixtures("_four_threads")
def test_their_number_stays_where_it_may_not_change(used: list[float]) -> None:
    assert numbers(used, [3, 3], Noting(), may_change=False) == [4, 4]


@pytest.mark.usefixtures("_four_threads")
def test_there_are_never_more_than_the_cores_that_may_be_used(
    used: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "n_cores", lambda: 1)  # of four, by a quota
    assert numbers(used, [0, 0], Noting()) == [1, 1]
    assert torch.get_num_threads() == 4


@pytest.mark.usefixtures("_four_threads")
def test_where_nothing_is_told_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "usage", lambda: None)
    assert numbers([], [0.0, 0.0], Noting()) == [min(4, threads.n_cores())] * 2


@pytest.mark.usefixtures("_four_threads")
def test_threads_of_then_are_those_on_record() -> None:
    with ThreadsOfThen(np.array([2, 0, 3], dtype="<u2")) as of_then:
        found = []
        for step in range(4):
            of_then.adapt(step)
            found.append(torch.get_num_threads())
    assert found == [2, 2, 3, 3]  # a step without a record, and those after the last, go on
    assert torch.get_num_threads() == 4


@pytest.mark.parametrize(
    ("most", "cores", "used_by_others", "n"),
    [(2, 2, 0.2, 2), (2, 2, 0.7, 1), (2, 2, 2.0, 1), (2, 64, 30.0, 2), (64, 64, 10.2, 54), (1, 1, 0.9, 1)],
)
def test_threads_that_pay(most: int, cores: int, used_by_others: float, n: int) -> None:
    assert threads_that_pay(most, cores, used_by_others) == n
