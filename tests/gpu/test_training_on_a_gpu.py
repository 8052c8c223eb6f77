"""Training on a GPU: to the bit where asked for, near the CPU's, compiled, in two processes, within the plan."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from clearformer import load
from clearformer.device import deterministic_kernels, resolve_device, resolve_dtype, seed_kernels
from clearformer.errors import DeviceError
from clearformer.training.config import RunConfig
from clearformer.training.loop import Training, TrainResult
from clearformer.training.planning.memory import training_memory
from clearformer.training.processes.distributed import Processes
from clearformer.training.reporting.report import Reporter
from clearformer.training.setup import open_task
from clearformer.training.store.checkpoint import MODEL, OPTIMIZER
from clearformer.training.store.folder import RunFolder, read_metrics

Train = Callable[..., TrainResult]
Folder = Callable[[str], RunFolder]
Configure = Callable[..., RunConfig]


def losses(folder: RunFolder, key: str = "loss") -> list[float]:
    return [line[key] for line in read_metrics(folder.metrics_file) if key in line]


def kept(folder: RunFolder, step: int) -> dict[str, Tensor]:
    """All tensors of a checkpoint."""
    path = folder.checkpoints / f"step-{step:08d}"
    return load_file(path / MODEL) | {
        f"optimizer {name}": t for name, t in load_file(path / OPTIMIZER).items()
    }


# --- what the device is -----------------------------------------------------------------------------------


def test_the_gpu_is_what_auto_takes(cuda: torch.device) -> None:
    assert resolve_device("auto").type == "cuda"
    assert resolve_dtype("auto", cuda) in ("float32", "bfloat16")
    with deterministic_kernels(cuda):
        large = torch.rand(256, 256, device=cuda)
        assert torch.equal(large @ large, large @ large)  # cuBLAS refuses where its workspace is not told


def test_the_gpu_draws_from_the_seed(device: torch.device) -> None:
    drawn = []
    for _ in range(2):
        seed_kernels(device, 5)
        drawn.append(torch.rand(9, device=device))
    assert torch.equal(*drawn)


# --- to the bit -------------------------------------------------------------------------------------------

REPEATABLE = (
    "train.deterministic=true",
    "train.schedule=constant",
    "train.checkpoint_every=6",
    "model.dropout=0.2",
)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("train.optimizer=muon", "train.ema=0.9", "train.grad_accum_steps=2"),
        ("model.position=rope", "model.norm=rmsnorm", "model.ffn=swiglu"),
        ("model.position=relative", "model.attention.window=5"),
        ("model.attention=linear",),
    ],
    ids=["plain", "muon", "rope", "relative", "linear"],
)
def test_a_resumed_run_goes_on_to_the_bit(
    settings: tuple[str, ...], dtype: str, trained: Train, resumed: Train, run_folder: Folder
) -> None:
    given = (*REPEATABLE, *settings, f"train.dtype={dtype}")
    trained("whole", *given)
    trained("halves", *given, "train.max_steps=6")
    resumed("halves", max_steps=12)

    whole, halves = kept(run_folder("whole"), 12), kept(run_folder("halves"), 12)
    assert whole.keys() == halves.keys()
    assert [name for name in whole if not torch.equal(whole[name], halves[name])] == []


# --- near the CPU -----------------------------------------------------------------------------------------

ENCODER = ("model.family=encoder", "model.embedding_norm=true", "tokenizer=byte")
TASKS: dict[str, tuple[str, ...]] = {
    "next_token": ("train.sample_every=6", "train.sample_tokens=5"),
    "translation": (
        *("data.kind=pairs", "data.path={pairs}", "data.val_fraction=0.1", "model.family=encoder-decoder"),
        *("train.objective=translation", "train.objective.batch_tokens=64", "train.batch_size=32"),
    ),
    "masked": (*ENCODER, "train.objective=masked"),
    "classification": (
        *(*ENCODER, "data.kind=labelled", "data.path={labelled}", "data.val_fraction=0.2"),
        "train.objective=classification",
    ),
}


def write_data(folder: Path) -> dict[str, Path]:
    words = [f"word {n} of {n * n}"[:14] for n in range(60)]
    files = {"pairs": folder / "pairs.tsv", "labelled": folder / "labelled.tsv"}
    files["pairs"].write_text("".join(f"{word}\t{word[::-1]}\n" for word in words))
    rows = (f"{label} {n}\t{label}\n" for n in range(30) for label in ("odd", "even"))
    files["labelled"].write_text("text\tlabel\n" + "".join(rows))
    return files


@pytest.mark.parametrize("task", TASKS)
def test_every_task_learns_what_it_does_on_a_cpu(
    task: str, trained: Train, run_folder: Folder, tmp_path: Path
) -> None:
    files = write_data(tmp_path)
    settings = [setting.format(**files) for setting in TASKS[task]]
    trained("there", *settings, "train.eval_every=4")
    trained("here", *settings, "train.eval_every=4", "train.device=cpu")

    for key in ("loss", "val_loss"):
        there, here = losses(run_folder("there"), key), losses(run_folder("here"), key)
        assert here == pytest.approx(there, rel=2e-3)
        assert len(there) >= 3
    first, *_ = found = losses(run_folder("there"))
    assert min(found[6:]) < first


def test_in_bfloat16_a_run_learns_what_it_does_in_float32(
    trained: Train, run_folder: Folder, cuda: torch.device
) -> None:
    for dtype in ("float32", "bfloat16"):
        trained(dtype, "train.max_steps=80", "train.lr=0.003", f"train.dtype={dtype}")
    exact, rounded = losses(run_folder("float32")), losses(run_folder("bfloat16"))

    assert rounded == pytest.approx(exact, rel=0.05)
    assert exact != rounded
    assert exact[-1] < 0.7 * exact[0]


def test_a_checkpoint_of_the_gpu_goes_on_on_a_cpu_and_back(
    trained: Train, resumed: Train, run_folder: Folder, device: torch.device
) -> None:
    settings = ("train.schedule=constant", "train.optimizer=muon", "train.ema=0.9")
    trained("there", *settings, "train.max_steps=2")
    on_cpu, on_gpu = (load(run_folder("there").path, device=name).model for name in ("cpu", "cuda"))
    for ours, theirs in zip(on_cpu.parameters(), on_gpu.parameters(), strict=True):
        assert theirs.device.type == device.type
        assert torch.equal(ours, theirs.cpu())

    resumed("there", max_steps=4, device="cpu")
    resumed("there", max_steps=6, device="cuda")

    trained("whole", *settings, "train.max_steps=6")
    assert losses(run_folder("there")) == pytest.approx(losses(run_folder("whole")), rel=0.02)


# --- compiled ---------------------------------------------------------------------------------------------


class Told(Reporter):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, message: str) -> None:
        self.lines.append(message)


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("model.position=rope", "model.norm=rmsnorm", "model.ffn=relu2", "train.optimizer=muon"),
        ("model.attention.n_kv_heads=1", "model.ffn=swiglu", "train.grad_accum_steps=2"),
        ("model.attention=linear", "model.ffn=relu"),
    ],
    ids=["plain", "rope", "grouped", "linear"],
)
@pytest.mark.usefixtures("compiler")
def test_compiled_steps_are_the_plain_ones(
    settings: tuple[str, ...], trained: Train, run_folder: Folder
) -> None:
    told = Told()
    trained("plain", *settings, "train.max_steps=5")
    trained("compiled", *settings, "train.max_steps=5", "train.compile=true", reporter=told)

    assert any(line.startswith("compiled in") for line in told.lines), told.lines
    plain, compiled = losses(run_folder("plain")), losses(run_folder("compiled"))
    assert compiled == pytest.approx(plain, rel=1e-3)


@pytest.mark.usefixtures("compiler")
def test_compiled_dropout_is_drawn_from_the_seed(trained: Train, resumed: Train, run_folder: Folder) -> None:
    given = (*REPEATABLE, "train.compile=true", "train.dtype=bfloat16")
    trained("whole", *given)
    trained("halves", *given, "train.max_steps=6")
    resumed("halves", max_steps=12)

    whole, halves = kept(run_folder("whole"), 12), kept(run_folder("halves"), 12)
    assert [name for name in whole if not torch.equal(whole[name], halves[name])] == []


# --- in two processes -------------------------------------------------------------------------------------

ONE_OF_TWO = """
import sys
from pathlib import Path
import torch
from clearformer.config import read_toml, resolve
from clearformer.training.config import RunConfig
from clearformer.training.store.folder import RunFolder
from clearformer.training.loop import train
from clearformer.training.reporting.report import Reporter

