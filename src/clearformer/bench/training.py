"""Speed of a run's training steps, compared with batches of the same size in the loops of other packages."""

import pickle
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from clearformer.bench.machine import Limits
from clearformer.bench.peers import absence, asked_for, in_transformers, like_gpt2, with_version
from clearformer.bench.rounds import OURS, Comparison, Contender, Figures, interleave, with_as_many_threads
from clearformer.cost.rates import mfu
from clearformer.device import autocast, resolve_device, synchronize
from clearformer.errors import UserError
from clearformer.model import build
from clearformer.model.config import ModelConfig
from clearformer.model.feedforward import GELU
from clearformer.model.norms import LayerNorm
from clearformer.training.config import RunConfig
from clearformer.training.loop import Training
from clearformer.training.planning.memory import training_memory
from clearformer.training.planning.plan import count_flops
from clearformer.training.processes.distributed import Processes
from clearformer.training.reporting.report import Reporter
from clearformer.training.setup import open_task
from clearformer.training.store.folder import RunFolder
from clearformer.training.tasks import NextTokenTask
from clearformer.training.tasks.losses import next_token_loss

WARM_UP = 5
TOKENS_FOR_NANOGPT = 10_000_000  # enough to draw batches from


def bench_training(
    config: RunConfig,
    against: list[str] | None,
    rounds: int,
    steps: int,
    limits: Limits,
    on_figure: Callable[[str, float], None] = lambda *_: None,
) -> Comparison:
    """Compare the tokens per second of training steps: batch, forward, backward, clipping, optimizer.

    Args:
        config: The run; settings left open are resolved as `train` resolves them.
        against: Peers, as `asked_for` takes them.
        rounds: How often each side is measured.
        steps: Steps in each measurement, after a few that do not count; the figure is from their median.
        limits: The machine's limits, to relate the figures to.

    Raises:
        UserError: the run is not a language model, or a peer is unknown.
    """
    if not config.train.objective.continues_prompts:
        raise UserError("bench train compares language models; choose a preset of one, such as nanogpt-cpu")
    asked = asked_for(against, tuple(SIDES))
    device = resolve_device(config.train.device)
    with tempfile.TemporaryDirectory() as scratch:
        ours = _Ours(config, device, Path(scratch))
        sides, absent = [Contender(OURS, lambda: ours.tokens_per_second(steps))], []
        for name, folder in asked.items():
            missing = absence(name, folder)
            if missing:
                absent.append(missing)
                continue
            sides += SIDES[name](_Match(ours, steps, Path(scratch), folder))
        figures = interleave(sides, rounds, on_figure)
    return Comparison(
        f"training steps of {ours.tokens_per_step:,} tokens, {_sizes(ours.config.model)}",
        "tokens/s",
        True,
        figures,
        absent,
        _facts(ours, figures[0], limits),
    )


def _sizes(model: ModelConfig) -> str:
    return f"{model.n_layers} layers, d_model {model.d_model}, context {model.max_seq_len}"


def _facts(ours: "_Ours", figures: Figures, limits: Limits) -> dict[str, Any]:
    """Return our share of the machine's rate, and the memory that our side takes."""
    flops = count_flops(ours.config.model, ours.config.train.n_passes)
    per_token = flops.forward + flops.backward
    dtype = ours.config.train.dtype
    matrix_rate = getattr(limits, dtype)
    peak = limits.peak if dtype == "bfloat16" else limits.peak_float32
    return {
        "n_parameters": sum(p.numel() for p in ours.training.model.parameters()),
        "dtype": dtype,
        "compiled": ours.config.train.compile,
        "compile_seconds": round(ours.compile_seconds, 1),
        "ms_per_step": float(f"{1000 * ours.tokens_per_step / figures.median:.4g}"),
        "flops_per_token": per_token,
        "of_measured_matrix_rate": round(per_token * figures.median / matrix_rate, 4),
        "mfu": mfu(per_token, figures.median, peak),
        **_memory(ours),
    }


def _memory(ours: "_Ours") -> dict[str, int]:
    """Return the peak memory of our side on a GPU and the one that `plan` expects; nothing for a CPU."""
    if ours.peak_bytes is None:
        return {}
    planned = training_memory(ours.config.model, ours.config.train, ours.device.type).peak
    return {"peak_bytes": ours.peak_bytes, "planned_bytes": planned}


