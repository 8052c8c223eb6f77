"""Ctrl-C and `kill` as a user gives them."""

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PATIENCE_SECONDS = 120
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


@contextmanager
def training(arena: Path, *settings: str) -> Iterator[subprocess.Popen[str]]:
    """A run named a under way, its messages in log.txt."""
    command = [sys.executable, "-m", "clearformer", "train", *SETTINGS, "data.path=text.txt", "--run", "a"]
    with (arena / "log.txt").open("w") as log:
        process = subprocess.Popen([*command, *settings], stdout=log, stderr=subprocess.STDOUT, text=True)
        try:
            wait_until(lambda: "held-out" in (arena / "log.txt").read_text(), process)  # the table's heading
            yield process
        finally:
            process.kill()
            process.wait()


def wait_until(happened: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not happened():
        assert process.poll() is None, "the run came to its end"
        assert time.monotonic() < deadline
        time.sleep(0.01)


def lines_of(arena: Path) -> list[str]:
    file = arena / "runs" / "a" / "metrics.jsonl"
    return file.read_text().splitlines() if file.exists() else []


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_run_with_all_kept_and_names_the_way_on(
    arena: Path, number: signal.Signals, status: int
) -> None:
    with training(arena, "train.max_steps=1000000") as process:
        wait_until(lambda: len(lines_of(arena)) > 3, process)
        process.send_signal(number)
        assert process.wait(PATIENCE_SECONDS) == status

    log = (arena / "log.txt").read_text()
    assert "Traceback" not in log
    last_line = log.rstrip().splitlines()[-1]
    told = re.fullmatch(
        r"clearformer: stopped at step (\d+); everything so far is kept; go on by: clearformer (.*)",
        last_line,
    )
    assert told
    step = int(told[1])
    assert json.loads(lines_of(arena)[-1])["step"] == step
    assert [path.name for path in Path("runs/a/checkpoints").glob("step-*")] == [f"step-{step:08d}"]

    way_on = [sys.executable, "-m", "clearformer", *shlex.split(told[2]), f"train.max_steps={step + 2}"]
    answer = subprocess.run(way_on, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)

    assert answer.returncode == 0, answer.stderr
    assert f"going on from step {step}" in answer.stderr
    assert [json.loads(line)["step"] for line in lines_of(arena)] == list(range(1, step + 3))


def test_a_second_interrupt_ends_the_run_at_once(arena: Path) -> None:
    """The first step would take an hour: it is read in two million parts."""
    slow = ("train.batch_size=2000000", "train.accumulate=2000000", "train.max_steps=2")
    with training(arena, *slow) as process:
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert process.poll() is None  # the first lets the step be finished
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130

    assert "Traceback" not in (arena / "log.txt").read_text()
    assert not list(Path("runs/a/checkpoints").iterdir())
