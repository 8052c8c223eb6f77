"""Run commands in processes forked from one that has imported torch, because a new Python takes seconds to import it.

A fork has its own streams, folder, environment and signals. It runs `python -m clearformer ...` or a script to its end,
and exits with its status. A few tests start a new Python, to check that this makes no difference.
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

PATIENCE_SECONDS = 600  # for one process, on a busy machine
LARGEST_REQUEST = 100_000  # bytes


class Fork:
    """A running process, with the part of the `subprocess.Popen` interface that tests use."""

    def __init__(self, server: "ForkServer", pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server

    def poll(self) -> int | None:
        """Return the exit status, or None while it runs; if a signal ended it, minus the signal's number."""
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
    """A process that has imported everything that commands need, and forks for each command."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.PIPE,  # it closes when this process ends, which ends the server
            cwd=Path(__file__).parents[1],  # a test's own folder would be deleted
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
        """Start `python -m clearformer ARGUMENTS`, or a script with these arguments.

        Args:
            arguments: The command-line arguments.
            script: Python source, as for `python -c`.
            stdin, stdout, stderr: Open files; by default, standard error goes where standard output goes.
            env: The environment; by default this process's.
            ignoring: Signals to ignore, as under nohup.
            own_terminal: Whether standard input becomes its controlling terminal.
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
        """Run a command to its end; returns its status and output."""
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
    """Answer requests: fork a process, or report the status of one."""
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
    """Run the requested command or script as Python would, and exit."""
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
    """Run `work`; returns the status with which Python would exit."""
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
    import clearformer.study.workers.work
    import clearformer.training.reporting.console
    import clearformer.training.tasks.next_token

    clearformer.training.tasks.next_token.SAMPLE_TOKENS = 20  # of the last sample, which nobody reads here
    clearformer.study.workers.work.POLL_SECONDS = 0.05
    gc.freeze()  # imported objects stay, and no fork needs to collect them
    serve(socket.socket(fileno=int(sys.argv[1])))
