"""kill -9 at random instants, saving included: the run ends as one that was never disturbed.

A life of the run ends by SIGKILL a random number of metrics lines after it began to train, or as soon as it is
seen to write a checkpoint. What the lives have made together is compared with what one life makes: at length for a
language model, and with one kill for each of the other tasks, whose lives are forks of one process.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

KILLS, AMID_SAVING = 20, 8  # the second is how many of the first wait for a checkpoint being written
MOST_LINES = 40  # that a life may add before it is killed
MAX_STEPS = 600  # more than all lives make together
PATIENCE_SECONDS = 240  # for one life, on a machine that does other things too
SETTINGS = (
    "nanogpt-cpu",
    "model.d_model=16",
    "model.n_layers=2",
    "model.max_seq_len=16",
    "model.dropout=0.1",
    "data.val_fraction=0.05",
    "train.batch_size=4",
    f"train.max_steps={MAX_STEPS}",
    "train.optimizer=muon",
    "train.ema=0.95",
    "train.log_every=1",
    "train.eval_every=50",
    "train.checkpoint_every=8",
    "train.device=cpu",
    "train.dtype=float32",
    "train.compile=false",
)


@pytest.fixture
def arena(tmp_path: Path) -> Path:
    """A folder with a text of 200 lines that are all different."""
    (tmp_path / "text.txt").write_text(
        "".join(f"{n} bottles of beer, {n * n} on the wall\n" for n in range(200))
    )
    return tmp_path


@contextmanager
def life(arena: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`clearformer train` as a user types it, for as long as the `with` block lasts at most."""
    environment = os.environ | {
        "CLEARFORMER_RUNS": str(arena / "runs"),
        "CLEARFORMER_CACHE": str(arena / "cache"),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "clearformer", "train", *arguments]
    with (arena / "log.txt").open("w") as log:
        process = subprocess.Popen(
            command, env=environment, cwd=arena, stdout=log, stderr=subprocess.STDOUT, text=True
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def live_to_the_end(arena: Path, *arguments: str) -> None:
    with life(arena, *arguments) as process:
        status = process.wait(PATIENCE_SECONDS)
    assert status == 0, (arena / "log.txt").read_text()


def wait_until(process: subprocess.Popen[str], happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not happened():
        assert process.poll() is None, "the run came to its end before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.001)


def n_lines(run: Path) -> int:
    try:
        return (run / "metrics.jsonl").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def log_of(arena: Path) -> str:
    try:
        return (arena / "log.txt").read_text()
    except FileNotFoundError:
        return ""


def begins_to_train(process: subprocess.Popen[str], arena: Path, run: Path) -> int:
    """Wait for the first line of metrics that this life adds; returns how many there are then.

    The lines after the checkpoint that it goes on from are gone when the table's heading is printed.
    """
    wait_until(process, lambda: "held-out" in log_of(arena))
    before = n_lines(run)
    wait_until(process, lambda: n_lines(run) > before)
    return n_lines(run)


def unfinished(run: Path) -> set[Path]:
    """What is half-written, or was left so by a life that was killed."""
    return set((run / "checkpoints").glob(".unfinished-*"))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
def test_killed_at_random_instants_it_ends_as_if_it_never_was(
    forks: subprocess.Popen[str], arena: Path
) -> None:
    """The first life and the last are processes as a user starts them, those between forks that need no imports."""
    data = f"data.path={arena / 'text.txt'}"
    live_to_the_end(arena, *SETTINGS, data, "--run", "whole")
    chance = random.Random(20)
    run = arena / "runs" / "killed"
    ways = [True] * AMID_SAVING + [False] * (KILLS - AMID_SAVING)
    chance.shuffle(ways)
    half_written = 0

    for number, amid_saving in enumerate(ways):
        arguments = ("--resume", "--run", "killed") if number else (*SETTINGS, data, "--run", "killed")
        left_over = unfinished(run)
        (arena / "log.txt").unlink()
        killed = start(forks, "train", *arguments)
        begun = begins_to_train(forks, arena, run)
        if amid_saving:
            wait_until(forks, lambda: bool(unfinished(run) - left_over))  # noqa: B023
        else:
            enough = begun + chance.randrange(MOST_LINES)
            wait_until(forks, lambda: n_lines(run) >= enough)  # noqa: B023
        time.sleep(chance.uniform(0, 0.004))
        os.kill(killed, signal.SIGKILL)
        assert status_of(forks) == -signal.SIGKILL
        half_written += bool(unfinished(run) - left_over)

    assert half_written  # so it was killed in the midst of saving too
    live_to_the_end(arena, "--resume", "--run", "killed")
    assert_same(run, arena / "runs" / "whole", MAX_STEPS)


# --- every task -------------------------------------------------------------------------------------------

STEPS = 40
SMALL = (
    "model.d_model=16",
    "model.n_layers=1",
    "model.max_seq_len=40",
    "model.dropout=0.1",
    "model.attention.n_heads=2",
    "tokenizer=byte",
    f"train.max_steps={STEPS}",
    "train.max_seconds=none",
    "train.ema=0.9",
    "train.label_smoothing=0.1",
    "train.log_every=1",
    "train.eval_every=10",
    "train.checkpoint_every=9",
    "train.device=cpu",
    "train.dtype=float32",
    "train.compile=false",
)
OF_TASK = {
    "translate": ("data.path=pairs.tsv", "train.objective.batch_tokens=128"),
    "masked": ("data.path=text.txt", "train.batch_size=4"),
    "classify": ("data.path=labelled.tsv", "train.batch_size=4", "train.grad_accum_steps=2"),
}

# Each line of its input is a command to run in a fork; it answers with the fork's id, and then with how it ended.
# `hold PLACE STEP` before a command holds the writing of that step's checkpoint for good: where a function of
# `training/store/checkpoint.py` is called for it, or after the last of them; the file `held` says when it is there.
FORKS = """
import json, os, sys, time
from pathlib import Path
import clearformer.cli.views.results, torch.optim
from clearformer.training.store import checkpoint as module, checkpoint_store
from clearformer.cli import main

def hold():
    Path("held").touch()
    time.sleep(300)
    os._exit(1)

def hold_at(place, step):
    write = checkpoint_store.CheckpointStore.write

    def write_until_there(store, checkpoint):
        if checkpoint.progress.step == step:
            if place == "half a file":
                module.write_tensors = lambda tensors, path: (path.write_bytes(b"half"), hold())
            elif place == "sync":
                module.sync = lambda descriptor: hold()
            elif place != "after all":
                setattr(checkpoint_store, place, lambda *arguments: hold())
        write(store, checkpoint)
        if checkpoint.progress.step == step:
            hold()

    checkpoint_store.CheckpointStore.write = write_until_there

for line in sys.stdin:
    if child := os.fork():
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    log = os.open("log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    arguments = json.loads(line)
    if arguments[0] == "hold":
        _, place, step, *arguments = arguments
        hold_at(place, int(step))
    status = main(arguments)
    sys.stdout.flush()
    os._exit(status)
"""


@pytest.fixture
def forks(arena: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has imported everything, and runs each command in a fork of itself."""
    (arena / "pairs.tsv").write_text("".join(f"{n} et {n * n}\t{n} and {n * n}\n" for n in range(200)))
    labelled = "".join(f"{n} bottles of {'beer' if n % 3 else 'wine'}\t{n % 3 > 0}\n" for n in range(200))
    (arena / "labelled.tsv").write_text("text\tlabel\n" + labelled)
    environment = os.environ | {
        "CLEARFORMER_RUNS": str(arena / "runs"),
        "CLEARFORMER_CACHE": str(arena / "cache"),
        "OMP_NUM_THREADS": "1",
    }
    process = subprocess.Popen(
        [sys.executable, "-c", FORKS],
        env=environment,
        cwd=arena,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def start(forks: subprocess.Popen[str], *arguments: str) -> int:
    """Begin a command in a fork; returns its id."""
    assert forks.stdin is not None
    assert forks.stdout is not None
    print(json.dumps(arguments), file=forks.stdin, flush=True)
    return int(forks.stdout.readline())


def status_of(forks: subprocess.Popen[str]) -> int:
    """How the command that was begun has ended, once it has."""
    assert forks.stdout is not None
    return int(forks.stdout.readline())


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
def test_every_task_ends_as_if_it_had_never_been_killed(forks: subprocess.Popen[str], arena: Path) -> None:
    chance = random.Random(21)
    for task, settings in OF_TASK.items():
        command = ("train", task, *SMALL, *settings)
        start(forks, *command, "--run", f"{task}-whole")
        assert status_of(forks) == 0, (arena / "log.txt").read_text()
        run = arena / "runs" / f"{task}-killed"
        enough = chance.randrange(10, 30)

        life = start(forks, *command, "--run", run.name)
        wait_until(forks, lambda: n_lines(run) >= enough)  # noqa: B023
        os.kill(life, signal.SIGKILL)
        assert status_of(forks) == -signal.SIGKILL
        assert enough <= n_lines(run) < STEPS
        start(forks, "train", "--resume", "--run", run.name)
        assert status_of(forks) == 0, (arena / "log.txt").read_text()

        assert_same(run, arena / "runs" / f"{task}-whole", STEPS)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
def test_killed_while_a_checkpoint_is_being_written_it_ends_as_if_it_never_was(
    forks: subprocess.Popen[str], arena: Path
) -> None:
    """Training is some steps further when it ends, and goes on from the newest checkpoint that is whole."""
    command = ("train", "translate", *SMALL, *OF_TASK["translate"])
    start(forks, *command, "--run", "whole")
    assert status_of(forks) == 0, (arena / "log.txt").read_text()
    places = {"half a file": 9, "sync": 9, "save_checkpoint": 9, "link": 18, "prune": 18, "after all": 18}
    for number, (place, newest) in enumerate(places.items()):
        run = arena / "runs" / f"killed-{number}"
        (arena / "held").unlink(missing_ok=True)

        life = start(forks, "hold", place, "18", *command, "--run", run.name)
        wait_until(forks, lambda: n_lines(run) >= 23 and (arena / "held").exists())  # noqa: B023
        os.kill(life, signal.SIGKILL)
        assert status_of(forks) == -signal.SIGKILL
        assert bool(unfinished(run)) == (place in ("half a file", "sync"))
        start(forks, "train", "--resume", "--run", run.name)
        assert status_of(forks) == 0, (arena / "log.txt").read_text()

        assert f"going on from step {newest}\n" in (arena / "log.txt").read_text(), place
        assert_same(run, arena / "runs" / "whole", STEPS)


# --- comparing --------------------------------------------------------------------------------------------


def assert_same(run: Path, whole: Path, n_steps: int) -> None:
    last = Path("checkpoints", f"step-{n_steps:08d}")
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (run / last / name).read_bytes() == (whole / last / name).read_bytes(), name
    assert metrics(run) == metrics(whole)
    assert len(metrics(run)) == n_steps
    assert state(run / last) == state(whole / last)
    assert [path.name for path in sorted((run / "checkpoints").iterdir())] == [
        path.name for path in sorted((whole / "checkpoints").iterdir())
    ]


def metrics(run: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [without_clock(line) for line in lines]


def state(checkpoint: Path) -> dict[str, Any]:
    return without_clock(json.loads((checkpoint / "state.json").read_text()))


def without_clock(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in ("seconds", "tokens_per_second")}
