"""One writer a run, with the system's locks and without."""

import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from clearformer.errors import DiskError, RunInUseError, RunLostError
from clearformer.training.store import lock as module
from clearformer.training.store.lock import CLAIM, LOCK, is_of_the_lock, one_writer

fcntl = pytest.importorskip("fcntl", reason="Windows has no flock")


def _no_locks(descriptor: int, operation: int) -> None:
    raise OSError(errno.ENOLCK, "No locks available")


@pytest.fixture(params=["flock", "claims"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the file system's locks, and as where it has none."""
    if request.param == "claims":
        monkeypatch.setattr(fcntl, "flock", _no_locks)
    return request.param


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run's folder."""
    folder = tmp_path / "runs" / "a"
    folder.mkdir(parents=True)
    (folder / "config.toml").touch()
    return folder


def refused(folder: Path) -> RunInUseError:
    """The error with which a folder is refused."""
    with pytest.raises(RunInUseError) as caught, one_writer(folder):
        pass
    return caught.value


def test_who_comes_second_is_told_who_came_first(folder: Path, way: str) -> None:
    with one_writer(folder) as hold:
        hold.check()
        refused(folder)
        error = refused(folder)
        hold.check()

    told = str(error)
    assert (
        f"{folder} is in use: process {os.getpid()} on {socket.gethostname()} has been training it since 2"
        in told
    )
    assert Path(sys.argv[0]).name in told
    assert told.endswith("if it was killed, try again after 3 minutes") == (way == "claims")
    assert "\n" not in told
    assert error.exit_status == 1


@pytest.mark.usefixtures("way")
def test_it_is_free_again_afterwards(folder: Path) -> None:
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), one_writer(folder):
            _ = 1 / 0
    with one_writer(folder):
        pass


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_where_there_are_no_locks_there_are_claims(
    folder: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def none(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", none)
    with one_writer(folder):
        assert (folder / f"{CLAIM}1").exists()


def test_another_error_of_the_lock_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(descriptor: int, operation: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", broken)
    with pytest.raises(DiskError, match="Input/output error"), one_writer(folder):
        pass


def test_a_folder_in_which_no_run_began_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "a"
    with one_writer(folder):
        assert all(is_of_the_lock(path.name) for path in folder.iterdir())
    assert not folder.exists()


def test_a_run_s_folder_stays_as_it_was(folder: Path) -> None:
    with one_writer(folder):
        assert (folder / LOCK).exists()
    assert [path.name for path in folder.iterdir()] == ["config.toml"]


def test_a_lock_on_a_file_that_was_just_removed_is_none(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder removes the file and ends between another's opening and locking it."""
    flock, opened = fcntl.flock, []

    def late(descriptor: int, operation: int) -> None:
        if not opened:
            (folder / LOCK).unlink()
        opened.append(descriptor)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with one_writer(folder):
        assert len(opened) == 2
        monkeypatch.undo()
        with pytest.raises(RunInUseError), one_writer(folder):
            pass


# --- processes --------------------------------------------------------------------------------------------

CONTENDER = """
import errno, os, sys, time
from pathlib import Path
from clearformer.errors import RunInUseError
from clearformer.training.store import lock

assert "torch" not in sys.modules  # twenty imports of it would take a minute
folder, way, start, lock.STALE_SECONDS = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
if way == "claims":
    def none(descriptor, operation):
        raise OSError(errno.ENOLCK, "")
    lock.fcntl.flock = none
time.sleep(max(0, start - time.time()))
try:
    with lock.one_writer(folder):
        print("held", os.getpid(), flush=True)
        sys.stdin.read()
except RunInUseError as error:
    print("refused", error, flush=True)
"""


def contender(folder: Path, way: str, start: float = 0.0, stale: float = 180.0) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CONTENDER, str(folder), way, str(start), str(stale)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def end(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.communicate(timeout=60)


@pytest.mark.parametrize("way", ["flock", "claims"])
def test_of_twenty_processes_one_holds_the_run(folder: Path, way: str) -> None:
    processes = [contender(folder, way, start=time.time() + 3) for _ in range(20)]
    try:
        answers = [answer(process) for process in processes]
    finally:
        end(processes)

    [held] = [told for told in answers if told.startswith("held")]
    refused = [told for told in answers if told.startswith("refused")]
    assert len(refused) == 19
    holder = held.split()[1]
    assert all(re.search(rf"is in use: process {holder} on ", told) for told in refused), refused


@pytest.mark.parametrize("way", ["flock", "claims"])
def test_the_holder_s_death_frees_the_run(folder: Path, way: str) -> None:
    stale = 180.0 if way == "flock" else 1.0
    first = contender(folder, way, stale=stale)
    assert answer(first).startswith("held")
    first.send_signal(signal.SIGKILL)
    end([first])

    deadline, told = time.monotonic() + 60, ""
    while not told.startswith("held") and time.monotonic() < deadline:
        second = contender(folder, way, stale=stale)
        told = answer(second)
        end([second])
    assert told.startswith("held")


# --- claims -----------------------------------------------------------------------------------------------


@pytest.fixture
def claims(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """The claim files there are, by name."""
    monkeypatch.setattr(fcntl, "flock", _no_locks)
    return lambda: sorted(path.name for path in folder.glob(f"{CLAIM}*"))


def age(file: Path, seconds: float) -> None:
    then = file.stat().st_mtime - seconds
    os.utime(file, (then, then))


def test_the_highest_number_never_falls(folder: Path, claims: Callable[[], list[str]]) -> None:
    for number in (1, 2, 3):
        with one_writer(folder):
            assert claims() == [f"{CLAIM}{number}"]
        assert claims() == [f"{CLAIM}{number}"]


def test_a_claim_is_taken_over_once_it_is_stale(folder: Path, claims: Callable[[], list[str]]) -> None:
    dead = folder / f"{CLAIM}7"
    dead.write_text(json.dumps({"pid": 1, "host": "elsewhere", "since": "then", "command": "train"}))
    age(dead, module.STALE_SECONDS - 60)
    with (
        pytest.raises(RunInUseError, match="process 1 on elsewhere has been training it since then"),
        one_writer(folder),
    ):
        pass
    assert claims() == [dead.name]

    age(dead, 70)
    with one_writer(folder):
        assert claims() == [f"{CLAIM}8"]


def test_a_claim_is_renewed(
    folder: Path, claims: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RENEW_SECONDS", 0.01)
    with one_writer(folder):
        file = folder / f"{CLAIM}1"
        age(file, 1000)
        old, deadline = file.stat().st_mtime, time.monotonic() + 60
        while file.stat().st_mtime == old and time.monotonic() < deadline:
            time.sleep(0.01)
        assert file.stat().st_mtime > old


def test_who_stood_still_for_long_finds_out_that_another_has_taken_over(
    folder: Path, claims: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with one_writer(folder) as slow:
        age(folder / f"{CLAIM}1", module.STALE_SECONDS + 1)
        with one_writer(folder):
            slow.check()  # it was renewed a moment ago, as far as it knows
            now = time.time()
            monkeypatch.setattr(module.time, "time", lambda: now + module.STALE_SECONDS)
            with pytest.raises(RunInUseError, match="in use: process"):
                slow.check()
    assert claims() == [f"{CLAIM}2"]  # and it takes nothing back


def test_a_slow_one_does_not_take_a_number_that_is_behind(
    folder: Path, claims: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its look and its claim others have come and gone, and removed the claims of lower numbers."""
    highest, looks = module.Claim._highest, iter([0])
    with one_writer(folder):
        age(folder / f"{CLAIM}1", module.STALE_SECONDS + 1)
        with one_writer(folder):
            monkeypatch.setattr(module.Claim, "_highest", lambda claim: next(looks, highest(claim)))
            with pytest.raises(RunInUseError), one_writer(folder):
                pass
            assert claims() == [f"{CLAIM}2"]


def test_a_file_server_that_does_not_answer_takes_no_run_away(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stale(path: Path) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))

    with one_writer(folder) as hold:
        with monkeypatch.context() as patch:
            patch.setattr(Path, "stat", stale)
            hold.check()
        (folder / LOCK).unlink()
        with pytest.raises(RunLostError):
            hold.check()


def test_a_run_whose_folder_was_replaced_ends_and_frees_no_other_s(folder: Path) -> None:
    """`mv runs/a runs/old; cp -r runs/old runs/a` while it trains; then another process goes on with the copy."""
    with one_writer(folder) as hold:
        hold.check()
        folder.rename(folder.with_name("old"))
        with pytest.raises(RunLostError, match="was moved or replaced meanwhile"):
            hold.check()
        folder.mkdir()
        (folder / "config.toml").touch()
        other = module.Lock(folder)
        with pytest.raises(RunInUseError, match="was moved or replaced meanwhile"):
            hold.check()
    other.check()
    assert (folder / LOCK).exists()
    refused(folder)
    other.release()
    assert not (folder / LOCK).exists()


def test_a_claim_that_was_half_given_up_is_free(folder: Path, claims: Callable[[], list[str]]) -> None:
    """Its holder was killed after writing that, and before cutting off what stood there."""
    module.Claim(folder).release()
    [name] = claims()
    (folder / name).write_bytes(module.GIVEN_UP + b', "host": "x"}\n')
    module.Claim(folder).release()
