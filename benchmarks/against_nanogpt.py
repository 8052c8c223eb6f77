"""nanoGPT's recipe for a CPU, trained by nanoGPT and by clearformer, in turn: time a step, and held-out loss.

    python benchmarks/against_nanogpt.py --nanogpt FOLDER [--rounds 5] [--steps 300] [--whole]

FOLDER is a checkout of nanoGPT in which `python data/shakespeare_char/prepare.py` was run; CLEARFORMER_DATA names a
folder with the same text. Each round trains `steps` steps with each, A B A B; the time of a step is the median over a
round's steps after the first 50, as each program reports it. With --whole, each also trains the recipe's 2,000 steps
with three seeds, in float32, and all models' losses are measured on the whole held-out split, in windows of 64 tokens.
With --rounds 0 that alone. Prints one JSON object.
"""

import argparse
import json
import math
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clearformer.bench.training import run_nanogpt
from clearformer.data import TextData
from clearformer.data.text.preparing import prepare
from clearformer.device import processor_name
from clearformer.text import CharTokenizerSpec

WARM_UP = 50
PILOT_STEPS = 120
MOST_HELD_OUT = 200_000
SEEDS = (1, 2, 3)
RECIPE = {
    "device": "cpu",
    "compile": "False",
    "eval_iters": 1,
    "log_interval": 1,
    "block_size": 64,
    "batch_size": 12,
    "n_layer": 4,
    "n_head": 4,
    "n_embd": 128,
    "lr_decay_iters": 2000,
    "dropout": 0.0,
}


def nanogpt(folder: Path, steps: int, out: Path, *recipes: str, compiled: bool = False) -> float:
    """Train with nanoGPT, by further config files too; returns the median milliseconds of a step."""
    settings = RECIPE | {
        "max_iters": steps,
        "eval_interval": steps,
        "out_dir": out,
        "compile": compiled,
        "always_save_checkpoint": True,
    }
    # The line of a step with an evaluation counts the evaluation in: the median leaves it out.
    seconds = run_nanogpt(folder.absolute(), settings, "config/train_shakespeare_char.py", *recipes)
    return 1000 * statistics.median(seconds[WARM_UP:])


def write_seed(seed: int, file: Path) -> str:
    """Write a config file, which train.py runs before it sets its fixed seed, so that it takes this one."""
    file.write_text(f"seeded = torch.manual_seed\ntorch.manual_seed = lambda _: seeded({seed})\n")
    return str(file)


def clearformer(steps: int, runs: Path, name: str, *settings: str) -> float:
    """Train with clearformer; returns the median milliseconds of a step."""
    command = [sys.executable, "-m", "clearformer", "train", "nanogpt-cpu", "--run", name]
    command += [f"train.max_steps={steps}", "train.log_every=1", "train.eval_every=100000", *settings]
    environment = os.environ | {"CLEARFORMER_RUNS": str(runs)}
    subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    lines = map(json.loads, (runs / name / "metrics.jsonl").read_text().splitlines())
    seconds = [0.0] + [line["seconds"] for line in lines]
    times = [1000 * (after - before) for before, after in pairwise(seconds)]
    return statistics.median(times[WARM_UP:])


def loss_of_nanogpt(folder: Path, out: Path, tokens_file: Path) -> float:
    """nanoGPT's model on held-out tokens: windows of 64 without overlap (`clearformer eval --stride 64`)."""
    sys.path.insert(0, str(folder))
    from model import GPT, GPTConfig  # type: ignore[import-not-found]

    # nanoGPT saves with pickle; this file is the one that it has just written.
    checkpoint = torch.load(out / "ckpt.pt", weights_only=False)
    model = GPT(GPTConfig(**checkpoint["model_args"]))
    model.load_state_dict({name.removeprefix("_orig_mod."): w for name, w in checkpoint["model"].items()})
    model.eval()
    tokens = torch.from_numpy(np.fromfile(tokens_file, np.uint16).astype(np.int64))
    total = 0.0
    with torch.no_grad():
        for start in range(0, len(tokens) - 1, 64):
            window = tokens[start : start + 65]
            _, loss = model(window[None, :-1], window[None, 1:])
            total += float(loss) * (len(window) - 1)
    return total / (len(tokens) - 1)


