"""A disk that is full or read-only: one clear line, and nothing that was there is lost."""

import json
import resource
import shutil
import subprocess
from pathlib import Path

import pytest

from clearformer.cli import main
from clearformer.run import load
from clearformer.training.store.checkpoint import MODEL, OPTIMIZER, list_checkpoints

from ..forks import ForkServer
from ..full_disk import largest_file

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


# In a fork, to which the file systems are its own; there it may mount as root may.
ON_ITS_OWN = """
import ctypes, os, subprocess, sys
from clearformer.cli import main

NEW_MOUNTS, NEW_USERS = 0x20000, 0x10000000
user, group = os.getuid(), os.getgid()
if ctypes.CDLL(None).unshare(NEW_MOUNTS | NEW_USERS):
    sys.exit(77)
for file, line in {"setgroups": "deny", "uid_map": f"0 {user} 1", "gid_map": f"0 {group} 1"}.items():
    with open(f"/proc/self/{file}", "w") as told:
        told.write(line)

def mount(options):
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", "runs"]).returncode:
        sys.exit(77)

def train(log, *arguments):
    with open(log, "w") as messages:
        sys.stderr, before = messages, sys.stderr
        status = main(["train", *arguments])
        sys.stderr = before
    return status
"""
NO_ROOM = """
for n_files in sys.argv[1].split():
    mount(f"nr_inodes={n_files}")
    status = train(f"{n_files}.txt", *sys.argv[2:], "--run", "a")
    print(n_files, status, *os.listdir("runs"), file=sys.__stderr__)
    subprocess.run(["umount", "runs"], check=True)
"""
FULL_THEN_READ_ONLY = """
def tried(log, *arguments):
    status = train(log, *arguments)
    print(status, *sorted(os.listdir("runs/a/checkpoints")), file=sys.__stderr__)

mount(f"size={sys.argv[1]}")
tried("full.txt", *sys.argv[2:], "--run", "a")
mount("remount,size=20m,ro")
tried("read-only.txt", "--resume", "--run", "a")
mount("remount,rw")
tried("room.txt", "--resume", "--run", "a")
subprocess.run(["cp", "-r", "runs/a", "."], check=True)
"""


def may_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode == 0


needs_to_mount = pytest.mark.skipif(
    not may_mount(), reason="this user may not mount a file system of their own (unshare -rm)"
)


def told_on_its_own(forks: ForkServer, script: str, *arguments: str) -> list[str]:
    """The lines that a script prints, with file systems of its own."""
    answer = forks.run(*arguments, script=ON_ITS_OWN + script)
    if answer.returncode == 77:
        pytest.skip("this user may not mount a tmpfs")
    assert answer.returncode == 0, answer.stderr
    return answer.stderr.splitlines()


@needs_to_mount
def test_a_full_and_a_read_only_disk_end_the_run_and_it_goes_on_afterwards(
    arena: Path, forks: ForkServer
) -> None:
    """On a file system of its own that has room for two checkpoints and a half; then one that is read-only."""
    assert train(*SETTINGS, "--run", "whole") == 0
    shutil.move("runs/whole", "whole")
    page = resource.getpagesize()
    files = Path("whole/checkpoints/step-00000012").iterdir()
    checkpoint = sum(-(-file.stat().st_size // page) * page for file in files)

    told = told_on_its_own(forks, FULL_THEN_READ_ONLY, str(checkpoint * 5 // 2), *SETTINGS)

    two, three = (
        "best latest step-00000004 step-00000008",
        "best latest step-00000004 step-00000008 step-00000012",
    )
    assert told == [f"1 {two}", f"1 {two}", f"0 {three}"]
    assert "step-00000012: cannot be written: " in one_line(Path("full.txt").read_text())
    assert "No space left" in Path("full.txt").read_text()
    assert "Read-only file system" in one_line(Path("read-only.txt").read_text())
    assert "resuming from step 8" in Path("room.txt").read_text()
    assert same_end(Path("a"), Path("whole"))


@needs_to_mount
def test_a_disk_that_is_full_from_the_first_file_on_leaves_no_run(arena: Path, forks: ForkServer) -> None:
    """There is room for the folder that holds it, or for some of the files by which a run begins."""
    Path("runs").mkdir()

    told = told_on_its_own(forks, NO_ROOM, "1 2 4", *SETTINGS)

    assert told == ["1 1", "2 1", "4 1"]
    for n_files in (1, 2, 4):
        assert "No space left on device" in one_line(Path(f"{n_files}.txt").read_text())
