"""Worker processes on this machine: started, replaced when they die, and ended with the command that started them."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import torch

from clearformer.decoding.arguments import check_whole
from clearformer.errors import ClearformerError, Interrupted
from clearformer.resources import n_cores
from clearformer.study.store import Store
from clearformer.study.trials import Trial
from clearformer.study.workers.claims import claims
from clearformer.study.workers.progress import Standing, Watch
from clearformer.training.processes.interrupts import Interrupts

SOURCE = Path(__file__).parents[3]  # the folder that holds this package
LOOK_SECONDS = 0.5
LARGEST_SIGNAL = 64
MOST_DEATHS = 5  # of workers on the same trial, or in a row without a trial
IDLE_SECONDS = 5.0  # in which workers with nothing left to do end by themselves
ENDING_SECONDS = 120.0  # time for a training step and its checkpoint


class WorkersError(ClearformerError):
    """The workers cannot go on."""


@dataclass(frozen=True)
class Selection:
    """The studies that workers run, with the options of their command line.

    Attributes:
        names: The names of the studies.
        folder: The folder of studies.
        scale: The fraction of the training steps to run.
        seeds: The number of seeds, in place of the studies' own.
        device: The device to train on, in place of the one in the settings.
        imports: Python files to run first.
    """

    names: tuple[str, ...]
    folder: Path
    scale: float = 1.0
    seeds: int | None = None
    device: str | None = None
    imports: tuple[Path, ...] = ()

    def command(self, *options: str) -> list[str]:
        """Return the command line of a worker."""
        words = [sys.executable, "-m", "clearformer", "study", "work", *self.names]
        words += ["--folder", str(self.folder.absolute()), "--scale", repr(float(self.scale))]
        words += [] if self.seeds is None else ["--seeds", str(self.seeds)]
        words += [] if self.device is None else ["--device", self.device]
        for file in self.imports:
            words += ["--import", str(file)]
        return [*words, *options]


class Process(Protocol):
    """The part of the `subprocess.Popen` interface that is used here."""

    pid: int

    def poll(self) -> int | None: ...
    def send_signal(self, number: int, /) -> None: ...
    def kill(self) -> None: ...
    def wait(self, timeout: float, /) -> Any: ...


class Workers(ABC):
    """The processes that compute trials, on this machine or on a cluster."""

    @abstractmethod
    def look_after(self, standings: Sequence[Standing]) -> None:
        """Start the workers that are needed; raise WorkersError if they cannot go on."""

    @abstractmethod
    def end(self, number: int) -> None:
        """End the workers after a signal; they save their state first."""

    @abstractmethod
    def kill(self) -> None:
        """Kill the workers that are still alive, unless they end in order when they are told to."""


def supervise(workers: Workers, watch: Watch) -> None:
    """Supervise workers and show their progress until every job is done or has failed.

    Raises:
        Interrupted: SIGINT, SIGTERM or SIGHUP came; the workers have ended, and everything is kept.
        WorkersError: they cannot go on.
    """
    try:
        with Interrupts() as interrupts, watch:
            while not is_over(standings := watch.update()):
                if interrupts.received:
                    workers.end(interrupts.received)
                    raise Interrupted("interrupted; everything so far is kept", interrupts.received)
                workers.look_after(standings)
                time.sleep(LOOK_SECONDS)
    finally:
        workers.kill()


def is_over(standings: Sequence[Standing]) -> bool:
    """Whether every job is done or has failed."""
    return all(each.state in ("done", "failed") for each in standings)


class LocalWorkers(Workers):
    """Worker processes on this machine.

    A worker that is killed is replaced, and its trial resumed; after several deaths of its workers, a trial fails.
    """

    def __init__(self, start: Callable[[int], Process], jobs: int, store: Store) -> None:
        """Prepare the workers without starting any.

        Args:
            start: Starts the worker with a given index, counted from 0.
            jobs: The number of workers at once.
            store: The store in which they claim trials.
        """
        self.start, self.jobs, self.store = start, jobs, store
        self.processes: dict[int, Process] = {}
        self.deaths: Counter[str] = Counter()
        self.deaths_in_a_row = 0
        self.n_settled = 0
        self.is_ending = False

    def look_after(self, standings: Sequence[Standing]) -> None:
        left = [each for each in standings if each.state in ("running", "waiting")]
        if len(standings) - len(left) > self.n_settled:
            self.n_settled, self.deaths_in_a_row = len(standings) - len(left), 0
        for place, process in list(self.processes.items()):
            status = process.poll()
            if status is not None:
                del self.processes[place]
                self._account(process, status, left)
        for place in range(min(self.jobs, len(left))):
            if place not in self.processes:
                self.processes[place] = self.start(place)

    def _account(self, process: Process, status: int, left: Sequence[Standing]) -> None:
        """Record the end of a worker; raise WorkersError if it failed for a reason that affects all."""
        if status == 0:
            return
        number = signal_of(status)
        if number is None:
            raise WorkersError(f"a worker exited with status {status}: {told_by(process)}")
        mine = self._claimed_by(process, left)
        self.deaths_in_a_row += not mine
        if self.deaths_in_a_row >= MOST_DEATHS:
            raise WorkersError(
                f"workers are killed by signal {number} as soon as they start: {told_by(process)}"
            )
        for trial in mine:
            self.deaths[trial.identity] += 1
            if self.deaths[trial.identity] >= MOST_DEATHS:
                self.store.write_failure(
                    trial, f"its worker was killed {MOST_DEATHS} times by signal {number} (out of memory?)"
                )

    def _claimed_by(self, process: Process, left: Sequence[Standing]) -> list[Trial]:
        """Return the trials that a worker of this machine had claimed when it ended."""
        worker = (socket.gethostname(), process.pid)
        held = {key for key, holder in claims(self.store).items() if (holder.host, holder.pid) == worker}
        return [each.job.trial for each in left if has_key(each.job.trial, held)]

    def end(self, number: int) -> None:
        self.is_ending = True
        self._each(lambda process: process.send_signal(signal.SIGTERM))
        deadline = time.monotonic() + ENDING_SECONDS
        for process in self.processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))

    def kill(self) -> None:
        deadline = time.monotonic() + IDLE_SECONDS
        for process in self.processes.values():
            while process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.02)
        if not self.is_ending:  # after another worker's error: what the others have trained is saved first
            self.end(signal.SIGTERM)
        self._each(lambda process: process.kill())
        for process in self.processes.values():
            process.wait(ENDING_SECONDS)
        self.processes.clear()

    def _each(self, do: Callable[[Process], None]) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    do(process)


def has_key(trial: Trial, keys: Collection[str]) -> bool:
    """Whether a trial's key is one of these; false if its data cannot be read, so that it has none."""
    try:
        return trial.key in keys
    except ClearformerError:
        return False


