"""Ctrl-C and `kill` as a user gives them, to processes that are mostly forks of one (tests/forks.py)."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from clearformer.cli import main

from ..forks import Fork, ForkServer

PATIENCE_SECONDS = 120
Training = Callable[..., AbstractContextManager["Process"]]
SETTINGS = (
    "nanogpt-cpu",
    "model.d_model=16",
    "model.n_layers=1",
    "model.max_seq_len=16",
    "train.batch_size=4",
    "train.log_every=1",
    "train.eval_every=100000",
    "train.checkpoint_every=none",
    "train.device=cpu",
    "train.dtype=float32",
    "train.compile=false",
)

COMMAND = ("train", *SETTINGS, "data.path=text.txt", "--run", "a")
PYTHON = (sys.executable, "-m", "clearformer")
Process = Fork | subprocess.Popen[str]


@pytest.fixture
def arena(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "text.txt").write_text(
        "".join(f"{n} bottles of beer, {n * n} on the wall\n" for n in range(200))
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLEARFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CLEARFORMER_RUNS", "runs")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


@pytest.fixture
def training(arena: Path, forks: ForkServer) -> Training:
    """A run named a under way, its messages in log.txt: `with training("train.max_steps=60") as process`."""

    @contextmanager
    def training(*settings: str, anew: bool = False, **options: Any) -> Iterator[Process]:
        with (arena / "log.txt").open("w") as log:
            process: Process
            if anew:
                command = [*PYTHON, *COMMAND, *settings]
                process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, text=True)
            else:
                process = forks.start(*COMMAND, *settings, stdout=log, **options)
            with killed_in_the_end(process):
                wait_until(
                    lambda: "held-out" in (arena / "log.txt").read_text(), process
                )  # the table's heading
                yield process

    return training


@contextmanager
def killed_in_the_end(process: Process) -> Iterator[None]:
    try:
        yield
    finally:
        process.kill()
        process.wait()


def wait_until(happened: Callable[[], bool], process: Process) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not happened():
        assert process.poll() is None, "the run came to its end"
        assert time.monotonic() < deadline
        time.sleep(0.01)


def lines_of(arena: Path) -> list[str]:
    file = arena / "runs" / "a" / "metrics.jsonl"
    return file.read_text().splitlines() if file.exists() else []


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_the_run_with_all_kept_and_names_the_way_on(
    arena: Path, training: Training, forks: ForkServer, number: signal.Signals, status: int
) -> None:
    anew = number == signal.SIGINT
    with training("train.max_steps=1000000", anew=anew) as process:
        wait_until(lambda: len(lines_of(arena)) > 3, process)
        process.send_signal(number)
        assert process.wait(PATIENCE_SECONDS) == status

    log = (arena / "log.txt").read_text()
    assert "Traceback" not in log
    last_line = log.rstrip().splitlines()[-1]
    told = re.fullmatch(
        r"clearformer: stopped at step (\d+); progress is saved in runs/a; to continue: "
        r"python -m clearformer (train --resume --run a)",
        last_line,
    )
    assert told
    step = int(told[1])
    assert json.loads(lines_of(arena)[-1])["step"] == step
    assert [path.name for path in Path("runs/a/checkpoints").glob("step-*")] == [f"step-{step:08d}"]

    answer = forks.run(*shlex.split(told[2]), f"train.max_steps={step + 2}")

    assert answer.returncode == 0, answer.stderr
    assert f"resuming from step {step}" in answer.stderr
    assert [json.loads(line)["step"] for line in lines_of(arena)] == list(range(1, step + 3))


def test_a_second_interrupt_ends_the_run_at_once(arena: Path, training: Training) -> None:
    """The first step would take an hour: it is read in two million parts."""
    slow = ("train.batch_size=2000000", "train.grad_accum_steps=2000000", "train.max_steps=2")
    with training(*slow) as process:
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert process.poll() is None  # the first lets the step be finished
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130

    assert "Traceback" not in (arena / "log.txt").read_text()
    assert not list(Path("runs/a/checkpoints").iterdir())


# --- a page that is open ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_closes_the_page(
    arena: Path, forks: ForkServer, number: signal.Signals, status: int
) -> None:
    pytest.importorskip("uvicorn")
    assert main([*COMMAND, "train.max_steps=1"]) == 0
    before = sorted(Path("runs").rglob("*"))
    with (arena / "log.txt").open("w") as log:
        process = forks.start("look", "a", "--no-browser", stdout=log)
        with killed_in_the_end(process):
            wait_until(lambda: "token=" in (arena / "log.txt").read_text(), process)
            process.send_signal(number)
            assert process.wait(PATIENCE_SECONDS) == status

    address = (arena / "log.txt").read_text()
    assert len(address.splitlines()) == 1  # no traceback
    with socket.socket() as other:
        other.bind(("127.0.0.1", urlsplit(address.strip()).port))  # the port is free again
    assert sorted(Path("runs").rglob("*")) == before


# --- when nobody reads -------------------------------------------------------------------------------------


def kept_steps() -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in Path("runs/a/checkpoints").glob("step-*"))


def test_whoever_stops_reading_stops_no_run(arena: Path) -> None:
    """As `2>&1 | head -1` does: one line is read, then nobody is there."""
    told = ("train.eval_every=1", "train.max_steps=60", "train.checkpoint_every=50")
    read, write = os.pipe()
    process = subprocess.Popen([*PYTHON, *COMMAND, *told], stdout=write, stderr=write, text=True)
    os.close(write)
    with killed_in_the_end(process):
        with os.fdopen(read) as reader:
            assert reader.readline().startswith("run runs/a: ")
        assert process.wait(PATIENCE_SECONDS) == 0

    assert kept_steps() == [50, 60]
    assert len(lines_of(arena)) == 60


def test_a_terminal_that_is_closed_ends_the_run_with_all_kept(arena: Path, forks: ForkServer) -> None:
    terminal, screen = os.openpty()
    settings = ("train.eval_every=2", "train.max_steps=1000000")
    process = forks.start(*COMMAND, *settings, stdin=screen, stdout=screen, own_terminal=True)
    os.close(screen)
    with killed_in_the_end(process):
        os.set_blocking(terminal, False)
        wait_until(lambda: drained(terminal) and len(lines_of(arena)) > 3, process)
        os.close(terminal)
        assert process.wait(PATIENCE_SECONDS) == 129

    assert kept_steps() == [json.loads(lines_of(arena)[-1])["step"]]


def drained(terminal: int) -> bool:
    """Read what is on a terminal's screen, so that more can be written."""
    try:
        while os.read(terminal, 1 << 16):
            pass
    except BlockingIOError:
        pass
    return True


