import inspect
import os
import re
import signal
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count as counted
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.run import get_args_parser

from clearformer.cli.commands import train
from clearformer.config import to_toml
from clearformer.errors import ConfigError
from clearformer.study.study import Probe, Study
from clearformer.study.workers.launch import run_here
from clearformer.study.workers.pool import Selection
from clearformer.training.config import RunConfig
from clearformer.training.loop import TrainResult
from clearformer.training.processes import distributed
from clearformer.training.processes.distributed import (
    Place,
    Processes,
    ProcessesError,
    backend_for,
    check_alone,
    is_main_process,
    others_answer,
    reason_of,
)
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


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets what torchrun sets for one of several processes of a machine, and then other variables; None unsets."""

    def launched(rank: int, count: int, **others: str | None) -> None:
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
        for name, value in {**place, **address, **others}.items():
            if value is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, str(value))

    return launched


@pytest.mark.parametrize(("variable", "left_over"), [("WORLD_SIZE", None), ("WORLD_SIZE", "1")])
def test_a_rank_left_over_in_a_shell_is_that_of_a_process_alone(
    variable: str, left_over: str | None, launched: Callable[..., None]
) -> None:
    launched(1, 2, **{variable: left_over})
    assert Place.of_this_process() == Place()
    assert is_main_process()
    assert Processes.join(CPU).is_main
    check_alone("a study")


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("RANK", None, "WORLD_SIZE=2 in the environment says that 2 processes .* but RANK is not set; start"),
        ("LOCAL_RANK", None, "LOCAL_RANK is not set; start them with torchrun, or unset WORLD_SIZE"),
        ("MASTER_ADDR", None, "MASTER_ADDR is not set"),
        ("WORLD_SIZE", "two", "WORLD_SIZE='two' in the environment is not a whole number"),
        ("RANK", "-1", "RANK='-1' in the environment is not a whole number"),
        ("MASTER_PORT", "http", "MASTER_PORT='http' in the environment is not a whole number"),
        ("RANK", "2", "RANK=2 in the environment is not below WORLD_SIZE=2"),
    ],
)
def test_half_of_what_torchrun_sets_is_refused(
    variable: str, value: str | None, message: str, launched: Callable[..., None]
) -> None:
    launched(0, 2, **{variable: value})
    with pytest.raises(ConfigError, match=message):
        Processes.join(CPU)


def test_processes_on_one_machine_and_on_several(launched: Callable[..., None]) -> None:
    launched(1, 2)
    assert Place.of_this_process() == Place(1, 2, 1, 2)
    assert not is_main_process()
    assert train.continuing("a").endswith(
        "torchrun --nproc-per-node 2 -m -- clearformer train --resume --run a"
    )

    launched(2, 4, LOCAL_RANK="0", LOCAL_WORLD_SIZE="2", MASTER_ADDR="first", MASTER_PORT="29500")
    assert Place.of_this_process() == Place(2, 4, 0, 2)
    assert (
        "torchrun --nnodes 2 --node-rank 0 --master-addr first --master-port 29500 --nproc-per-node 2 -m -- "
        in train.continuing("a")
    )


def test_what_shares_its_runs_in_another_way_refuses_torchrun(
    launched: Callable[..., None], tmp_path: Path
) -> None:
    launched(0, 2)
    study = Study("s", "?", "", (Probe("a", lambda seed: {"n": seed}),), "")
    with pytest.raises(
        ConfigError, match=r"a study cannot share its runs among torchrun's processes .*--jobs N"
    ):
        run_here([study], Selection(("s",), tmp_path), quiet=True)
    assert not list(tmp_path.iterdir())


def test_processes_end_with_their_torchrun(
    launched: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    watched: list[int] = []
    monkeypatch.setattr(distributed, "end_with_parent", watched.append)
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 0)
    launched(0, 2, TORCHELASTIC_RUN_ID=None)
    Processes.join(CPU)
    assert watched == []
    launched(0, 2, TORCHELASTIC_RUN_ID="none")
    Processes.join(CPU)
    assert watched == [os.getppid()]


def test_an_error_of_torch_is_cut_to_its_first_sentence() -> None:
    gloo = "[/pytorch/gloo/transport/tcp/pair.cc:550] Connection closed by peer [127.0.0.1]:1. This is due to a crash"
    assert reason_of(RuntimeError(gloo)) == "Connection closed by peer [127.0.0.1]:1"
    assert reason_of(RuntimeError()) == "RuntimeError"
    with (
        pytest.raises(
            ProcessesError, match=r"process 1 of 2 on .* has lost another one \(gone\); the first error of"
        ),
        others_answer(1, 2),
    ):
        raise RuntimeError("gone")
    with pytest.raises(torch.OutOfMemoryError), others_answer(1, 2):
        raise torch.OutOfMemoryError


def test_several_processes_are_not_for_mps(launched: Callable[..., None]) -> None:
    launched(0, 2)
    with pytest.raises(
        ConfigError, match=r"train\.device: 2 processes cannot exchange gradients on mps; set cpu"
    ):
        Processes.join(torch.device("mps"))


def test_one_gpu_is_not_for_several_processes(launched: Callable[..., None]) -> None:
    launched(0, 2)
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


def test_each_process_takes_a_gpu_that_is_there(
    launched: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: int(os.environ["RANK"]))
    for rank in range(4):
        launched(rank, 4, TORCHELASTIC_RUN_ID=None)
        assert Processes.join(torch.device("cuda")).rank == rank
    assert taken == [0, 1, 0, 1]


ALIKE = """
import os, sys, time
from pathlib import Path
import torch
from clearformer.config import read_toml, resolve
from clearformer.errors import ClearformerError
from clearformer.training import loop
from clearformer.training.config import RunConfig
from clearformer.training.processes.distributed import Processes
from clearformer.training.store.folder import RunFolder
from clearformer.training.reporting.report import Reporter
from clearformer.training.tasks import NextTokenTask

