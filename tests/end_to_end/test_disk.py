"""A disk that is full or read-only: one clear line, and nothing that was there is lost."""

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clearformer.cli import main
from clearformer.run import load
from clearformer.training.store.checkpoint import MODEL, OPTIMIZER, list_checkpoints

SETTINGS = (
    "nanogpt-cpu",
    "model.d_model=16",
    "model.n_layers=1",
    "model.max_seq_len=16",
    "data.path=text.txt",
    "train.batch_size=4",
    "train.max_steps=12",
    "train.schedule=constant",
    "train.log_every=1",
    "train.eval_every=1000",
    "train.checkpoint_every=4",
    "train.keep_last=9",
    "train.device=cpu",
    "train.dtype=float32",
    "train.compile=false",
)


@pytest.fixture
def arena(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with a text."""
    (tmp_path / "text.txt").write_text(
        "".join(f"{n} bottles of beer, {n * n} on the wall\n" for n in range(200))
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLEARFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CLEARFORMER_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


def train(*arguments: str) -> int:
    return main(["train", *arguments])


def one_line(messages: str) -> str:
    """What the error says, which must be one line and the last."""
    assert "Traceback" not in messages
    [line] = [line for line in messages.splitlines() if line.startswith("clearformer: ")]
    assert messages.rstrip().endswith(line)
    return line


@contextmanager
def largest_file(n_bytes: int) -> Iterator[None]:
    """No file may grow beyond this size, as `ulimit -f` sets it; a write fails in the midst, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def metrics(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def same_end(a: Path, b: Path) -> bool:
    last = Path("checkpoints", "step-00000012")
    return all(
        (a / last / name).read_bytes() == (b / last / name).read_bytes() for name in (MODEL, OPTIMIZER)
    )


def test_a_file_that_cannot_be_written_whole_ends_the_run_and_it_goes_on_afterwards(
    arena: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(*SETTINGS, "--run", "whole") == 0
    run, whole = arena / "runs" / "a", arena / "runs" / "whole"
    assert train(*SETTINGS, "train.max_steps=4", "--run", "a") == 0
    size = (run / "checkpoints" / "latest" / MODEL).stat().st_size
    capsys.readouterr()

    with largest_file(size // 2):
        status = train("--resume", "--run", "a", "train.max_steps=12")

    assert status == 1
    message = one_line(capsys.readouterr().err)
    assert "checkpoints/step-00000008: cannot be written: " in message
    assert "File too large" in message
    assert [path.name for path in list_checkpoints(run / "checkpoints")] == ["step-00000004"]
    assert not list((run / "checkpoints").glob(".unfinished-*"))
    assert load("a", device="cpu").step == 4

    assert train("--resume", "--run", "a") == 0
    assert [line["step"] for line in metrics(run)] == [*range(1, 13)]
    assert same_end(run, whole)


def test_a_metrics_file_that_cannot_grow_ends_the_run(
    arena: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(*SETTINGS, "--run", "whole") == 0
    assert train(*SETTINGS, "train.max_steps=4", "--run", "a") == 0
    run, whole = arena / "runs" / "a", arena / "runs" / "whole"
    file = run / "metrics.jsonl"
    larger_than_a_checkpoint = json.dumps({"step": 0, "padding": "x" * 200_000}) + "\n"
    file.write_text(larger_than_a_checkpoint + file.read_text())
    capsys.readouterr()

    with largest_file(file.stat().st_size + 100):
        status = train("--resume", "--run", "a", "train.max_steps=12")

    assert status == 1
    assert "metrics.jsonl: cannot be written: File too large" in one_line(capsys.readouterr().err)
    assert not file.read_bytes().endswith(b"\n")  # a line was cut off
    assert train("--resume", "--run", "a") == 0
    assert [line["step"] for line in metrics(run)] == [*range(13)]
    assert same_end(run, whole)


NO_ROOM = """
mount -t tmpfs -o nr_inodes=$INODES tmpfs runs || exit 77
"$PYTHON" -m clearformer train $SETTINGS --run a > /dev/null 2> $INODES.txt; echo $?; ls -A runs
"""


FULL_THEN_READ_ONLY = """
mount -t tmpfs -o size=$SIZE tmpfs runs || exit 77
train() { "$PYTHON" -m clearformer train "$@" > /dev/null 2> "$log"; echo $?; ls runs/a/checkpoints; }
log=full.txt; train $SETTINGS --run a
mount -o remount,size=20m,ro runs
log=read-only.txt; train --resume --run a
mount -o remount,rw runs
log=room.txt; train --resume --run a
cp -r runs/a .
"""


def may_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(
    not may_mount(), reason="this user may not mount a file system of their own (unshare -rm)"
)
def test_a_full_and_a_read_only_disk_end_the_run_and_it_goes_on_afterwards(arena: Path) -> None:
    """On a file system of its own that has room for two checkpoints and a half; then one that is read-only."""
    assert train(*SETTINGS, "--run", "whole") == 0
    shutil.move("runs/whole", "whole")
    page = resource.getpagesize()
    files = Path("whole/checkpoints/step-00000012").iterdir()
    checkpoint = sum(-(-file.stat().st_size // page) * page for file in files)
    variables = {"PYTHON": sys.executable, "SETTINGS": " ".join(SETTINGS), "SIZE": str(checkpoint * 5 // 2)}

    answer = subprocess.run(
        ["unshare", "-rm", "bash", "-c", FULL_THEN_READ_ONLY],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    if answer.returncode == 77:
        pytest.skip("this user may not mount a tmpfs")

    two, three = (
        "best latest step-00000004 step-00000008",
        "best latest step-00000004 step-00000008 step-00000012",
    )
    assert answer.stdout.split() == f"1 {two} 1 {two} 0 {three}".split()
    assert "step-00000012: cannot be written: " in one_line(Path("full.txt").read_text())
    assert "No space left" in Path("full.txt").read_text()
    assert "Read-only file system" in one_line(Path("read-only.txt").read_text())
    assert "going on from step 8" in Path("room.txt").read_text()
    assert same_end(Path("a"), Path("whole"))


@pytest.mark.skipif(
    not may_mount(), reason="this user may not mount a file system of their own (unshare -rm)"
)
@pytest.mark.parametrize("n_files", [1, 2, 4])
def test_a_disk_that_is_full_from_the_first_file_on_leaves_no_run(arena: Path, n_files: int) -> None:
    """There is room for the folder that holds it, or for some of the files by which a run begins."""
    Path("runs").mkdir()
    variables = {"PYTHON": sys.executable, "SETTINGS": " ".join(SETTINGS), "INODES": str(n_files)}

    answer = subprocess.run(
        ["unshare", "-rm", "bash", "-c", NO_ROOM],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    if answer.returncode == 77:
        pytest.skip("this user may not mount a tmpfs")

    assert answer.stdout == "1\n"
    assert "No space left on device" in one_line(Path(f"{n_files}.txt").read_text())
