"""kill -9 at random instants, saving included: the run ends as one that was never disturbed.

A life of the run ends by SIGKILL a random number of metrics lines after it began to train, or as soon as it is
seen to write a checkpoint. What the lives have made together is compared with what one life makes: at length for a
language model, and with one kill for each of the other tasks. Lives are forks of one process (tests/forks.py), but
for one that a user starts.
"""

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clearformer.training.store.checkpoint import MODEL, STATE, verify

from ..forks import Fork, ForkServer

KILLS, AMID_SAVING = 14, 6  # the second is how many of the first wait for a checkpoint being written
MOST_LINES = 12  # that a life may add before it is killed
MAX_STEPS = 180  # more than all lives make together
PATIENCE_SECONDS = 240  # for one life, on a machine that does other things too
TRIES_BETWEEN_POLLS = 20  # asking whether it lives costs more than looking at its files
SETTINGS = (
    "nanogpt-cpu",
    "model.d_model=16",
    "model.n_layers=1",
    "model.max_seq_len=16",
    "model.dropout=0.1",
    "data.val_fraction=0.05",
    "train.batch_size=4",
    f"train.max_steps={MAX_STEPS}",
    "train.optimizer=muon",
    "train.ema=0.95",
    "train.log_every=1",
    "train.eval_every=20",
    "train.checkpoint_every=4",
    "train.device=cpu",
    "train.dtype=float32",
    "train.compile=false",
)


# A life that first gets this, one of the two below it and then its command, `PLACE STEP ...`, holds a thread for good
# at some place; the file `held` says when it is there. Checkpoints and snapshots are written by two threads, and by the
# same functions, so a function is replaced for the thread alone that is to be held.
HOLDING = """
import os, sys, threading, time
from pathlib import Path
from clearformer import files
from clearformer.training.store import checkpoint as module, checkpoint_store, snapshots
from clearformer.cli import main

place, step, *arguments = sys.argv[1:]

def hold(*_):
    Path("held").touch()
    time.sleep(300)
    os._exit(1)

def write_half(tensors, path):
    path.write_bytes(b"half")
    hold()

def hold_here(where, name, instead):
    function, thread = getattr(where, name), threading.get_ident()
    setattr(where, name, lambda *given: (instead if threading.get_ident() == thread else function)(*given))
"""
# The writing of that step's checkpoint: where a function that writes it is called, or after all.
HOLD = f"""{HOLDING}
write = checkpoint_store.CheckpointStore.write

def write_until_there(store, checkpoint):
    if checkpoint.progress.step == int(step):
        if place == "half a file":
            hold_here(module, "write_tensors", write_half)
        elif place == "sync":
            hold_here(files, "sync", hold)
        elif place != "after all":
            setattr(checkpoint_store, place, hold)
    write(store, checkpoint)
    if checkpoint.progress.step == int(step):
        hold()

checkpoint_store.CheckpointStore.write = write_until_there
sys.exit(main(arguments))
"""
# The writing of that step's snapshot.
HOLD_SNAPSHOT = f"""{HOLDING}
save = snapshots.save_snapshot

def save_until_there(folder, progress, weights):
    if progress.step == int(step):
        if place == "half a file":
            hold_here(module, "write_tensors", write_half)
        elif place == "before":
            hold()
    save(folder, progress, weights)
    if progress.step == int(step):
        hold()

snapshots.save_snapshot = save_until_there
sys.exit(main(arguments))
"""
# Runs end with texts for people, of which these tests read none.
SHORT_TEXTS = """
import sys
from clearformer.training.tasks import next_token, translation
from clearformer.cli import main
next_token.SAMPLE_TOKENS = translation.N_EXAMPLES = 1
sys.exit(main(sys.argv[1:]))
"""
Begins = Callable[..., Fork]


