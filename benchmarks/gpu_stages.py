"""The stages of benchmarks/gpu.py: what is measured on a GPU, and how large it is there and in a dry run."""

import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
NANOGPT_LOSS = 1.4697  # what its README reports of this recipe, by windows of 256 characters


class Skipped(Exception):
    """A stage lacks something that was not given."""


@dataclass(frozen=True)
class Scale:
    """How large everything is.

    Attributes:
        every: Settings laid over every run.
        shapes: Settings of the models trained, by stage.
        recipe: Settings laid over nanoGPT's recipe.
        rounds: How often each side is measured.
        steps: Training steps in each measurement.
        eval_every: Steps between evaluations of the recipe.
        target: The held-out loss that it is to reach.
        decoders: Settings of the models that write, by name.
        n_new: Tokens they add.
        streams: Texts at once.
        dtype: Of the models that write.
        compiled: Whether they are compiled.
        peers: Whom to measure beside: those of these that are installed.
    """

    every: tuple[str, ...]
    shapes: dict[str, tuple[str, ...]]
    recipe: tuple[str, ...]
    rounds: int
    steps: int
    eval_every: int
    target: float
    decoders: dict[str, tuple[str, ...]]
    n_new: int
    streams: tuple[int, ...]
    dtype: str
    compiled: bool
    peers: tuple[str, ...]


FULL = Scale(
    every=("data.name=shakespeare", "train.device=cuda", "train.dtype=bfloat16", "train.compile=true"),
    shapes={
        "train-124m": ("train.batch_size=128", "train.grad_accum_steps=4"),
        "train-1.5b": (
            *("model.d_model=1600", "model.n_layers=48", "model.attention.n_heads=25"),
            *("train.batch_size=32", "train.grad_accum_steps=4"),
        ),
    },
    recipe=(),
    rounds=3,
    steps=10,
    eval_every=125,
    target=NANOGPT_LOSS,
    decoders={
        "minigpt": ("minigpt", "model.vocab_size=65"),
        "124M": ("gpt2", "model.vocab_size=50257"),
    },
    n_new=240,
    streams=(1, 16, 64),
    dtype="bfloat16",
    compiled=True,
    peers=("transformers",),
)

TINY = ("model.d_model=8", "model.n_layers=1", "model.attention.n_heads=2", "model.max_seq_len=16")
DRY = Scale(
    every=("tokenizer=char", "train.device=cpu", "train.dtype=float32", "train.compile=false", *TINY),
    shapes=dict.fromkeys(FULL.shapes, ("train.batch_size=4", "train.grad_accum_steps=2")),
    recipe=("train.batch_size=4", "train.max_steps=4"),
    rounds=1,
    steps=2,
    eval_every=2,
    target=99.0,
    decoders={name: (*preset, *TINY, "model.vocab_size=19") for name, preset in FULL.decoders.items()},
    n_new=4,
    streams=(1, 2),
    dtype="float32",
    compiled=False,
    peers=(),
)


@dataclass(frozen=True)
class Options:
    """What the command line says: the sizes, the seed, the result's file, nanoGPT's folder."""

    scale: Scale
    seed: int
    nanogpt: Path | None
    scratch: Path

    @property
    def dry(self) -> bool:
        return self.scale is DRY

    @property
    def device(self) -> str:
        return "cpu" if self.dry else "cuda"


# --- the stages -------------------------------------------------------------------------------------------


def run_tests(options: Options) -> dict[str, Any]:
    """How the tests that need a GPU came out.

    They are run without the checks of shapes that the other tests make, for torch's compiler traces no such function.
    """
    report = options.scratch / "tests.xml"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--confcutdir={ROOT / 'tests/gpu'}",
    ]
    done = subprocess.run(
        [*command, f"--junitxml={report}", "-o", "junit_logging=system-out", str(ROOT / "tests/gpu")],
        cwd=ROOT,
        stdout=sys.stderr,
        check=False,
    )
    if not report.is_file():
        raise RuntimeError(f"pytest wrote no report (exit status {done.returncode})")
    outcome = outcome_of_tests(report)
    if not outcome["failed"] and not outcome["skipped" if options.dry else "passed"]:
        raise RuntimeError(f"no test was run (pytest's exit status {done.returncode})")
    return outcome


