"""How time and memory grow: with the text, the parameters, the context and the number of streams.

    python benchmarks/growth.py [--axis AXIS ...] [--rounds 3] [--json FILE] [--figure FILE.png] [--most-text BYTES]

    text        preparing a text for training (a BPE of 1,000 tokens, trained on it); beside it the tokenizers library
    parameters  a training step of 512 tokens, 0.1M to 124M parameters; beside it transformers
    context     a training step of 8,192 tokens in texts of 64 to 8,192; beside it transformers
    streams     32 greedy tokens of 1 to 64 texts at once; beside it transformers

Every point of either side is a process of its own, so that the most memory it took is its own; the sides take turns,
A B A B. A point is the median of the rounds, each the median of a few steps. The formula's line goes through our first
point: FLOPs of a step by `analytic_flops`, bytes of a text, for streams the time of reading the weights and of the
products at the machine's measured rates; of memory what `plan` expects, constant for a text, weights and cache for
streams. `growth` is by how much more than the formula a point grew since the one before; above 1.3 it stands in
`grows_faster`.

Texts are words of Tiny Shakespeare ($CLEARFORMER_DATA) in random order. Prints one JSON object.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clearformer.bench.generation import GREEDY, random_prompts
from clearformer.bench.machine import describe, measure_limits
from clearformer.bench.peers import in_transformers
from clearformer.cost import analytic_flops
from clearformer.data import TextData
from clearformer.decoding import collect, generate_tokens, random_stream
from clearformer.model import ModelConfig, build
from clearformer.model.attention import MultiHead
from clearformer.model.feedforward import GELU
from clearformer.model.positions import Learned
from clearformer.presets import preset
from clearformer.text import BPETokenizerSpec
from clearformer.training.config import RunConfig
from clearformer.training.optim.optimizers import AdamW
from clearformer.training.planning.memory import training_memory
from clearformer.training.processes.distributed import Processes
from clearformer.training.setup import open_task
from clearformer.training.step import TrainStep
from clearformer.training.store.checkpoint import Progress
from clearformer.training.store.state import TrainState
from clearformer.training.tasks.losses import next_token_loss

TOO_FAST = 1.3  # times the formula's growth
SIDES = ("clearformer", "peer")
PEERS = {"text": "tokenizers library", **dict.fromkeys(("parameters", "context", "streams"), "transformers")}
X_LABELS = {
    "text": "bytes of text",
    "parameters": "parameters",
    "context": "context, tokens",
    "streams": "texts at once",
}
CPU = torch.device("cpu")
STEPS, WARM_UP = 3, 2
PARAMETER_TOKENS, CONTEXT_TOKENS, NEW_TOKENS = 512, 8192, 32
SHAPES = {
    100_000: (64, 2, 65),
    790_000: (128, 4, 65),
    4_700_000: (256, 6, 65),
    14_000_000: (384, 8, 65),
    38_000_000: (512, 12, 65),
    124_000_000: (768, 12, 50_257),
}
"""Width, layers and vocabulary by the number of parameters, about."""
SIZES: dict[str, list[int]] = {
    "text": [50_000, 500_000, 5_000_000, 50_000_000, 500_000_000, 4_000_000_000],
    "parameters": list(SHAPES),
    "context": [64, 256, 1024, 4096, 8192],
    "streams": [1, 4, 16, 64],
}
QUICK = {"text": [50_000, 100_000], "parameters": [100_000, 790_000], "context": [64, 128], "streams": [1, 2]}


def gpt2_of(d_model: int, n_layers: int, vocab_size: int, context: int) -> ModelConfig:
    """A GPT-2, which transformers has as well."""
    return ModelConfig(
        vocab_size=vocab_size,
        d_model=d_model,
        n_layers=n_layers,
        max_seq_len=context,
        attention=MultiHead(n_heads=d_model // 64, qkv_bias=True, output_bias=True),
        position=Learned(),
        ffn=GELU(approximate="tanh"),
    )


def model_of(axis: str, size: int) -> ModelConfig:
    """The model of a point."""
    match axis:
        case "parameters":
            return gpt2_of(*SHAPES[size], context=128)
        case "context":
            return gpt2_of(128, 2, 65, context=size)
        case _:
            return gpt2_of(256, 6, 65, context=128)


def tokens_of(axis: str) -> int:
    """Tokens of a training step."""
    return PARAMETER_TOKENS if axis == "parameters" else CONTEXT_TOKENS


def run_of(axis: str, model: ModelConfig, path: Path) -> RunConfig:
    """A run of that model, with AdamW in float32, uncompiled."""
    plain = preset("nanogpt-cpu")
    batch_size = tokens_of(axis) // model.max_seq_len
    train = plain.train.replace(
        batch_size=batch_size, optimizer=AdamW(), dtype="float32", compile=False, device="cpu"
    )
    return plain.replace(model=model, data=TextData(path=str(path)), train=train)


# --- one point of one side, in a process of its own -------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """Seconds, and the bytes by which the process grew at most."""

    seconds: float
    peak_bytes: int


def memory_line(name: str) -> int:
    """A line of /proc/self/status, in bytes."""
    [line] = [each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith(name)]
    return 1024 * int(line.split()[1])


def measured(work: Callable[[], float]) -> Point:
    """A piece of work that returns its seconds, and the memory that it took beyond what was there."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = memory_line("VmRSS")
    return Point(work(), memory_line("VmHWM") - before)