# --- ours -------------------------------------------------------------------------------------------------


class _Ours:
    """A run that is set up as `train` sets it up, and takes steps on request."""

    def __init__(self, config: RunConfig, device: torch.device, scratch: Path) -> None:
        forget_peak(device)
        processes = Processes.join(device)
        task, self.config = open_task(config, device, processes)
        assert isinstance(task, NextTokenTask)
        self.task, self.device = task, device
        folder = RunFolder(scratch / OURS)
        self.training = Training(self.config, folder, task, device, processes, Reporter())
        start = time.perf_counter()
        self.training.prepare_steps()
        self.compile_seconds = time.perf_counter() - start if self.config.train.compile else 0.0
        self.training.step()  # creates the optimizer's state; no peer has taken memory yet
        self.peak_bytes = peak_of(device)

    @property
    def tokens_per_step(self) -> int:
        return self.task.n_tokens(0)

    def tokens_per_second(self, steps: int) -> float:
        return self.tokens_per_step / _median_step(self.training.step, steps)

    def parts_of_batch(self, step: int) -> list[list[Tensor]]:
        """Return the parts of a step's batch, inputs and targets [B T] each."""
        return [
            self.training.train_step.micro_batch(step, part)
            for part in range(self.config.train.grad_accum_steps)
        ]


def forget_peak(device: torch.device) -> None:
    """Reset the peak that `peak_of` reads."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak_of(device: torch.device) -> int | None:
    """Return the most bytes that tensors have taken on a GPU at once; None for any other device."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def _median_step(step: Callable[[], object], steps: int) -> float:
    """Return the median seconds of some steps, after a few that do not count."""
    times = []
    for _ in range(WARM_UP + steps):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return statistics.median(times[WARM_UP:])


# --- others ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Match:
    """The setup of a comparison: our run, the steps of a measurement, a scratch folder, the peer's checkout."""

    ours: _Ours
    steps: int
    scratch: Path
    folder: str | None


class _PlainLoop:
    """Another package's model in the usual loop of its users: AdamW, clipping, the same batches and dtypes."""

    def __init__(
        self, ours: _Ours, model: nn.Module, logits_of: Callable[[nn.Module, Tensor], Tensor]
    ) -> None:
        self.ours, self.model, self.logits_of = ours, model.to(ours.device).train(), logits_of
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), fused=True)
        self.n_steps = 0

    def step(self) -> None:
        parts = self.ours.parts_of_batch(self.n_steps)
        for inputs, targets in parts:
            with autocast(self.ours.device, self.ours.config.train.dtype):
                loss = next_token_loss(self.logits_of(self.model, inputs), targets) / len(parts)
            loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        synchronize(self.ours.device)
        self.n_steps += 1

    def tokens_per_second(self, steps: int) -> float:
        return self.ours.tokens_per_step / _median_step(self.step, steps)


def _transformers(match: _Match) -> list[Contender]:
    model, note = in_transformers(build(match.ours.config.model))  # type: ignore[arg-type]
    loop = _PlainLoop(match.ours, model, lambda m, inputs: m(input_ids=inputs, use_cache=False).logits)
    return [Contender(with_version("transformers"), lambda: loop.tokens_per_second(match.steps), note)]


def _litgpt(match: _Match) -> list[Contender]:
    from litgpt import GPT, Config  # type: ignore[import-not-found]

    model = like_gpt2(match.ours.config.model)
    config = Config(
        name="bench",
        block_size=model.max_seq_len,
        vocab_size=model.vocab_size,
        padded_vocab_size=model.vocab_size,
        n_layer=model.n_layers,
        n_head=getattr(model.attention, "n_heads", 1),
        n_embd=model.d_model,
    )
    loop = _PlainLoop(match.ours, GPT(config), lambda m, inputs: m(inputs))
    note = "a GPT-NeoX of the same sizes, as its Config makes it" + (
        "; without dropout" if model.dropout else ""
    )
    return [Contender(with_version("litgpt"), lambda: loop.tokens_per_second(match.steps), note)]


