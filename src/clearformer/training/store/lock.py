"""One writer per run: a training process locks the run's folder, and any other gets an error that names the holder.

If the file system has locks, the holder keeps `flock` on one file, which the system releases however the holder ends.
If it has none (some network file systems, Windows), the holder makes a numbered claim file and keeps renewing its time.
The claim with the highest number counts. It is free once it was given up, its process has ended, or it was not renewed
for `STALE_SECONDS`. Claims are never renamed or replaced: a successor creates the file with the next number, which only
one process can do. Studies claim their runs in the same way.
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

from clearformer.errors import ClearformerError, RunInUseError, RunLostError
from clearformer.files import disk_errors, make_folders

LOCK = ".lock"
CLAIM = ".claim-"  # and a number
RENEW_SECONDS = 20.0
STALE_SECONDS = 180.0
GIVEN_UP = b"given up\n"  # the content of a released claim
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS)


class Hold(ABC):
    """A run's folder held by this process."""

    @abstractmethod
    def __init__(self, folder: Path) -> None:
        """Take the folder, or raise RunInUseError."""

    @abstractmethod
    def check(self) -> None:
        """Raise RunInUseError if another process has taken the folder over."""

    @abstractmethod
    def release(self) -> None:
        """Release the folder."""


@contextlib.contextmanager
def one_writer(folder: Path) -> Iterator[Hold]:
    """Hold a run's folder for the `with` block, creating the folder if necessary.

    A folder that is empty in the end, because starting the run failed, is removed.

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
        with contextlib.suppress(OSError):  # not empty, as usual
            folder.rmdir()


def is_of_the_lock(name: str) -> bool:
    """Whether a file in a run's folder belongs to the lock, and not to the run."""
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
    """Return the content of a lock file: a description of this process."""
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
    """Return a name shared by the processes that can see each other: by boot of the system, and by container.

    None where that is not known (it is on Linux).
    """
    try:
        start = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{start} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None


def started(pid: int) -> str | None:
    """Return when a process of this machine began, in clock ticks; None if it has ended."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if words[0] in "ZX" else words[19]


def has_ended(claim: bytes) -> bool:
    """Whether a claim's process is known to have ended, which is only known on its own machine."""
    try:
        about = json.loads(claim)
        return about["machine"] == machine() is not None and about["started"] != started(about["pid"])
    except (ValueError, TypeError, KeyError):
        return False


def _in_use(folder: Path, read: Callable[[], bytes]) -> RunInUseError:
    """Return the error that names a folder's holder, after waiting up to a second until its file can be read."""
    who = "another process is training it"  # if nothing can be read, it has just ended
    for _ in range(10):
        time.sleep(0.1)  # the holder may have taken the folder just now, and not written its file yet
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            about = json.loads(read())
            who = (
                f"process {about['pid']} on {about['host']} has been training it since {about['since']} "
                f"({about['command']})"
            )
            break
    return RunInUseError(f"{folder} is in use: {who}; wait for it to finish, or stop it")


# --- with locks -------------------------------------------------------------------------------------------


class Lock(Hold):
    """A folder held by `flock` on its file `.lock`, which the system releases when the process ends."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / LOCK
        self._descriptor = self._opened(folder)
        while not self._is_the_file_there():  # the previous holder removed the file and ended
            os.close(self._descriptor)
            self._descriptor = self._opened(folder)

    def _opened(self, folder: Path) -> int:
        """Open and lock the file, and describe this process in it."""
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
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # a file server that does not answer for a moment
            return True

    def check(self) -> None:
        """Raise RunLostError if the file is gone or another's, as where the folder was replaced by a copy."""
        if not self._is_the_file_there():
            raise RunLostError(
                f"{self._file.parent} was moved or replaced meanwhile, or its {LOCK} deleted; stopped, because another "
                "process may train it now"
            )

    def release(self) -> None:
        with contextlib.suppress(OSError):
            if self._is_the_file_there():  # and not another's
                self._file.unlink(missing_ok=True)
        os.close(self._descriptor)


# --- without locks ----------------------------------------------------------------------------------------