def median_seconds(step: Callable[[], object], steps: int = STEPS) -> float:
    """The median of some steps, after a few that do not count."""
    times = []
    for _ in range(WARM_UP + steps):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return statistics.median(times[WARM_UP:])


def training_step(axis: str, size: int, side: str) -> float:
    """Seconds of a training step: forward, backward, clipping, AdamW."""
    model = model_of(axis, size)
    generator = torch.Generator().manual_seed(1)
    shape = (tokens_of(axis) // model.max_seq_len, model.max_seq_len)
    inputs, targets = (torch.randint(model.vocab_size or 1, shape, generator=generator) for _ in range(2))
    if side == "peer":
        theirs: Any = in_transformers(build(model))[0].train()  # type: ignore[arg-type]
        optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-3, fused=True)

        def step() -> None:
            next_token_loss(theirs(input_ids=inputs, use_cache=False).logits, targets).backward()
            torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

        return median_seconds(step)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "text.txt"
        write_text(path, 50_000 + 20 * model.max_seq_len)
        task, config = open_task(run_of(axis, model.replace(vocab_size=None), path), CPU, Processes())
        config = config.replace(model=model)  # whose vocabulary is not that of the text
        ours = TrainStep(config, task, TrainState.build(config, CPU), CPU, Processes())

        def same_batch(step: int, part: int, n_parts: int) -> tuple[Tensor, ...]:
            assert (step, part, n_parts) == (0, 0, 1)
            return inputs, targets

        ours.read_batch = same_batch
        return median_seconds(lambda: ours.take(Progress()))


def generation(size: int, side: str) -> float:
    """Seconds of NEW_TOKENS greedy tokens of each text."""
    model = build(model_of("streams", size)).eval()
    prompts = random_prompts(65, size)
    if side == "peer":
        theirs: Any = in_transformers(model)[0].eval()  # type: ignore[arg-type]
        tokens = torch.tensor(prompts)
        settings = {
            "max_new_tokens": NEW_TOKENS,
            "min_new_tokens": NEW_TOKENS,
            "do_sample": False,
            "pad_token_id": 0,
        }
        with torch.inference_mode():
            mask = torch.ones_like(tokens)
            return median_seconds(lambda: theirs.generate(input_ids=tokens, attention_mask=mask, **settings))
    streams = [random_stream(0, i) for i in range(size)]
    return median_seconds(
        lambda: collect(generate_tokens(model, prompts, NEW_TOKENS, GREEDY, streams), size)  # type: ignore[arg-type]
    )


