"""One writer a run: a training process locks the run's folder, and any other gets an error that names the holder.

Where the file system has locks, the holder keeps `flock` on one file, and the system frees it when the holder ends,
however that is. Where it has none (some network file systems, Windows), the holder makes a numbered claim file and
renews its time. The claim with the highest number counts; it is free once it was given up, its process has ended, or it
was not renewed for `STALE_SECONDS`. Nobody renames or replaces a claim: a successor makes the file of the next number,
which only one can. Studies claim their runs in the same way.
"""

import contextlib
import errno
import json
import os
import secrets
import shlex
import socket
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from threading import Event, Thread

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

from clearformer.errors import ClearformerError, RunInUseError
from clearformer.files import disk_errors, make_folders

LOCK = ".lock"
CLAIM = ".claim-"  # and a number
RENEW_SECONDS = 20.0
STALE_SECONDS = 180.0
GIVEN_UP = b"given up\n"  # what the claim of a process that has ended says
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS)


class Hold(ABC):
    """A run's folder held by this process."""

    @abstractmethod
    def __init__(self, folder: Path) -> None:
        """Take it, or raise RunInUseError."""

    @abstractmethod
    def check(self) -> None:
        """Raise RunInUseError where another process has taken the folder over."""

    @abstractmethod
    def release(self) -> None:
        """Let others have it."""


@contextlib.contextmanager
def one_writer(folder: Path) -> Iterator[Hold]:
    """Hold a run's folder, which is made where it is not there, for as long as the `with` block lasts.

    A folder that holds no run in the end, because beginning one failed, is removed.

    Raises:
        RunInUseError: another process holds it.
        DiskError: it cannot be made or written.
    """
    try:
        hold = _hold(folder)
        try:
            yield hold
        finally:
            hold.release()
    finally:
        with contextlib.suppress(OSError):  # there is something in it, as there is in a run's folder
            folder.rmdir()


def is_of_the_lock(name: str) -> bool:
    """Whether a file in a run's folder is there only to hold it."""
    return name == LOCK or name.startswith(CLAIM)


def _hold(folder: Path) -> Hold:
    kind: type[Hold] = Claim if fcntl is None else Lock
    with disk_errors(folder):
        while True:
            make_folders(folder)
            try:
                return kind(folder)
            except FileNotFoundError:  # another process has just removed the folder, or its file in it
                continue
            except OSError as error:
                if kind is Claim or error.errno not in NO_LOCKS:
                    raise
                kind = Claim


# --- who --------------------------------------------------------------------------------------------------


def _about_this_process() -> bytes:
    """The content of a lock file: its holder."""
    about = {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "since": datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "token": secrets.token_hex(8),
        "machine": machine(),
        "started": started(os.getpid()),
    }
    return json.dumps(about).encode() + b"\n"


def machine() -> str | None:
    """A name for the processes that can see each other: those of one system since its start, in one container.

    None where that is not known (it is on Linux).
    """
    try:
        start = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{start} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None


def started(pid: int) -> str | None:
    """When a process of this machine began, in ticks of its clock; None of one that has ended."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if words[0] in "ZX" else words[19]


def has_ended(claim: bytes) -> bool:
    """Whether the process that a claim names is known to have ended: it was one of this machine and is no more."""
    try:
        about = json.loads(claim)
        return about["machine"] == machine() is not None and about["started"] != started(about["pid"])
    except (ValueError, TypeError, KeyError):
        return False


def _in_use(folder: Path, read: Callable[[], bytes]) -> RunInUseError:
    """The error that names a folder's holder, once its file can be read, within a second."""
    who = "another process trains it"  # which has just ended, where nothing is read
    for _ in range(10):
        time.sleep(0.1)  # it may have taken the folder this moment, and still be about to write who it is
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            about = json.loads(read())
            who = f"process {about['pid']} on {about['host']} trains it since {about['since']} ({about['command']})"
            break
    return RunInUseError(f"{folder} is in use: {who}; wait until that has ended, or end it")


# --- with locks -------------------------------------------------------------------------------------------