def signal_of(status: int) -> int | None:
    """Return the signal that killed a process or that it ended on in order; None if it ended by itself."""
    if status < 0:
        return -status
    return status - 128 if 128 < status <= 128 + LARGEST_SIGNAL else None


class Worker(subprocess.Popen[bytes]):
    """A worker process, with a file that collects its output."""

    messages: IO[bytes]


def told_by(process: Process) -> str:
    """Return the last line of a worker's output."""
    if not isinstance(process, Worker):
        return "no output"
    process.messages.seek(0)
    lines = process.messages.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no output"


def local_start(selection: Selection, jobs: int, devices: Iterable[str] = ()) -> Callable[[int], Process]:
    """Return a function that starts workers, each with its share of the cores and, if there are several GPUs, one.

    Args:
        selection: The studies.
        jobs: The number of workers.
        devices: The devices that the settings name.
    """
    named = [selection.device] if selection.device else list(devices)

    def start(place: int) -> Process:
        messages = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the worker lives)
        worker = Worker(
            selection.command("--parent", str(os.getpid())),
            env=os.environ | surroundings(place, jobs, named),
            stdin=subprocess.DEVNULL,
            stdout=messages,
            stderr=messages,
            start_new_session=True,  # Ctrl-C goes to the parent command alone, which passes it on once
        )
        worker.messages = messages
        return worker

    return start


def surroundings(place: int, jobs: int, devices: Iterable[str]) -> dict[str, str]:
    """Return the variables to add to a worker's environment: the package's path, the number of threads, the GPU.

    There is no such variable where a device is named by its number, which would be another one's then.
    """
    found = {"PYTHONPATH": python_path()}
    if "OMP_NUM_THREADS" not in os.environ:
        found["OMP_NUM_THREADS"] = str(max(1, n_cores() // jobs))
    if set(devices) <= {"auto", "cuda"} and (gpus := visible_gpus()):
        found["CUDA_VISIBLE_DEVICES"] = gpus[place % len(gpus)]
    return found


def python_path() -> str:
    """Return PYTHONPATH with the folder of this package first, so that workers run the same code."""
    paths = [str(SOURCE), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return os.pathsep.join(dict.fromkeys(paths))


def visible_gpus() -> list[str]:
    """Return the names of the NVIDIA GPUs if there are several; else none."""
    n_gpus = torch.cuda.device_count()
    if n_gpus < 2:
        return []
    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return named if len(named) == n_gpus else [str(i) for i in range(n_gpus)]


def check_jobs(jobs: int) -> None:
    """Raise UserError if the number of workers is no whole number, or below 1."""
    check_whole("jobs", jobs, least=1)