def preparing(path: Path, side: str) -> float:
    """Seconds from a text to a tokenizer and the text's tokens on the disk."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        if side == "peer":
            prepare_by_tokenizers(path, Path(folder) / "tokens.u16")
        else:
            os.environ["CLEARFORMER_CACHE"] = folder
            run = run_of("text", model_of("text", 1).replace(vocab_size=None), path)
            open_task(run.replace(tokenizer=BPETokenizerSpec(vocab_size=1000)), CPU, Processes())
        return time.perf_counter() - start


def prepare_by_tokenizers(path: Path, out: Path) -> None:
    """The same by the tokenizers library: train on the file, encode it in pieces of lines."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train(
        [str(path)], trainers.BpeTrainer(vocab_size=1000, initial_alphabet=alphabet, show_progress=False)
    )
    with path.open() as text, out.open("wb") as file:
        while lines := text.readlines(1 << 20):
            for each in tokenizer.encode_batch(lines):
                file.write(np.array(each.ids, dtype=np.uint16).tobytes())


def point(axis: str, size: int, side: str, text: Path | None) -> Point:
    """One point of one side; what the other library takes by being imported is not counted."""
    if side == "peer":
        import_module("tokenizers" if axis == "text" else "transformers.models.gpt2.modeling_gpt2")
    if axis == "text":
        assert text is not None
        return measured(lambda: preparing(text, side))
    if axis == "streams":
        return measured(lambda: generation(size, side))
    return measured(lambda: training_step(axis, size, side))


def write_text(path: Path, n_bytes: int) -> None:
    """Words of Tiny Shakespeare in random order, twelve a line."""
    folder = os.environ.get("CLEARFORMER_DATA")
    if not folder:
        raise SystemExit(
            "CLEARFORMER_DATA names no folder: its shakespeare/input.txt is what texts are made of"
        )
    words = np.array((Path(folder) / "shakespeare" / "input.txt").read_text().split())
    draws, n_written = np.random.default_rng(1), 0
    with path.open("w") as file:
        while n_written < n_bytes:
            drawn = words[draws.integers(len(words), size=(20_000, 12))]
            block = "".join(" ".join(line) + "\n" for line in drawn)[: n_bytes - n_written]
            n_written += file.write(block)


# --- the formula's line -----------------------------------------------------------------------------------


def by_formula(axis: str, size: int, limits: Any) -> tuple[float, float]:
    """Time and bytes of a point up to a factor, which is that of the first."""
    model = model_of(axis, size)
    if axis == "text":
        return float(size), 1.0
    if axis == "streams":
        n_bytes = 4 * sum(p.numel() for p in build(model).parameters())
        flops = sum(analytic_flops(model, 1).forward.values()) * size
        cache = 2 * 4 * model.n_layers * model.d_model * model.max_seq_len * size
        return n_bytes / limits.read + flops / limits.float32, float(n_bytes + cache)
    flops = analytic_flops(model, model.max_seq_len)
    whole = (sum(flops.forward.values()) + sum(flops.backward.values())) / model.max_seq_len
    return whole * tokens_of(axis), float(
        training_memory(model, run_of(axis, model, Path("text")).train).peak
    )