torch.set_default_dtype(torch.float64)
config = resolve(RunConfig, read_toml(Path(sys.argv[1])))
print(train(config, RunFolder(Path(sys.argv[2])), Reporter()).progress.step, torch.distributed.get_backend())
"""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def test_two_processes_on_one_gpu_train_the_model_of_one(
    trained: Train, run_folder: Folder, cuda: torch.device
) -> None:
    """NCCL refuses that, so gloo carries the gradients."""
    torch.set_default_dtype(torch.float64)
    try:
        trained("one", "train.grad_accum_steps=2", "train.max_steps=6")
    finally:
        torch.set_default_dtype(torch.float32)
    one, two = run_folder("one"), run_folder("two")
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    shared |= {"MASTER_PORT": str(free_port()), "CUDA_VISIBLE_DEVICES": "0"}
    command = [sys.executable, "-c", ONE_OF_TWO, str(one.config_file), str(two.path)]

    processes = [
        subprocess.Popen(
            command,
            env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    told = [process.communicate(timeout=240) for process in processes]

    assert [process.returncode for process in processes] == [0, 0], told
    assert [out.split() for out, _ in told] == [["6", "gloo"]] * 2
    ours, theirs = kept(one, 6), kept(two, 6)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(theirs[name], tensor, atol=1e-9, rtol=1e-9)


# --- memory -----------------------------------------------------------------------------------------------

SIZED = (
    *("model.d_model=256", "model.n_layers=4", "model.max_seq_len=128", "model.attention.n_heads=4"),
    *("train.batch_size=32", "train.max_steps=3"),
)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "settings",
    [(), ("model.dropout=0.1",), ("train.optimizer=muon", "train.grad_accum_steps=2")],
    ids=["plain", "dropout", "muon"],
)
def test_the_plan_s_memory_is_about_what_is_taken(
    settings: tuple[str, ...],
    dtype: str,
    configure: Configure,
    run_folder: Folder,
    cuda: torch.device,
    request: pytest.FixtureRequest,
) -> None:
    config = configure(*SIZED, *settings, f"train.dtype={dtype}")
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    task, config = open_task(config, cuda, Processes())
    training = Training(config, run_folder("sized"), task, cuda, Processes(), Reporter())
    for _ in range(3):
        training.step()

    taken = torch.cuda.max_memory_allocated() - before
    planned = training_memory(config.model, config.train, "cuda").peak
    name = request.node.callspec.id
    print(
        f"figure: memory of {name}: taken {taken / 1e6:.0f} MB, planned {planned / 1e6:.0f} MB, {planned / taken:.2f}"
    )
    assert 0.6 < planned / taken < 1.6


def test_full_memory_is_told_in_one_line(trained: Train, cuda: torch.device) -> None:
    torch.cuda.empty_cache()
    whole: Any = torch.cuda.get_device_properties(cuda).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 2**27) / whole)
    try:
        with pytest.raises(
            DeviceError, match=r"^CUDA out of memory\. .*; raise train\.grad_accum_steps"
        ) as found:
            trained("large", *SIZED, "train.batch_size=512")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()
    assert "\n" not in str(found.value)