class Lock(Hold):
    """A folder held by `flock` on its file `.lock`, which the system frees when the process ends."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / LOCK
        self._descriptor = self._opened(folder)
        while not self._is_the_file_there():  # its holder has removed it and ended
            os.close(self._descriptor)
            self._descriptor = self._opened(folder)

    def _opened(self, folder: Path) -> int:
        """The file, opened and locked."""
        assert fcntl is not None
        descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            about = _about_this_process()
            os.pwrite(descriptor, about, 0)
            os.ftruncate(descriptor, len(about))
        except BlockingIOError:
            error = _in_use(folder, lambda: os.pread(descriptor, 1 << 16, 0))
            os.close(descriptor)
            raise error from None
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _is_the_file_there(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._file.stat())
        except FileNotFoundError:
            return False

    def check(self) -> None:
        return

    def release(self) -> None:
        with contextlib.suppress(OSError):
            self._file.unlink(missing_ok=True)
        os.close(self._descriptor)


# --- without locks ----------------------------------------------------------------------------------------


class Claim(Hold):
    """A name in a folder held by the claim file with the highest number, whose time a thread renews.

    A claim is free once it was given up, its process is known to have ended, or it was not renewed for
    `STALE_SECONDS`. Ages are differences of times that the file system gave to files, so the hosts' clocks may differ.
    The highest number never falls: a claim is left behind when it is given up, and removed by its successor.
    """

    def __init__(
        self,
        folder: Path,
        prefix: str = CLAIM,
        refused: Callable[[Path, Callable[[], bytes]], ClearformerError] = _in_use,
    ) -> None:
        """Take it.

        Args:
            folder: Where the claim files are.
            prefix: Of their names; the number follows.
            refused: Makes the error that is raised where another process holds it, of the folder and what reads the
                other's claim.
        """
        self._folder, self._prefix, self._refused = folder, prefix, refused
        before = self._highest()
        if before:
            self._check_is_free(before)
        self._number = before + 1
        self._file = self._file_of(self._number)
        self._make()
        self._renewed, self._is_lost = time.time(), False
        self._ended = Event()
        Thread(target=self._keep, name="claim", daemon=True).start()

    def _check_is_free(self, number: int) -> None:
        file = self._file_of(number)
        content = file.read_bytes()
        if content == GIVEN_UP or has_ended(content):
            return
        if self._age(file) < STALE_SECONDS:
            raise self._refused(self._folder, file.read_bytes)

    def _age(self, file: Path) -> float:
        """Seconds since a file was written, by the file system's clock."""
        probe = self._folder / f"{self._prefix}now-{secrets.token_hex(8)}"
        try:
            probe.touch(exist_ok=False)
            return probe.stat().st_mtime - file.stat().st_mtime
        finally:
            probe.unlink(missing_ok=True)

    def _make(self) -> None:
        """Make the claim; nobody else can make that of this number."""
        try:
            make_whole_once(self._file, _about_this_process())
        except FileExistsError:
            raise self._refused(self._folder, self._file.read_bytes) from None
        highest = self._highest()
        if highest > self._number:  # this process was slow, and those between have come and gone
            self._file.unlink(missing_ok=True)
            raise self._refused(self._folder, self._file_of(highest).read_bytes)
        for number in self._numbers():
            if number < self._number:
                self._file_of(number).unlink(missing_ok=True)

    def _keep(self) -> None:
        while not self._ended.wait(RENEW_SECONDS):
            with contextlib.suppress(OSError):  # it may succeed the next time
                self._renew()

    def _renew(self) -> None:
        self._is_lost = self._highest() != self._number
        os.utime(self._file)
        self._renewed = time.time()

    def check(self) -> None:
        if time.time() - self._renewed > STALE_SECONDS / 2:  # this process stood still, its thread too
            with contextlib.suppress(OSError):
                self._renew()
        if self._is_lost:
            raise self._refused(self._folder, self._file_of(self._highest()).read_bytes)

    def release(self) -> None:
        self._ended.set()
        with contextlib.suppress(OSError), self._file.open("r+b") as file:  # a successor may have removed it
            file.write(GIVEN_UP)
            file.truncate()

    def _numbers(self) -> list[int]:
        """The numbers of the claims in the folder."""
        numbers = (path.name.removeprefix(self._prefix) for path in self._folder.glob(f"{self._prefix}*"))
        return [int(number) for number in numbers if number.isdecimal()]

    def _highest(self) -> int:
        """The highest of these; 0 where there is none."""
        return max(self._numbers(), default=0)

    def _file_of(self, number: int) -> Path:
        return self._folder / f"{self._prefix}{number}"


def make_whole_once(file: Path, content: bytes) -> None:
    """Make a file with its content, which nobody ever sees without.

    Raises:
        FileExistsError: there is one.
    """
    whole = file.with_name(f"{file.name}-{secrets.token_hex(8)}")
    try:
        whole.write_bytes(content)
        try:
            os.link(whole, file)
        except FileExistsError:
            if (
                whole.stat().st_nlink < 2
            ):  # else it was made, and a server's answer was lost and asked for again
                raise
        except OSError:  # this file system has no second names
            with file.open("xb") as made:
                made.write(content)
    finally:
        whole.unlink(missing_ok=True)