def axis_report(points: dict[int, dict[str, list[Point]]], axis: str, limits: Any) -> dict[str, Any]:
    """Medians of an axis' points, the formula's line, and what grows faster than it."""
    rows, found = [], []
    for size, sides in points.items():
        expected = by_formula(axis, size, limits)
        row: dict[str, Any] = {"size": size}
        for side, measurements in sides.items():
            seconds = [each.seconds for each in measurements]
            row[side] = {
                "seconds": float(f"{statistics.median(seconds):.4g}"),
                "rounds": [float(f"{each:.4g}") for each in seconds],
                "peak_megabytes": round(max(each.peak_bytes for each in measurements) / 2**20, 1),
            }
        row["formula"] = {"seconds": expected[0], "peak_megabytes": expected[1]}
        rows.append(row)
    for name in ("seconds", "peak_megabytes"):
        level = rows[0]["clearformer"][name] / rows[0]["formula"][name]
        for row in rows:
            row["formula"][name] = float(f"{row['formula'][name] * level:.4g}")
        for before, row in pairwise(rows):
            ours = row["clearformer"][name] / max(before["clearformer"][name], 1e-9)
            growth = ours / (row["formula"][name] / before["formula"][name])
            row.setdefault("growth", {})[name] = round(growth, 3)
            if growth > TOO_FAST:
                found.append(f"{name} from {before['size']:,} to {row['size']:,}: {growth:.2f}")
    return {"points": rows, "grows_faster": found}


def draw(found: dict[str, Any], path: Path) -> None:
    """Time above, memory below, an axis a column."""
    from matplotlib.figure import Figure

    axes_found = found["axes"]
    figure = Figure(figsize=(3.2 * len(axes_found), 6), layout="constrained")
    grid = figure.subplots(2, len(axes_found), squeeze=False)
    for column, (axis, report) in enumerate(axes_found.items()):
        for line, (name, unit) in zip(grid, (("seconds", "seconds"), ("peak_megabytes", "MiB")), strict=True):
            place, sizes = line[column], [row["size"] for row in report["points"]]
            for side, style in (("clearformer", "o-"), ("peer", "s--"), ("formula", ":")):
                label = PEERS[axis] if side == "peer" else side
                place.loglog(
                    sizes, [max(row[side][name], 1e-6) for row in report["points"]], style, label=label
                )
            place.set_xlabel(X_LABELS[axis])
            place.set_ylabel(unit)
        grid[0][column].legend(frameon=False)
    figure.savefig(path, dpi=120)


# --- all of it --------------------------------------------------------------------------------------------


def in_a_process(axis: str, size: int, side: str, text: Path | None) -> Point:
    """A point, measured by a new process."""
    command = [sys.executable, __file__, "--point", axis, str(size), side, *([str(text)] if text else [])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = Point(**json.loads(done.stdout.splitlines()[-1]))
    print(
        f"{axis:10} {size:>13,} {side:11} {found.seconds:9.3f} s {found.peak_bytes / 2**20:8.1f} MiB",
        file=sys.stderr,
    )
    return found


def grown(axis: str, sizes: list[int], rounds: int) -> dict[int, dict[str, list[Point]]]:
    """All points of an axis; the sides take turns."""
    points: dict[int, dict[str, list[Point]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            text = Path(folder) / "text.txt" if axis == "text" else None
            if text:
                write_text(text, size)
            points[size] = {side: [] for side in SIDES}
            for _ in range(rounds):
                for side in SIDES:
                    points[size][side].append(in_a_process(axis, size, side, text))
    return points


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--axis", choices=SIZES, nargs="+", default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--most-text", type=int, default=50_000_000, help="bytes; larger texts are left out")
    parser.add_argument("--quick", action="store_true", help="two small sizes of each")
    parser.add_argument("--point", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.point:
        axis, size, side, *text = given.point
        print(json.dumps(vars(point(axis, int(size), side, Path(text[0]) if text else None))))
        return
    limits = measure_limits(CPU)
    found: dict[str, Any] = {"axes": {}, **describe(CPU, limits)}
    for axis in given.axis:
        sizes = [
            size
            for size in (QUICK if given.quick else SIZES)[axis]
            if axis != "text" or size <= given.most_text
        ]
        found["axes"][axis] = axis_report(grown(axis, sizes, given.rounds), axis, limits)
    print(json.dumps(found, indent=1))
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    if given.figure:
        draw(found, given.figure)


if __name__ == "__main__":
    main()