def _in_use_or_killed(folder: Path, read: Callable[[], bytes]) -> RunInUseError:
    """Return the error that names a claim's holder, of which nobody may know here that it was killed."""
    wait = f"if it was killed, try again after {STALE_SECONDS / 60:.0f} minutes"
    return RunInUseError(f"{_in_use(folder, read)}; {wait}")


class Claim(Hold):
    """A name in a folder held by the claim file with the highest number, whose time a thread renews.

    A claim is free once it was given up, its process is known to have ended, or it was not renewed for
    `STALE_SECONDS`. Ages are differences between times of files on the same file system, so hosts' clocks may differ.
    The highest number never falls: a claim stays when it is given up, and is removed by its successor.
    """

    def __init__(
        self,
        folder: Path,
        prefix: str = CLAIM,
        refused: Callable[[Path, Callable[[], bytes]], ClearformerError] = _in_use_or_killed,
    ) -> None:
        """Take the name.

        Args:
            folder: The folder of the claim files.
            prefix: The start of their names; the number follows.
            refused: Makes the error to raise if another process holds it, from the folder and a function that reads
                the other's claim.
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
        if content.startswith(GIVEN_UP) or has_ended(content):  # the rest may not have been cut off yet
            return
        if self._age(file) < STALE_SECONDS:
            raise self._refused(self._folder, file.read_bytes)

    def _age(self, file: Path) -> float:
        """Return the seconds since a file was written, by the file system's clock."""
        probe = self._folder / f"{self._prefix}now-{secrets.token_hex(8)}"
        try:
            probe.touch(exist_ok=False)
            return probe.stat().st_mtime - file.stat().st_mtime
        finally:
            probe.unlink(missing_ok=True)

    def _make(self) -> None:
        """Make the claim file of this number, which only one process can do."""
        try:
            make_whole_once(self._file, _about_this_process())
        except FileExistsError:
            raise self._refused(self._folder, self._file.read_bytes) from None
        highest = self._highest()
        if highest > self._number:  # this process was slow, and others have claimed later numbers meanwhile
            self._file.unlink(missing_ok=True)
            raise self._refused(self._folder, self._file_of(highest).read_bytes)
        for number in self._numbers():
            if number < self._number:
                self._file_of(number).unlink(missing_ok=True)

    def _keep(self) -> None:
        while not self._ended.wait(RENEW_SECONDS):
            with contextlib.suppress(OSError):  # the next attempt may succeed
                self._renew()

    def _renew(self) -> None:
        self._is_lost = self._highest() != self._number
        os.utime(self._file)
        self._renewed = time.time()

    def check(self) -> None:
        if time.time() - self._renewed > STALE_SECONDS / 2:  # the process was suspended, with its thread
            with contextlib.suppress(OSError):
                self._renew()
        if self._is_lost:
            error = self._refused(self._folder, self._file_of(self._highest()).read_bytes)
            raise RunLostError(str(error)) if isinstance(error, RunInUseError) else error

    def release(self) -> None:
        self._ended.set()
        with contextlib.suppress(OSError), self._file.open("r+b") as file:  # a successor may have removed it
            file.write(GIVEN_UP)
            file.truncate()

    def _numbers(self) -> list[int]:
        """Return the numbers of the claims in the folder."""
        numbers = (path.name.removeprefix(self._prefix) for path in self._folder.glob(f"{self._prefix}*"))
        return [int(number) for number in numbers if number.isdecimal()]

    def _highest(self) -> int:
        """Return the highest of these numbers; 0 if there is none."""
        return max(self._numbers(), default=0)

    def _file_of(self, number: int) -> Path:
        return self._folder / f"{self._prefix}{number}"


def make_whole_once(file: Path, content: bytes) -> None:
    """Create a file with its content in one step, so that no process sees it empty.

    Raises:
        FileExistsError: the file exists.
    """
    whole = file.with_name(f"{file.name}-{secrets.token_hex(8)}")
    try:
        whole.write_bytes(content)
        try:
            os.link(whole, file)
        except FileExistsError:
            if (
                whole.stat().st_nlink < 2
            ):  # with 2 links this call did make it, but a file server's answer was lost and asked for again
                raise
        except OSError:  # this file system has no hard links
            with file.open("xb") as made:
                made.write(content)
    finally:
        whole.unlink(missing_ok=True)
