import inspect
import os
import re
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.run import get_args_parser

from clearformer.cli.commands import train
from clearformer.config import to_toml
from clearformer.errors import ConfigError
from clearformer.training.config import RunConfig
from clearformer.training.loop import TrainResult
from clearformer.training.processes.distributed import Processes, backend_for
from clearformer.training.store.checkpoint import MODEL, OPTIMIZER, list_checkpoints, step_of
from clearformer.training.store.folder import RunFolder, read_metrics
from clearformer.training.store.lock import LOCK

from ....forks import ForkServer

CPU = torch.device("cpu")


def test_without_torchrun_a_process_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    processes = Processes.join(CPU)
    tensor = torch.arange(3.0)

    processes.all_reduce_mean([tensor])

    assert (processes.rank, processes.count, processes.is_main) == (0, 1, True)
    assert tensor.tolist() == [0, 1, 2]
    assert processes.broadcast(0.1) == 0.1
    assert processes.end_step({"seconds": 0.3}, signal.SIGTERM) == ({"seconds": 0.3}, signal.SIGTERM)
    processes.wait_for_all()


def test_the_command_that_help_names_is_what_torchrun_understands() -> None:
    command = re.search(r"torchrun (.* clearformer train) ", inspect.getdoc(train.train) or "")
    assert command is not None
    parsed = get_args_parser().parse_args([*command[1].split(), "quick", "--run", "a"])
    assert (parsed.nproc_per_node, parsed.module, parsed.training_script) == ("2", True, "clearformer")
    assert parsed.training_script_args == ["train", "quick", "--run", "a"]


def test_one_gpu_is_not_for_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(
        ConfigError, match=r"train\.device: cuda:1 is one GPU, but each of the 2 processes needs its own"
    ):
        Processes.join(torch.device("cuda", 1))


@pytest.mark.parametrize(
    ("n_here", "n_gpus", "backend"), [(1, 1, "nccl"), (2, 1, "gloo"), (8, 8, "nccl"), (8, 4, "gloo")]
)
def test_processes_that_share_a_gpu_do_without_nccl(
    n_here: int, n_gpus: int, backend: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "16")  # on several machines
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(n_here))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: n_gpus)

    assert backend_for(torch.device("cuda")) == backend
    assert backend_for(CPU) == "gloo"
    assert ("processes share" in caplog.text) == (backend == "gloo")


def test_each_process_takes_a_gpu_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: int(os.environ["RANK"]))
    monkeypatch.setenv("WORLD_SIZE", "4")
    for rank in range(4):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        assert Processes.join(torch.device("cuda")).rank == rank
    assert taken == [0, 1, 0, 1]