@pytest.fixture
def arena(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with texts of 200 lines that are all different."""
    for name, line in {
        "text.txt": "{n} bottles of beer, {square} on the wall\n",
        "pairs.tsv": "{n} et {square}\t{n} and {square}\n",
    }.items():
        (tmp_path / name).write_text("".join(line.format(n=n, square=n * n) for n in range(200)))
    labelled = "".join(f"{n} bottles of {'beer' if n % 3 else 'wine'}\t{n % 3 > 0}\n" for n in range(200))
    (tmp_path / "labelled.tsv").write_text("text\tlabel\n" + labelled)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLEARFORMER_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("CLEARFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


@pytest.fixture
def begin(forks: ForkServer, arena: Path) -> Begins:
    """Begins a life: `begin("train", ...)`; its messages go to log.txt."""

    def begin(*arguments: str, script: str = SHORT_TEXTS) -> Fork:
        with (arena / "log.txt").open("w") as log:
            return forks.start(*arguments, script=script, stdout=log)

    return begin


@pytest.fixture
def live_to_the_end(begin: Begins, arena: Path) -> Callable[..., None]:
    def live_to_the_end(*arguments: str) -> None:
        assert begin(*arguments).wait(PATIENCE_SECONDS) == 0, (arena / "log.txt").read_text()

    return live_to_the_end


def kill(life: Fork) -> None:
    life.kill()
    assert life.wait() == -signal.SIGKILL


def wait_until(life: Fork, happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not any(happened() or time.sleep(0.001) for _ in range(TRIES_BETWEEN_POLLS)):
        assert life.poll() is None, "the run came to its end before it was killed"
        assert time.monotonic() < deadline


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


def begins_to_train(life: Fork, arena: Path, run: Path) -> int:
    """Wait for the first line of metrics that this life adds; returns how many there are then.

    The lines after the checkpoint that it goes on from are gone when the table's heading is printed.
    """
    wait_until(life, lambda: "held-out" in log_of(arena))
    before = n_lines(run)
    wait_until(life, lambda: n_lines(run) > before)
    return n_lines(run)


def unfinished(run: Path) -> set[Path]:
    """What is half-written, or was left so by a life that was killed."""
    return set((run / "checkpoints").glob(".unfinished-*"))


def test_killed_at_random_instants_it_ends_as_if_it_never_was(
    begin: Begins, live_to_the_end: Callable[..., None], arena: Path
) -> None:
    """The last life is a process as a user starts it."""
    data = f"data.path={arena / 'text.txt'}"
    live_to_the_end("train", *SETTINGS, data, "--run", "whole")
    chance = random.Random(20)
    run = arena / "runs" / "killed"
    ways = [True] * AMID_SAVING + [False] * (KILLS - AMID_SAVING)
    chance.shuffle(ways)
    half_written = 0

    for number, amid_saving in enumerate(ways):
        arguments = ("--resume", "--run", "killed") if number else (*SETTINGS, data, "--run", "killed")
        left_over = unfinished(run)
        life = begin("train", *arguments)
        begun = begins_to_train(life, arena, run)
        if amid_saving:
            wait_until(life, lambda: bool(unfinished(run) - left_over))  # noqa: B023
        else:
            enough = begun + chance.randrange(MOST_LINES)
            wait_until(life, lambda: n_lines(run) >= enough)  # noqa: B023
        time.sleep(chance.uniform(0, 0.004))
        kill(life)
        half_written += bool(unfinished(run) - left_over)

    assert half_written  # so it was killed in the midst of saving too
    command = [sys.executable, "-m", "clearformer", "train", "--resume", "--run", "killed"]
    last = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
    assert last.returncode == 0, last.stderr
    assert_same(run, arena / "runs" / "whole", MAX_STEPS)


# --- every task -------------------------------------------------------------------------------------------

STEPS = 22
SMALL = (
    "model.d_model=16",
    "model.n_layers=1",
    "model.max_seq_len=24",
    "model.dropout=0.1",
    "model.attention.n_heads=2",
    "tokenizer=byte",
    f"train.max_steps={STEPS}",
    "train.max_seconds=none",
    "train.ema=0.9",
    "train.label_smoothing=0.1",
    "train.log_every=1",
    "train.eval_every=10",
    "train.checkpoint_every=7",
    "train.device=cpu",
    "train.dtype=float32",
    "train.compile=false",
)
OF_TASK = {
    "translate": ("data.path=pairs.tsv", "train.objective.batch_tokens=128"),
    "masked": ("data.path=text.txt", "train.batch_size=4"),
    "classify": ("data.path=labelled.tsv", "train.batch_size=4", "train.grad_accum_steps=2"),
}


def test_every_task_ends_as_if_it_had_never_been_killed(
    begin: Begins, live_to_the_end: Callable[..., None], arena: Path
) -> None:
    chance = random.Random(21)
    for task, settings in OF_TASK.items():
        command = ("train", task, *SMALL, *settings)
        live_to_the_end(*command, "--run", f"{task}-whole")
        run = arena / "runs" / f"{task}-killed"
        enough = chance.randrange(8, 16)

        life = begin(*command, "--run", run.name)
        wait_until(life, lambda: n_lines(run) >= enough)  # noqa: B023
        kill(life)
        assert enough <= n_lines(run) < STEPS
        live_to_the_end("train", "--resume", "--run", run.name)

        assert_same(run, arena / "runs" / f"{task}-whole", STEPS)


def test_killed_while_a_checkpoint_is_being_written_it_ends_as_if_it_never_was(
    begin: Begins, live_to_the_end: Callable[..., None], arena: Path
) -> None:
    """Training is some steps further when it ends, and goes on from the newest checkpoint that is whole."""
    command = ("train", "translate", *SMALL, *OF_TASK["translate"])
    live_to_the_end(*command, "--run", "whole")
    places = {"half a file": 7, "sync": 7, "save_checkpoint": 7, "link": 14, "prune": 14, "after all": 14}
    for number, (place, newest) in enumerate(places.items()):
        run = arena / "runs" / f"killed-{number}"
        (arena / "held").unlink(missing_ok=True)

        life = begin(place, "14", *command, "--run", run.name, script=HOLD)
        wait_until(life, lambda: n_lines(run) >= 19 and (arena / "held").exists())  # noqa: B023
        kill(life)
        assert bool(unfinished(run)) == (place in ("half a file", "sync"))
        live_to_the_end("train", "--resume", "--run", run.name)

        assert f"resuming from step {newest}\n" in (arena / "log.txt").read_text(), place
        assert_same(run, arena / "runs" / "whole", STEPS)


def test_killed_while_a_snapshot_is_being_written_it_ends_as_if_it_never_was(
    begin: Begins, live_to_the_end: Callable[..., None], arena: Path
) -> None:
    """Training goes on meanwhile up to the next one, and no checkpoint is written that would be ahead of it."""
    command = ("train", "translate", *SMALL, *OF_TASK["translate"])
    live_to_the_end(*command, "--run", "whole")
    assert snapshots(arena / "runs" / "whole").keys() == {f"step-{step:08d}" for step in (0, 1, 2, 4, 8, 16)}
    for number, place in enumerate(("before", "half a file", "after")):
        run = arena / "runs" / f"killed-{number}"
        (arena / "held").unlink(missing_ok=True)

        life = begin(place, "8", *command, "--run", run.name, script=HOLD_SNAPSHOT)
        wait_until(life, lambda: n_lines(run) >= 15 and (arena / "held").exists())  # noqa: B023
        kill(life)
        assert bool(list((run / "snapshots").glob(".unfinished-*"))) == (place == "half a file")
        assert not (run / "checkpoints" / "step-00000014").exists()
        live_to_the_end("train", "--resume", "--run", run.name)

        assert "resuming from step 7\n" in (arena / "log.txt").read_text(), place
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
    assert snapshots(run) == snapshots(whole)
    assert len(snapshots(run)) > 5
    assert not list((run / "snapshots").glob(".unfinished-*"))
    factors = (run / "lr_factors.f64").read_bytes()
    assert factors == (whole / "lr_factors.f64").read_bytes()
    assert len(factors) == 8 * n_steps


def snapshots(run: Path) -> dict[str, tuple[bytes, dict[str, Any]]]:
    """The weights and the state of each, once its checksums are right."""
    found = {}
    for path in (run / "snapshots").glob("step-*"):
        verify(path, MODEL, STATE)
        found[path.name] = ((path / MODEL).read_bytes(), state(path))
    return found


def metrics(run: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [without_clock(line) for line in lines]


def state(checkpoint: Path) -> dict[str, Any]:
    return without_clock(json.loads((checkpoint / "state.json").read_text()))


def without_clock(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in ("seconds", "tokens_per_second")}