def _nanogpt(match: _Match) -> list[Contender]:
    """Set up nanoGPT's unchanged train.py, eager and compiled, on the tokens that our run reads."""
    assert match.folder is not None
    data = write_for_nanogpt(match.ours.task, match.scratch / "nanogpt-data")
    settings = nanogpt_settings(match.ours.config, match.ours.device)
    settings |= {"dataset": data, "max_iters": WARM_UP + match.steps}
    notes = [] if is_nanogpt(match.ours.config.model) else ["its own model, of the same sizes"]
    if match.ours.device.type == "cpu" and match.ours.config.train.dtype != "float32":
        notes.append("in float32, as its train.py always is on a CPU")
    if match.ours.device.type == "cuda" and match.ours.config.train.dtype == "float32":
        notes.append("with products in TF32, which its train.py allows")
    note = "; ".join(notes)
    folder = Path(match.folder)

    def tokens_per_second(compiled: bool) -> float:
        out = match.scratch / f"nanogpt-{compiled}"
        seconds = run_nanogpt(folder, settings | {"compile": compiled, "out_dir": out})
        return match.ours.tokens_per_step / statistics.median(seconds[WARM_UP:])

    forms = (("nanogpt", False), ("nanogpt, compiled", True))
    return [Contender(name, lambda c=compiled: tokens_per_second(c), note) for name, compiled in forms]


def is_nanogpt(model: ModelConfig) -> bool:
    """Whether a model equals nanoGPT's model of the same sizes: a GPT-2, with biases or without."""
    biased = _is_biased(model)
    gelu = GELU(d_ff=getattr(model.ffn, "d_ff", None), bias=biased)
    plain = like_gpt2(model)
    attention = plain.attention.replace(qkv_bias=biased, output_bias=biased)
    own = plain.replace(attention=attention, ffn=gelu, norm=LayerNorm(bias=biased), init=model.init)
    return own == model


def _is_biased(model: ModelConfig) -> bool:
    return bool(getattr(model.ffn, "bias", True))


def nanogpt_settings(config: RunConfig, device: torch.device) -> dict[str, Any]:
    """Translate our run's settings to those of nanoGPT's train.py."""
    model, train = config.model, config.train
    return {
        "device": device.type,
        "dtype": train.dtype,
        "block_size": model.max_seq_len,
        "batch_size": train.batch_size // train.grad_accum_steps,
        "gradient_accumulation_steps": train.grad_accum_steps,
        "n_layer": model.n_layers,
        "n_head": getattr(model.attention, "n_heads", 1),
        "n_embd": model.d_model,
        "dropout": model.dropout,
        "bias": _is_biased(model),
        "eval_iters": 1,
        "eval_interval": 1_000_000,
        "log_interval": 1,
    }


def write_for_nanogpt(task: NextTokenTask, folder: Path) -> Path:
    """Write the first tokens of our run where nanoGPT reads them.

    Raises:
        UserError: the vocabulary is larger than nanoGPT's 16-bit ids allow.
    """
    n_tokens = task.tokenizer.vocab_size
    if n_tokens > 2**16:
        raise UserError(
            f"--against nanogpt: it has ids for {2**16:,} tokens, but the tokenizer has {n_tokens:,}"
        )
    folder.mkdir()
    splits = task.dataset.splits
    for name, split in (("train", splits["train"]), ("val", splits.get("val", splits["train"]))):
        tokens = split.read(0, min(len(split), TOKENS_FOR_NANOGPT))
        tokens.astype(np.uint16).tofile(folder / f"{name}.bin")
    # nanoGPT takes the vocabulary's size from a pickle, or else 50,304; nothing else reads this file.
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": n_tokens}))
    return folder


def run_nanogpt(folder: Path, settings: dict[str, Any], *recipes: str) -> list[float]:
    """Run nanoGPT's train.py with settings laid over its config files `recipes`; return the seconds of each step.

    Raises:
        UserError: it failed; the message has the last line of its output.
    """
    command = [sys.executable, "train.py", *recipes, *(f"--{key}={value}" for key, value in settings.items())]
    done = subprocess.run(command, cwd=folder, env=with_as_many_threads(), capture_output=True, text=True)
    if done.returncode:
        raise UserError(
            f"nanoGPT's train.py in {folder} failed: {(done.stderr.strip() or '?').splitlines()[-1]}"
        )
    return [
        float(ms) / 1000 for ms in re.findall(r"^iter \d+: .* time ([\d.]+)ms", done.stdout, re.MULTILINE)
    ]


SIDES: dict[str, Callable[[_Match], list[Contender]]] = {
    "nanogpt": _nanogpt,
    "transformers": _transformers,
    "litgpt": _litgpt,
}
