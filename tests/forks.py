"""Processes of their own without the seconds in which Python imports torch: forks of one that has imported it.

A fork has its own streams, folder, environment and signals, runs `python -m clearformer ...` or a script to its end,
and ends with its status. A few tests start Python anew, to see that this makes no difference.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

PATIENCE_SECONDS = 600  # for one process, on a machine that does other things too
LARGEST_REQUEST = 100_000  # bytes


class Fork:
    """A process under way, with the part of `subprocess.Popen` that tests use."""

    def __init__(self, server: "ForkServer", pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server

    def poll(self) -> int | None:
        """The exit status once it has ended; of one that a signal ended, the signal's number below 0."""
        if self.returncode is None:
            self.returncode = self._server.ask({"status": self.pid})
        return self.returncode

    def wait(self, seconds: float = PATIENCE_SECONDS) -> int:
        deadline = time.monotonic() + seconds
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), seconds)
            time.sleep(0.01)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """A process that has imported what commands need, and forks for each."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.PIPE,  # which ends when this process does
            cwd=Path(__file__).parents[1],  # a test's own folder would go
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        theirs.close()

    def start(
        self,
        *arguments: str,
        script: str | None = None,
        stdin: TextIO | int = subprocess.DEVNULL,
        stdout: TextIO | int = subprocess.DEVNULL,
        stderr: TextIO | int | None = None,
        env: Mapping[str, str] | None = None,
        ignoring: tuple[int, ...] = (),
        own_terminal: bool = False,
    ) -> Fork:
        """Begin `python -m clearformer ARGUMENTS`, or a script with these arguments.

        Args:
            arguments: What is typed behind the program's name.
            script: Python's text, as for `python -c`.
            stdin, stdout, stderr: Open files; standard error goes where standard output goes if it has none.
            env: Its environment; this process's where none is given.
            ignoring: Signals that it ignores, as under nohup.
            own_terminal: Whether standard input is the terminal that controls it.
        """
        request = {
            "arguments": arguments,
            "script": script,
            "folder": str(Path.cwd()),
            "environment": dict(os.environ if env is None else env),
            "ignoring": ignoring,
            "own_terminal": own_terminal,
        }
        with Path(os.devnull).open("r+") as nowhere:
            files = [stdin, stdout, stdout if stderr is None else stderr]
            files = [nowhere if file == subprocess.DEVNULL else file for file in files]
            numbers = [file if isinstance(file, int) else file.fileno() for file in files]
            return Fork(self, self.ask(request, numbers))

    def run(self, *arguments: str, **options: Any) -> "subprocess.CompletedProcess[str]":
        """Run one to its end, with what it wrote to its streams."""
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            fork = self.start(*arguments, stdout=out, stderr=err, **options)
            try:
                status = fork.wait()
            finally:
                fork.kill()
            for file in (out, err):
                file.seek(0)
            return subprocess.CompletedProcess(arguments, status, out.read(), err.read())

    def ask(self, request: Any, files: list[int] | None = None) -> Any:
        message = json.dumps(request).encode()
        assert len(message) < LARGEST_REQUEST
        socket.send_fds(self._socket, [message], files or [])
        self._socket.settimeout(PATIENCE_SECONDS)
        return json.loads(self._socket.recv(LARGEST_REQUEST))

    def end(self) -> None:
        self._process.communicate()
        self._socket.close()


@contextmanager
def fork_server() -> Iterator[ForkServer]:
    server = ForkServer()
    try:
        yield server
    finally:
        server.end()


# --- in the server ----------------------------------------------------------------------------------------


def serve(requests: socket.socket) -> None:
    """Fork for each request, and say how a fork has ended."""
    while sys.stdin not in select.select([requests, sys.stdin], [], [])[0]:
        message, files, _, _ = socket.recv_fds(requests, LARGEST_REQUEST, 3)
        request, answer = json.loads(message), None
        if "status" in request:
            pid, status = os.waitpid(request["status"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            answer = os.fork()
            if not answer:
                requests.close()
                live(request, files)
        for file in files:
            os.close(file)
        requests.send(json.dumps(answer).encode())


def live(request: dict[str, Any], files: list[int]) -> None:
    """Run what is asked for as Python does, and end."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    for number in request["ignoring"]:
        signal.signal(number, signal.SIG_IGN)
    if request["own_terminal"]:
        take_the_terminal()
    os.chdir(request["folder"])
    sys.path[0] = request["folder"]
    os.environ.clear()
    os.environ.update(request["environment"])
    if "PYTHONWARNINGS" in os.environ:
        warnings.simplefilter(os.environ["PYTHONWARNINGS"])  # type: ignore[arg-type]
    sys.stdin = os.fdopen(0)
    sys.stdout = os.fdopen(1, "w", buffering=1 if os.isatty(1) else -1)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace")
    os._exit(status_of(lambda: work(request)))


def take_the_terminal() -> None:
    import fcntl
    import termios

    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def work(request: dict[str, Any]) -> None:
    import runpy

    if request["script"] is None:
        sys.argv[:] = ["-m", *request["arguments"]]
        runpy.run_module("clearformer", run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = ["-c", *request["arguments"]]
        exec(compile(request["script"], "<script>", "exec"), {"__name__": "__main__"})  # noqa: S102


def status_of(work: Callable[[], None]) -> int:
    """The status with which Python ends after this."""
    try:
        work()
        sys.stdout.flush()
    except SystemExit as end:
        sys.stdout.flush()
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    import gc

    import torch._dynamo
    import torch.optim  # noqa: F401

    import clearformer.cli.calling
    import clearformer.cli.commands.generate
    import clearformer.cli.commands.study
    import clearformer.cli.commands.train
    import clearformer.cli.failures
    import clearformer.cli.views.results
    import clearformer.runs.training
    import clearformer.study.everyday.declared
    import clearformer.study.workers.launch
    import clearformer.training.reporting.console  # noqa: F401

    gc.freeze()  # what is imported stays: no fork searches it for garbage
    serve(socket.socket(fileno=int(sys.argv[1])))