configs, runs, port, resume, extra = sys.argv[1].split(","), sys.argv[2].split(","), *sys.argv[3:]
os.environ |= {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
child = os.fork()
rank = int(child == 0)
os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
exec(extra)
try:
    result = loop.train(resolve(RunConfig, read_toml(Path(configs[rank]))), RunFolder(Path(runs[rank])), Reporter(),
                        resume=resume == "resume")
    told = f"{rank} {result.progress.step} {result.evaluation.loss!r} {result.task.config.train.lr}"
except Exception as error:
    told = f"{rank} {type(error).__name__} {error}"
os.write(1, f"{told}\\n".encode())
if rank:
    os._exit(0)
os.waitpid(child, 0)
"""
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


# --- processes that are not alike ---------------------------------------------------------------------------


@pytest.fixture
def two_that_differ(forks: ForkServer) -> Callable[..., list[str]]:
    """Trains in two processes, each with a configuration and a folder; returns what each says in the end, in order."""

    def two_that_differ(
        configs: list[Path], runs: list[Path], how: str = "new", extra: str = ""
    ) -> list[str]:
        places = (",".join(map(str, paths)) for paths in (configs, runs))
        answer = forks.run(*places, str(free_port()), how, extra, script=ALIKE)
        lines = [line for line in answer.stdout.splitlines() if line[:2] in ("0 ", "1 ")]
        assert len(lines) == 2, answer
        return sorted(lines)

    return two_that_differ


@pytest.fixture
def written(configure: Callable[..., RunConfig], tmp_path: Path) -> Callable[..., Path]:
    """Writes the configuration of some settings to a file of a name."""

    def written(name: str, *settings: str) -> Path:
        file = tmp_path / f"{name}.toml"
        file.write_text(to_toml(configure("train.max_steps=4", *settings)))
        return file

    return written


def test_all_train_the_first_ones_settings_from_its_weights(
    two_that_differ: Callable[..., list[str]],
    written: Callable[..., Path],
    run_folder: Callable[[str], RunFolder],
) -> None:
    """As `auto` chooses for each machine; the second one's weights are spoilt before the first step."""
    configs = [written("a", "train.lr=0.01"), written("b", "train.lr=0.02", "model.d_model=12")]
    folder = run_folder("a").path
    spoil = """
from clearformer.training.store.state import TrainState
build = TrainState.build
def spoilt(config, device):
    state = build(config, device)
    for weight in state.model.parameters():
        weight.data += rank
    return state
TrainState.build = spoilt
"""
    first, second = two_that_differ(configs, [folder, folder], extra=spoil)
    assert first.split()[1:] == second.split()[1:]  # evaluated alike, too
    assert first.split()[1::2] == ["4", "0.01"]


def test_the_first_process_of_a_machine_prepares_the_data_for_the_others(
    two_that_differ: Callable[..., list[str]],
    written: Callable[..., Path],
    run_folder: Callable[[str], RunFolder],
    tmp_path: Path,
) -> None:
    look = f"""
prepare = NextTokenTask.prepare
def slow(*arguments):
    if rank:
        assert Path({str(tmp_path / "prepared")!r}).exists()
    else:
        time.sleep(0.3)
    prepared = prepare(*arguments)
    Path({str(tmp_path / "prepared")!r}).touch()
    return prepared
NextTokenTask.prepare = slow
"""
    folder = run_folder("a").path
    first, second = two_that_differ([written("a")] * 2, [folder, folder], extra=look)
    assert first.split()[1:] == second.split()[1:]


def test_a_machine_that_is_ready_waits_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than a message to all of them would."""
    monkeypatch.setenv("GROUP_RANK", "1")
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    seen: dict[str, str] = {}
    naps: list[float] = []

    class Store:
        def set(self, key: str, value: str) -> None:
            seen[key] = value

        def check(self, keys: list[str]) -> bool:
            return all(key in seen for key in keys)

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            seen["clearformer/first/0/0"] = "through"

    monkeypatch.setattr(distributed.time, "sleep", sleep)
    processes = Processes(1, 2, Place(1, 2, local_rank=0, n_here=1))
    monkeypatch.setattr(processes, "store", Store())
    monkeypatch.setattr(processes, "n_waits", counted())
    with processes.first_here_first():
        assert not seen
    assert len(naps) == 3
    assert set(seen) == {"clearformer/first/0/0", "clearformer/first/0/1"}


def test_other_data_on_another_machine_are_refused_before_anything_is_written(
    two_that_differ: Callable[..., list[str]],
    written: Callable[..., Path],
    run_folder: Callable[[str], RunFolder],
) -> None:
    """As where the settings name a file of which each machine has its own."""
    other = """
if rank:
    NextTokenTask.data_sha256 = property(lambda task: "0" * 64)
"""
    folder = run_folder("a").path
    first, second = two_that_differ([written("a")] * 2, [folder, folder], extra=other)
    assert "ProcessesError SHA-256 of the data: 000000" in second
    assert "in process 1 on " in second
    assert second.endswith("in process 0; give all machines the same files")
    assert first.endswith("not the same in all 2 processes; give all machines the same files")
    assert not folder.exists()


def test_a_folder_of_another_machine_is_not_resumed_beside_this_one(
    two_that_differ: Callable[..., list[str]],
    written: Callable[..., Path],
    trained: Callable[..., TrainResult],
    run_folder: Callable[[str], RunFolder],
) -> None:
    for name, last in (("a", 3), ("b", 2)):
        trained(name, f"train.max_steps={last}")
    folders = [run_folder("a").path, run_folder("b").path]
    first, second = two_that_differ([written("c")] * 2, folders, "resume")
    assert "ProcessesError the step to go on from: 2 in process 1 on " in second
    assert (
        "but 3 in process 0; put the folder of runs (CLEARFORMER_RUNS) on a disk that all machines share"
        in second
    )
    assert "ProcessesError the step to go on from: not the same in all 2 processes; put" in first


def test_an_error_in_one_process_ends_the_other_in_one_line(
    two_that_differ: Callable[..., list[str]],
    written: Callable[..., Path],
    run_folder: Callable[[str], RunFolder],
) -> None:
    failing = """
if rank:
    batch = NextTokenTask.batch
    def failing(task, step, part, n):
        if step == 2:
            os.write(1, b"1 the disk is full\\n")
            os._exit(1)
        return batch(task, step, part, n)
    NextTokenTask.batch = failing
"""
    folder = run_folder("a")
    first, second = two_that_differ(
        [written("a", "train.checkpoint_every=1")] * 2, [folder.path] * 2, extra=failing
    )
    assert second == "1 the disk is full"
    assert "ProcessesError process 0 of 2 on" in first
    assert "the same command with --resume continues" in first
    assert step_of(list_checkpoints(folder.checkpoints)[0]) == 2


def test_a_number_that_is_not_finite_in_one_process_ends_both_alike(
    two_that_differ: Callable[..., list[str]],
    written: Callable[..., Path],
    run_folder: Callable[[str], RunFolder],
) -> None:
    spoil = """
if rank:
    loss = NextTokenTask.loss
    NextTokenTask.loss = lambda task, model, *batch: loss(task, model, *batch) * (float("nan") if task.spoil else 1)
    batch = NextTokenTask.batch
    def spoiling(task, step, part, n):
        task.spoil = step == 2
        return batch(task, step, part, n)
    NextTokenTask.batch = spoiling
"""
    folder = run_folder("a")
    told = two_that_differ([written("a")] * 2, [folder.path] * 2, extra=spoil)
    assert all("NonFiniteError step 3: the loss is not finite" in each for each in told)
    assert [step_of(path) for path in list_checkpoints(folder.checkpoints)] == [2]


def test_a_gradient_that_other_processes_lack_is_averaged_with_nothing() -> None:
    """As of an expert that no row of theirs reached; what no process has a gradient of gets none."""
    a, b, c = (nn.Parameter(torch.zeros(2)) for _ in range(3))
    a.grad, loss = torch.tensor([2.0, 4.0]), torch.tensor(1.0)

    class Two(Processes):
        """Whatever is averaged here, the other process has a gradient of b alone, and another loss."""

        def all_reduce_mean(self, tensors: Iterable[Tensor]) -> None:
            theirs = [torch.zeros(2), torch.tensor([6.0, 8.0]), torch.zeros(2), torch.tensor(3.0)]
            for own, other in zip(tensors, [*theirs, torch.tensor([0.0, 1.0, 0.0])], strict=True):
                own.copy_((own + other) / 2)

    Two(0, 2).average_gradients([a, b, c], loss)

    assert a.grad.tolist() == [1, 2]
    assert b.grad is not None
    assert b.grad.tolist() == [3, 4]
    assert c.grad is None
    assert loss == 2
