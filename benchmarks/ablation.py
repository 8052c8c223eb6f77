"""What each ingredient of the preset `auto` gains: the held-out loss without it, after the same seconds of training.

    python benchmarks/ablation.py [--seconds 60] [--seeds 3] [--jobs 2] [--json FILE]

CLEARFORMER_DATA names the folder with `shakespeare/input.txt`. Each run has one thread; as many run side by side as
--jobs says, in an order that spreads what is compared over the whole time: all ingredients with seed 1, then all
with seed 2, ... Loss: the whole held-out split, at the stride of `clearformer eval`. The model is what `auto` chooses
on this machine for that time, its shape written into every run. Prints one JSON object.
"""

import argparse
import json
import statistics
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from training_runs import run_and_evaluate

from clearformer.resolving import resolve_run
from clearformer.training.config import RunConfig

# Without each: what stands in its place is GPT-2's choice, or none. No other setting is tuned to that; AdamW's rate is
# twice nanoGPT's, for half its steps.
WITHOUT = {
    "nothing left out": [],
    "bfloat16": ["train.dtype=float32"],
    "the compiled step": ["train.compile=false"],
    "Muon (AdamW)": ["train.optimizer.kind=adamw", "train.lr=0.002"],
    "decay from early on (cosine)": ["train.schedule.kind=cosine"],
    "RoPE (learned)": ["model.position.kind=learned"],
    "QK-norm": ["model.attention.qk_norm.kind=none"],
    "squared ReLU (GELU)": ["model.ffn.kind=gelu"],
    "RMSNorm (LayerNorm)": ["model.norm.kind=layernorm"],
    "outputs at zero": ["model.init.zero_outputs=false"],
    "the soft cap": ["model.logit_soft_cap=none"],
}


def main() -> None:
    """Run all, print all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    shape = shape_of_auto(options.seconds)
    jobs = [(what, seed) for seed in range(1, options.seeds + 1) for what in WITHOUT]
    with tempfile.TemporaryDirectory() as runs, ThreadPoolExecutor(options.jobs) as pool:
        losses = list(pool.map(lambda job: trained(job[0], job[1], shape, Path(runs)), jobs))
    found: dict[str, list[float]] = {what: [] for what in WITHOUT}
    for (what, _), loss in zip(jobs, losses, strict=True):
        found[what].append(loss)
    report = {"seconds": options.seconds, "threads": 1, "at_once": options.jobs, "shape": shape} | {
        "without": {what: summary(values, found["nothing left out"]) for what, values in found.items()}
    }
    text = json.dumps(report, indent=1)
    if options.json:
        options.json.write_text(text + "\n")
    print(text)


def shape_of_auto(seconds: float) -> list[str]:
    """What `auto` chooses, as settings: every run has the same, whatever the machine's rate is at its start."""
    chosen: RunConfig = resolve_run(["auto", "data.name=shakespeare", f"train.max_seconds={seconds}"], None)
    model, train = chosen.model, chosen.train
    return [
        f"model.d_model={model.d_model}",
        f"model.n_layers={model.n_layers}",
        f"model.max_seq_len={model.max_seq_len}",
        f"model.attention.n_heads={model.attention.heads(model.d_model)[0]}",
        f"model.dropout={model.dropout}",
        f"train.batch_size={train.batch_size}",
        f"train.lr={train.lr}",
        f"train.optimizer.adam_lr={getattr(train.optimizer, 'adam_lr', train.lr)}",
        f"train.max_seconds={seconds}",
    ]


def trained(what: str, seed: int, shape: list[str], runs: Path) -> float:
    """The held-out loss of one run."""
    settings = ["data.name=shakespeare", f"seed={seed}", "train.compile=true", "train.dtype=bfloat16", *shape]
    name = f"{list(WITHOUT).index(what)}-{seed}"
    loss = run_and_evaluate(["quick", *settings, *WITHOUT[what]], name, runs, n_threads=1)["loss"]
    print(f"  without {what}, seed {seed}: {loss:.4f}", file=sys.stderr)
    return loss


def summary(losses: list[float], whole: list[float]) -> dict[str, Any]:
    """The losses, their mean, and what the ingredient gains: seed by seed, for the seeds' data are the same."""
    gains = [without - with_it for without, with_it in zip(losses, whole, strict=True)]
    spread = statistics.stdev(gains) if len(gains) > 1 else 0.0
    return {
        "losses": [round(loss, 4) for loss in losses],
        "mean": round(statistics.mean(losses), 4),
        "gain": round(statistics.mean(gains), 4),
        "gain_sd": round(spread, 4),
    }


if __name__ == "__main__":
    main()