def test_under_nohup_a_terminal_that_is_closed_ends_nothing(arena: Path, training: Training) -> None:
    with training("train.max_steps=60", ignoring=(signal.SIGHUP,)) as process:
        wait_until(lambda: len(lines_of(arena)) > 3, process)
        process.send_signal(signal.SIGHUP)
        assert process.wait(PATIENCE_SECONDS) == 0

    assert kept_steps() == [60]


# --- two processes on one run -----------------------------------------------------------------------------


def test_a_run_under_way_is_trained_by_no_second_process_and_read_by_anyone(
    arena: Path, training: Training, capsys: pytest.CaptureFixture[str]
) -> None:
    with training("train.max_steps=1000000", "train.checkpoint_every=5") as process:
        wait_until(lambda: len(kept_steps()) > 1, process)
        for command in (["train", "--resume", "--run", "a"], [*COMMAND, "--resume"]):
            assert main(command) == 1
            lines = [
                line for line in capsys.readouterr().err.splitlines() if line.startswith("clearformer: ")
            ]
            assert len(lines) == 1
            assert lines[0].startswith(f"clearformer: runs/a is in use: process {process.pid} on ")
            assert "has been training it since" in lines[0]
        assert main(["eval", "a", "--json", "--device", "cpu"]) == 0
        assert main(["generate", "a", "--prompt", "b", "--max-new-tokens", "2", "--device", "cpu"]) == 0
        process.kill()
        process.wait()
    steps = [json.loads(line)["step"] for line in lines_of(arena)]
    assert steps == list(range(1, len(steps) + 1))  # of one process

    last = max(kept_steps())
    assert main(["train", "--resume", "--run", "a", f"train.max_steps={last + 1}"]) == 0
    assert [json.loads(line)["step"] for line in lines_of(arena)] == list(range(1, last + 2))