TWO_PROCESSES = """
import os, sys
from pathlib import Path
import torch
from clearformer.config import read_toml, resolve
from clearformer.errors import Interrupted
from clearformer.training.config import RunConfig
from clearformer.training.store.folder import RunFolder
from clearformer.training.loop import train
from clearformer.training.reporting.report import Reporter
from clearformer.training.tasks import NextTokenTask

torch.set_default_dtype(torch.float64)
config = resolve(RunConfig, read_toml(Path(sys.argv[1])))
os.environ |= {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sys.argv[3]}
child = os.fork()  # spares the second import of torch
rank = os.environ["RANK"] = os.environ["LOCAL_RANK"] = "1" if child == 0 else "0"
hit, number, step = map(int, sys.argv[4:7])

class Hit(Reporter):
    def stepped(self, progress, metrics):
        signalled(progress.step)

def signalled(at):
    if hit == int(rank) and at == step:
        os.kill(os.getpid(), number)

if rank == "1":  # which is told nothing
    batch = NextTokenTask.batch
    NextTokenTask.batch = lambda task, step, part, n: (signalled(step), batch(task, step, part, n))[1]
status = 0
try:
    told = str(train(config, RunFolder(Path(sys.argv[2])), Hit()).progress.step)
except Interrupted as stopped:
    told = f"{str(stopped).split(';')[0]} {stopped.exit_status}"
os.write(1, f"{told}\\n".encode())  # at once: under PYTHONUNBUFFERED the pieces of two prints mix
if child == 0:
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextmanager
def in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.fixture
def pairs(tmp_path: Path) -> tuple[str, ...]:
    """The settings of a translation; some batches have fewer rows than there are parts."""
    words = ["a" * n + "b" * (n % 3) for n in range(1, 13)] + ["bc" * n for n in range(1, 7)]
    (tmp_path / "pairs.tsv").write_text("".join(f"{word}\t{word[::-1]}\n" for word in words))
    return (
        "data.kind=pairs",
        f"data.path={tmp_path / 'pairs.tsv'}",
        "data.val_fraction=0.2",
        "model.family=encoder-decoder",
        "model.max_seq_len=17",
        "train.batch_size=32",
        "train.objective=translation",
        "train.objective.batch_tokens=24",
    )


@pytest.fixture
def two_processes(forks: ForkServer) -> Callable[..., list[str]]:
    """Trains a run in two processes, of which one may get a signal at a step; returns what each says in the end."""

    def two_processes(config: Path, run: Path, hit: int = -1, number: int = 0, step: int = 0) -> list[str]:
        arguments = map(str, (config, run, free_port(), hit, number, step))
        answer = forks.run(*arguments, script=TWO_PROCESSES)
        assert answer.returncode == 0, answer.stderr
        lines = answer.stdout.splitlines()
        return [
            line for line in lines if not line.startswith("[Gloo]")
        ]  # older versions of torch say they connect

    return two_processes


@pytest.mark.parametrize("task", ["text", "pairs"])
def test_two_processes_train_the_model_of_one(
    task: str,
    pairs: tuple[str, ...],
    trained: Callable[..., TrainResult],
    run_folder: Callable[[str], RunFolder],
    two_processes: Callable[..., list[str]],
) -> None:
    """In float64: Muon's iterations round to bfloat16, where a last digit of float32 may tip one of its steps."""
    settings = (
        "train.max_steps=5",
        "train.grad_accum_steps=2",
        "train.checkpoint_every=3",
        "train.optimizer=muon",
    )
    with in_float64():
        trained("one", *(pairs if task == "pairs" else ()), *settings)
    one, two = run_folder("one"), run_folder("two")

    assert two_processes(one.config_file, two.path) == ["5", "5"]

    for name in (MODEL, OPTIMIZER):
        ours, theirs = (load_file(folder.checkpoints / "step-00000005" / name) for folder in (one, two))
        torch.testing.assert_close(theirs, ours, atol=1e-9, rtol=1e-9)
    for ours, theirs in zip(read_metrics(one.metrics_file), read_metrics(two.metrics_file), strict=True):
        assert ours.keys() == theirs.keys()
        assert theirs["loss"] == pytest.approx(ours["loss"], rel=1e-6)
        assert theirs["tokens"] == ours["tokens"]


@pytest.mark.parametrize(("hit", "number"), [(0, signal.SIGINT), (1, signal.SIGTERM), (1, signal.SIGHUP)])
def test_a_signal_to_any_process_ends_all_of_them_at_the_same_step(
    configure: Callable[..., RunConfig],
    run_folder: Callable[[str], RunFolder],
    two_processes: Callable[..., list[str]],
    tmp_path: Path,
    hit: int,
    number: int,
) -> None:
    config, folder = tmp_path / "config.toml", run_folder("a")
    config.write_text(to_toml(configure("train.max_steps=100000")))

    told = two_processes(config, folder.path, hit, number, step=3)

    [said] = set(told)
    step = int(said.removeprefix("stopped at step ").split()[0])
    assert len(told) == 2
    assert said == f"stopped at step {step} {128 + number}"
    assert step <= 6
    assert [step_of(path) for path in list_checkpoints(folder.checkpoints)] == [step]
    assert read_metrics(folder.metrics_file)[-1]["step"] == step
    assert not (folder.path / LOCK).exists()