def outcome_of_tests(report: Path) -> dict[str, Any]:
    """The counts of a report, who failed, and what the tests printed to be kept."""
    cases = list(ElementTree.parse(report).iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    told = [
        line for case in cases for out in case.iter("system-out") for line in (out.text or "").splitlines()
    ]
    return {
        "passed": len(cases) - len(failed) - len(skipped),
        "failed": len(failed),
        "skipped": len(skipped),
        "which_failed": [f"{case.get('classname')}::{case.get('name')}" for case in failed],
        "told": [line for line in told if line.startswith("figure: ")],
    }


def train_shape(options: Options, stage: str) -> dict[str, Any]:
    """Tokens a second of training a model of GPT-2's kind; of the small one beside others."""
    from clearformer.bench.training import bench_training

    beside = [peer for peer in options.scale.peers if installed(peer)] if stage == "train-124m" else []
    limits = limits_of(options)
    config = run_of(options, "gpt2", *options.scale.shapes[stage])
    scale = options.scale
    found = bench_training(config, beside or None, scale.rounds, scale.steps, limits, tell)
    return {"machine": machine_of(options, limits), "comparison": found.to_json()}


def train_shakespeare(options: Options) -> dict[str, Any]:
    """Train nanoGPT's recipe for a GPU to its end; when its held-out loss was first as low as nanoGPT's.

    The loss is of the whole held-out split, by windows one after the other, as nanoGPT's are of one length. Seconds are
    those of the steps; compiling and evaluating are not counted in.
    """
    import torch

    from clearformer.device import resolve_device
    from clearformer.evaluation import evaluate_split
    from clearformer.model import Decoder
    from clearformer.training.loop import Training
    from clearformer.training.processes.distributed import Processes
    from clearformer.training.reporting.report import Reporter
    from clearformer.training.setup import open_task
    from clearformer.training.store.folder import RunFolder
    from clearformer.training.tasks import NextTokenTask

    limits = limits_of(options)
    config = run_of(options, "shakespeare-gpu", *options.scale.recipe)
    device, processes = resolve_device(options.device), Processes()
    task, config = open_task(config, device, processes)
    assert isinstance(task, NextTokenTask)
    training = Training(config, RunFolder(options.scratch / "run"), task, device, processes, Reporter())
    assert isinstance(training.model, Decoder)
    start = time.perf_counter()
    training.prepare_steps()
    compile_seconds = time.perf_counter() - start
    curve = []
    while not training.finished():
        training.step()
        if training.finished() or training.progress.step % options.scale.eval_every == 0:
            measured = evaluate_split(
                training.model,
                task.dataset.splits["val"],
                stride=config.model.max_seq_len,
                dtype=getattr(torch, config.train.dtype),
            )
            curve.append(
                [training.progress.step, round(training.progress.seconds, 2), round(measured.loss, 4)]
            )
            tell(f"held-out loss at step {training.progress.step}", measured.loss)
    reached = next((point for point in curve if point[2] <= options.scale.target), None)
    return {
        "machine": machine_of(options, limits),
        "target": options.scale.target,
        "reached_at_step": reached and reached[0],
        "reached_after_seconds": reached and reached[1],
        "best_loss": min(loss for _, _, loss in curve),
        "steps": training.progress.step,
        "seconds": round(training.progress.seconds, 2),
        "tokens_per_second": round(training.progress.tokens / training.progress.seconds),
        "compile_seconds": round(compile_seconds, 1),
        "curve": curve,
    }


def decode(options: Options) -> dict[str, Any]:
    """Greedy tokens a second of two models with random weights."""
    import torch

    from clearformer.bench.generation import bench_generation
    from clearformer.model import build
    from clearformer.resolving import resolve_run

    limits, scale = limits_of(options), options.scale
    beside = [peer for peer in scale.peers if installed(peer)]
    models = {}
    for name, settings in scale.decoders.items():
        torch.manual_seed(options.seed)
        model = build(resolve_run(list(settings), None).model).to(options.device).eval()
        found = bench_generation(
            model,
            beside or None,
            scale.rounds,
            scale.n_new,
            list(scale.streams),
            scale.dtype,
            limits,
            tell,
            scale.compiled,
        )
        models[name] = [comparison.to_json() for comparison in found]
    return {"machine": machine_of(options, limits), "models": models}


def beside_nanogpt(options: Options, preset: str, *settings: str) -> dict[str, Any]:
    """Training beside nanoGPT, eager and compiled."""
    if options.nanogpt is None:
        raise Skipped("no folder was given: --nanogpt FOLDER, a checkout of nanoGPT")
    from clearformer.bench.training import bench_training

    limits, config = limits_of(options), run_of(options, preset, *settings)
    against = [f"nanogpt={options.nanogpt}"]
    found = bench_training(config, against, 1, options.scale.steps, limits, tell)
    return {"machine": machine_of(options, limits), "comparison": found.to_json()}


STAGES: dict[str, Callable[[Options], dict[str, Any]]] = {
    "tests": run_tests,
    "train-124m": lambda options: train_shape(options, "train-124m"),
    "train-1.5b": lambda options: train_shape(options, "train-1.5b"),
    "shakespeare": train_shakespeare,
    "decode": decode,
    "nanogpt": lambda options: beside_nanogpt(options, "shakespeare-gpu", *options.scale.recipe),
    "nanogpt-124m": lambda options: beside_nanogpt(options, "gpt2", *options.scale.shapes["train-124m"]),
}


# --- what stages share ------------------------------------------------------------------------------------


def run_of(options: Options, preset: str, *settings: str) -> Any:
    """A run's configuration at the scale of the command."""
    from clearformer.resolving import resolve_run

    text = (f"data.path={made_up_text(options.scratch)}", "data.name=none") if options.dry else ()
    return resolve_run([preset, *options.scale.every, *text, *settings, f"seed={options.seed}"], None)


def made_up_text(folder: Path) -> Path:
    file = folder / "text.txt"
    if not file.exists():
        file.write_text("the quick brown fox jumps over the lazy dog\n" * 40)
    return file


def limits_of(options: Options) -> Any:
    """What the machine can do at most; made up where nothing is measured in earnest."""
    import torch

    from clearformer.bench.machine import Limits, measure_limits

    if options.dry:
        return Limits(float32=1e12, bfloat16=2e12, copy=1e12, read=1e12, peak=4e12, peak_float32=2e12)
    return measure_limits(torch.device(options.device))


def machine_of(options: Options, limits: Any) -> dict[str, Any]:
    """The machine, its limits and what is installed."""
    import torch

    from clearformer.bench.machine import describe

    return describe(torch.device(options.device), limits)


def installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def tell(name: str, figure: float) -> None:
    print(f"  {name}: {figure:,.5g}", file=sys.stderr, flush=True)