def nanogpt_by_the_clock(
    folder: Path, text: Path, val_fraction: float, seconds: int, scratch: Path
) -> dict[str, Any]:
    """nanoGPT's recipe on the characters of a text, with as many steps as fit into the seconds of its command.

    A short run tells how many; the learning rate falls over just these.
    """
    data = scratch / "data"
    data.mkdir(parents=True)
    dataset = prepare(TextData(path=str(text), val_fraction=val_fraction), CharTokenizerSpec())
    splits = dataset.splits
    # It takes the size of the vocabulary from a pickle, or 50,304; this one is only ever read by it.
    (data / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": dataset.tokenizer.vocab_size}))
    for name, most in (("train", 10_000_000), ("val", MOST_HELD_OUT)):
        tokens = splits[name].read(0, min(len(splits[name]), most))
        np.asarray(tokens).astype(np.uint16).tofile(data / f"{name}.bin")
    settings: dict[str, Any] = {**RECIPE, "dataset": data, "eval_interval": 10**9, "out_dir": scratch / "out"}
    began = time.perf_counter()
    each = run_nanogpt(
        folder.absolute(), settings | {"max_iters": PILOT_STEPS}, "config/train_shakespeare_char.py"
    )
    beside = time.perf_counter() - began - sum(each)
    n_steps = math.floor((seconds - beside) / statistics.median(each[WARM_UP:]))
    settings |= {"max_iters": n_steps, "lr_decay_iters": n_steps, "eval_interval": n_steps}
    settings["always_save_checkpoint"] = True
    began = time.perf_counter()
    run_nanogpt(folder.absolute(), settings, "config/train_shakespeare_char.py")
    taken = time.perf_counter() - began
    loss = loss_of_nanogpt(folder.absolute(), scratch / "out", data / "val.bin")
    return {"bits_per_char": round(loss / math.log(2), 4), "steps": n_steps, "seconds": round(taken, 1)}


def held_out_loss(runs: Path, name: str) -> float:
    """The loss of a run by `clearformer eval`, in windows of 64 without overlap."""
    command = [sys.executable, "-m", "clearformer", "eval", name, "--json", "--dtype", "float32"]
    command += ["--stride", "64"]
    environment = os.environ | {"CLEARFORMER_RUNS": str(runs)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return round(json.loads(done.stdout)["loss"], 4)


def whole(folder: Path, seed: int, scratch: Path) -> dict[str, float]:
    """The held-out losses of both after the recipe's 2,000 steps in float32, in nats a character."""
    out = scratch / f"whole-{seed}"
    nanogpt(folder, 2000, out, write_seed(seed, scratch / f"seed{seed}.py"))
    clearformer(2000, scratch, f"whole{seed}", f"seed={seed}", "train.dtype=float32")
    val_file = folder / "data/shakespeare_char/val.bin"
    return {
        "nanogpt": round(loss_of_nanogpt(folder.absolute(), out, val_file), 4),
        "clearformer": held_out_loss(scratch, f"whole{seed}"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nanogpt", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--whole", action="store_true")
    arguments = parser.parse_args()
    variants: dict[str, Any] = {
        "nanogpt, eager (its recipe)": lambda i: nanogpt(
            arguments.nanogpt, arguments.steps, scratch / f"n{i}"
        ),
        "nanogpt, compiled": lambda i: nanogpt(
            arguments.nanogpt, arguments.steps, scratch / f"c{i}", compiled=True
        ),
        "clearformer, as it decides": lambda i: clearformer(arguments.steps, scratch, f"a{i}"),
        "clearformer, compiled": lambda i: clearformer(
            arguments.steps, scratch, f"d{i}", "train.compile=true"
        ),
        "clearformer, float32, eager": lambda i: clearformer(
            arguments.steps, scratch, f"b{i}", "train.dtype=float32", "train.compile=false"
        ),
    }
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        rounds = [{variant: run(i) for variant, run in variants.items()} for i in range(arguments.rounds)]
        result: dict[str, Any] = {
            "machine": processor_name(),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
        }
        if rounds:
            result |= {
                "steps": arguments.steps,
                "ms_per_step": {v: [round(r[v], 2) for r in rounds] for v in variants},
                "median_ms_per_step": {
                    v: round(statistics.median(r[v] for r in rounds), 2) for v in variants
                },
            }
        if arguments.whole:
            losses = [whole(arguments.nanogpt, seed, scratch) for seed in SEEDS]
            result["held_out_loss_after_2000_steps"] = {"seeds": SEEDS} | {
                name: [each[name] for each in losses] for name in losses[0]
            }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
