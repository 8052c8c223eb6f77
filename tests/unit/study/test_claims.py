"""Claims of trials: exactly one process holds one, and a dead one's is taken over."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from clearformer.study.store import Store
from clearformer.study.workers.claims import Holder, claimed, claims, holders
from clearformer.training.store import lock
from clearformer.training.store.lock import has_ended, machine, make_whole_once, started

KEY = "0123456789abcdef-0"
LINUX = pytest.mark.skipif(machine() is None, reason="who has ended is known on Linux alone")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "studies")


def left_behind(store: Store, number: int, **about: object) -> Path:
    """The claim of another process."""
    store.claims.mkdir(parents=True, exist_ok=True)
    file = store.claims / f"{KEY}.{number}"
    file.write_text(json.dumps({"host": "elsewhere", "pid": 7, "machine": "m", "started": "1", **about}))
    return file


def age(file: Path, seconds: float) -> None:
    then = file.stat().st_mtime - seconds
    os.utime(file, (then, then))


def ended_process() -> int:
    """The number of a process that was, and is no more."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_claim_names_its_holder_and_keeps_others_out(store: Store) -> None:
    with claimed(store, KEY) as mine:
        assert mine is not None
        with claimed(store, KEY) as second:
            assert second is None
        with claimed(store, "another") as other:
            assert other is not None
        held = holders(store)[KEY]
        assert held.pid == os.getpid()
        assert held.is_alive
        assert str(held) == f"{held.host} {held.pid}"
    assert holders(store) == {}
    with claimed(store, KEY) as again:
        assert again is not None
    assert [path.name for path in store.claims.glob(f"{KEY}*")] == [f"{KEY}.2"]


def test_it_is_given_up_when_the_block_fails(store: Store) -> None:
    with pytest.raises(ZeroDivisionError), claimed(store, KEY):
        _ = 1 / 0
    assert claims(store) == {}


def test_of_many_threads_one_wins_each_time(store: Store) -> None:
    """Twenty at once, five times over: a claim that was given up goes to one of them."""
    wins: list[int] = []
    for turn in range(5):
        barrier, ended = threading.Barrier(20), threading.Event()

        def contend(
            turn: int = turn, barrier: threading.Barrier = barrier, ended: threading.Event = ended
        ) -> None:
            barrier.wait()
            with claimed(store, KEY) as claim:
                if claim is not None:
                    wins.append(turn)
                    ended.wait(60)

        threads = [threading.Thread(target=contend) for _ in range(20)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 60
        while sum(thread.is_alive() for thread in threads) > 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        ended.set()
        for thread in threads:
            thread.join()
    assert wins == [0, 1, 2, 3, 4]


@LINUX
def test_the_claim_of_a_process_that_has_ended_is_taken_over_at_once(store: Store) -> None:
    file = left_behind(store, 3, pid=ended_process(), machine=machine())
    assert holders(store) == {}
    assert claims(store)[KEY] == Holder("elsewhere", claims(store)[KEY].pid, is_alive=False)
    with claimed(store, KEY) as claim:
        assert claim is not None
        assert not file.exists()
        assert [path.name for path in store.claims.iterdir()] == [f"{KEY}.4"]


@LINUX
def test_of_a_dead_claim_s_successors_one_wins(store: Store) -> None:
    left_behind(store, 3, pid=ended_process(), machine=machine())
    barrier, won, ended = threading.Barrier(20), [], threading.Event()

    def contend() -> None:
        barrier.wait()
        with claimed(store, KEY) as claim:
            if claim is not None:
                won.append(claim)
                ended.wait(60)

    threads = [threading.Thread(target=contend) for _ in range(20)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 60
    while sum(thread.is_alive() for thread in threads) > 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    ended.set()
    for thread in threads:
        thread.join()
    assert len(won) == 1


def test_a_claim_from_elsewhere_is_taken_over_once_it_is_stale(store: Store) -> None:
    file = left_behind(store, 1, pid=ended_process())  # of a machine whose processes are not seen here
    with claimed(store, KEY) as claim:
        assert claim is None
    age(file, lock.STALE_SECONDS + 1)
    with claimed(store, KEY) as claim:
        assert claim is not None


@LINUX
def test_a_worker_elsewhere_that_is_silent_for_minutes_is_not_shown_as_running(store: Store) -> None:
    """By the times of the files alone, which one clock has written."""
    silent = left_behind(store, 1)
    assert set(holders(store)) == {KEY}
    age(silent, lock.STALE_SECONDS + 1)
    assert set(holders(store)) == {KEY}  # no other claim tells what time it is
    with claimed(store, "another-0"):
        assert set(holders(store)) == {"another-0"}
        assert set(claims(store)) == {KEY, "another-0"}


def test_another_process_of_the_same_number_is_not_taken_for_the_holder() -> None:
    def content(**about: object) -> bytes:
        whole = {"pid": os.getpid(), "machine": machine(), "started": started(os.getpid()), **about}
        return json.dumps(whole).encode()

    assert not has_ended(content())
    assert has_ended(content(started="1"))
    assert not has_ended(content(started="1", machine="another"))
    assert not has_ended(content(machine=None))
    assert not has_ended(b"given up\n")


@LINUX
def test_a_process_that_ended_and_was_not_asked_after_has_ended() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    deadline = time.monotonic() + 60
    while started(process.pid) is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert started(process.pid) is None  # a zombie until it is waited for
    process.wait()


def test_a_file_is_made_once_and_whole_also_without_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> None:
        raise OSError("no links here")

    for way in ("links", "none"):
        if way == "none":
            monkeypatch.setattr(os, "link", none)
        file = tmp_path / way
        make_whole_once(file, b"one")
        with pytest.raises(FileExistsError):
            make_whole_once(file, b"two")
        assert file.read_bytes() == b"one"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["links", "none"]
