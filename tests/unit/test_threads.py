"""Threads given up while other programs use the cores."""

from collections.abc import Callable, Iterator, Sequence
from threading import Thread

import numpy as np
import pytest
import torch

from clearformer import resources, threads
from clearformer.resources import FreeCores, Usage, cores_left
from clearformer.threads import FixedThreads, Threads, ThreadsByLoad, ThreadsOfThen

Load = Callable[[float], None]


@pytest.fixture(autouse=True)
def _four_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(threads, "most_threads", lambda: 4)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    """Let a second pass, in which others use that much of four cores."""
    now = used = 0.0

    def passes(by_others: float) -> None:
        nonlocal now, used
        now, used = now + 1.0, used + by_others

    monkeypatch.setattr(resources, "usage", lambda: Usage(now, used, 0.0))
    monkeypatch.setattr(resources.time, "perf_counter", lambda: now)
    monkeypatch.setattr(resources, "own_cores", lambda: {0, 1, 2, 3})
    free = FreeCores()
    monkeypatch.setattr(threads, "free_cores", lambda: free)
    return passes


def numbers(block: Threads, load: Load, by_others: Sequence[float]) -> list[int]:
    """The number of threads after each second."""
    found = []
    with block:
        for seconds in by_others:
            load(seconds)
            block.adapt()
            found.append(torch.get_num_threads())
    return found


def test_threads_are_given_up_at_once_and_taken_back_when_two_looks_agree(load: Load) -> None:
    said: list[str] = []
    assert numbers(ThreadsByLoad(said.append), load, [0, 1, 0, 1, 0, 0, 2.2, 1, 1]) == [
        *(4, 3, 3, 3, 3, 4, 2, 2, 3)
    ]
    assert torch.get_num_threads() == 4
    assert said == ["other programs are using this machine: using 3 of 4 threads for now"]


def test_a_block_begins_with_the_cores_that_are_free_then(load: Load) -> None:
    load(2.0)
    with ThreadsByLoad():
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == 4


def test_the_load_of_helpers_is_forgotten(load: Load) -> None:
    load(2.0)  # compilers
    threads.free_cores().forget()
    load(0.0)
    with ThreadsByLoad():
        assert torch.get_num_threads() == 4


def test_the_first_look_is_sooner_than_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    now = used = 0.0
    monkeypatch.setattr(resources, "usage", lambda: Usage(now, used, 0.0))
    monkeypatch.setattr(resources.time, "perf_counter", lambda: now)
    monkeypatch.setattr(resources, "own_cores", lambda: {0, 1})
    free = FreeCores()
    found = []
    for passed, work in [(0.2, 0.2), (0.4, 0.4), (0.9, 0.9), (1.5, 0.9), (2.6, 0.9)]:
        now, used = passed, work
        found.append(free.number())
    assert found == [2, 1, 1, 1, 2]


@pytest.mark.parametrize("inside", [ThreadsByLoad, FixedThreads])
def test_no_block_changes_their_number_where_it_is_fixed(load: Load, inside: type[Threads]) -> None:
    load(3.0)
    with FixedThreads():
        assert torch.get_num_threads() == 4
        assert numbers(inside(), load, [3, 3]) == [4, 4]
        assert numbers(ThreadsByLoad(), load, [3]) == [4]
    assert numbers(ThreadsByLoad(), load, [3]) == [1]


def test_a_block_inside_leaves_the_fixed_number_where_torch_has_more(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "most_threads", lambda: 2)  # of four, by a quota
    with FixedThreads():
        assert numbers(ThreadsByLoad(), load, [0]) == [2]
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == 4


@pytest.mark.parametrize("block", [ThreadsByLoad, FixedThreads])
def test_there_are_never_more_than_the_cores_that_may_be_used(
    load: Load, block: type[Threads], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "most_threads", lambda: 1)  # of four, by a quota
    assert numbers(block(), load, [0, 0]) == [1, 1]
    assert torch.get_num_threads() == 4


def test_where_nothing_is_told_nothing_changes(monkeypatch: pytest.MonkeyPatch, load: Load) -> None:
    monkeypatch.setattr(resources, "usage", lambda: None)
    assert numbers(ThreadsByLoad(), load, [3.0, 3.0]) == [4, 4]
    free = FreeCores()
    monkeypatch.setattr(threads, "free_cores", lambda: free)
    assert numbers(ThreadsByLoad(), load, [3.0]) == [4]


def test_threads_of_then_are_those_on_record() -> None:
    with ThreadsOfThen(np.array([2, 0, 3], dtype="<u2")) as of_then:
        found = []
        for step in range(4):
            of_then.adapt(step)
            found.append(torch.get_num_threads())
    assert found == [2, 2, 3, 3]  # a step without a record, and those after the last, go on
    assert torch.get_num_threads() == 4


# --- blocks that overlap ----------------------------------------------------------------------------------


@pytest.mark.parametrize("first_to_end", [0, 1])
def test_of_blocks_that_overlap_the_last_restores_the_number(load: Load, first_to_end: int) -> None:
    """As of two streams that are read in turn."""
    load(3.0)
    blocks = [ThreadsByLoad(), ThreadsByLoad()]
    for block in blocks:
        block.__enter__()
    blocks.pop(first_to_end).__exit__(None, None, None)
    blocks[0].adapt()
    assert torch.get_num_threads() == 1
    blocks[0].__exit__(None, None, None)
    assert torch.get_num_threads() == 4


def test_a_thread_that_begins_within_a_block_of_another_has_all_of_them_later(load: Load) -> None:
    """A new thread takes over what torch was last told, in whichever thread."""
    load(3.0)
    found: list[int] = []

    def read() -> None:
        with ThreadsByLoad() as inner:
            found.append(inner.most)
        found.append(torch.get_num_threads())

    with ThreadsByLoad():
        thread = Thread(target=read)
        thread.start()
        thread.join()
    assert found == [4, 4]
    assert torch.get_num_threads() == 4


def test_a_number_of_ones_own_that_is_set_within_a_block_counts_from_the_next_on(load: Load) -> None:
    load(0.0)
    with ThreadsByLoad():  # a stream that is never read to its end
        torch.set_num_threads(2)
        with ThreadsByLoad():
            assert torch.get_num_threads() == 2
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(
    ("n_cores", "used_by_others", "n"),
    [(2, 0.2, 2), (2, 0.7, 1), (2, 2.0, 1), (64, 30.0, 34), (64, 10.2, 54), (1, 0.9, 1)],
)
def test_cores_left(n_cores: int, used_by_others: float, n: int) -> None:
    assert cores_left(n_cores, used_by_others) == n
