"""What changes of the preset `multi30k` gain on the validation pairs, after equal time on one core; never on the test.

    python benchmarks/translation_ablation.py FOLDER --json FILE [--cpu-seconds 2400] [--seeds 3] [--only NAME ...]

CLEARFORMER_DATA names the folder with `multi30k`; English to German. Each variant takes as many steps as the seconds
of the processor are enough for: those of a step are measured first, step by step of all variants in turn, so that what
else the machine does weighs on all of them alike. The learning rate falls to 0 within those steps. Then the loss of all
validation pairs, and BLEU and chrF of their translations by beam search of 5 and greedily, by the last checkpoint.

Runs lie in FOLDER, all variants of the first seed first. The JSON file is written after each run; the same command goes
on where it was ended. Variants are compared at equal time alone: what needs more of it to pay is at a disadvantage.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from clearformer.device import keep_freed_memory
from clearformer.files import write_file
from clearformer.presets import resolve_run
from clearformer.training.processes.distributed import Processes
from clearformer.training.setup import open_task
from clearformer.training.step import TrainStep
from clearformer.training.store.checkpoint import Progress
from clearformer.training.store.state import TrainState

PRESET = [
    "multi30k",
    "data.languages=en-de",
    "train.device=cpu",
    "train.compile=false",
    "train.dtype=bfloat16",
]
VARIANTS = {
    "preset": [],
    "BPE dropout 0.1": ["train.objective.bpe_dropout=0.1"],
    "R-Drop 5": ["train.r_drop=5"],
    "BPE dropout 0.1 and R-Drop 5": ["train.objective.bpe_dropout=0.1", "train.r_drop=5"],
    "vocabulary of 5,000": ["tokenizer.vocab_size=5000"],
    "6 + 2 layers": ["model.n_layers=6", "model.n_decoder_layers=2"],
    "dropout 0.3": ["model.dropout=0.3"],
    "BPE dropout 0.1, vocabulary of 5,000": ["train.objective.bpe_dropout=0.1", "tokenizer.vocab_size=5000"],
}
MEASURED_STEPS, WARMUP_PART = 15, 0.04
BEAMS = 5


def main() -> None:
    """Measure the steps, then train and evaluate what the JSON file has not."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--cpu-seconds", type=float, default=2400)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    report = read_report(options.json, options.cpu_seconds)
    if unmeasured := [name for name in options.only if name not in report["cpu_seconds_per_step"]]:
        report["cpu_seconds_per_step"] |= seconds_of_steps(unmeasured)
        save(report, options.json)
    done = {(run["variant"], run["seed"]) for run in report["runs"]}
    for seed in range(1, options.seeds + 1):
        for variant in options.only:
            if (variant, seed) not in done:
                n_steps = round(options.cpu_seconds / report["cpu_seconds_per_step"][variant])
                report["runs"].append(trained_and_measured(variant, seed, n_steps, options.folder))
                report["summary"] = summary(report["runs"])
                save(report, options.json)
    print(json.dumps(report["summary"], indent=1))


def read_report(file: Path, cpu_seconds: float) -> dict[str, Any]:
    """The report so far, or a new one; SystemExit where that is of another time."""
    report = {
        "machine": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "cpu_seconds": cpu_seconds,
        "beams": BEAMS,
        "variants": VARIANTS,
        "cpu_seconds_per_step": {},
        "runs": [],
        "summary": {},
    }
    if file.exists():
        report |= json.loads(file.read_text())
    if report["cpu_seconds"] != cpu_seconds:
        raise SystemExit(
            f"{file}: is of {report['cpu_seconds']:g} seconds a run; give another file for other times"
        )
    return report


def save(report: dict[str, Any], file: Path) -> None:
    write_file(file, (json.dumps(report, indent=1) + "\n").encode())


def seconds_of_steps(variants: list[str]) -> dict[str, float]:
    """The processor's seconds of a step of each variant, the mean over some, taken in turn."""
    keep_freed_memory()
    steps = {name: first_steps(VARIANTS[name]) for name in variants}
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(MEASURED_STEPS + 2):
        for name, step in steps.items():
            before = time.process_time()
            step.take(Progress(step=number))
            seconds[name].append(time.process_time() - before)
    return {name: statistics.mean(each[2:]) for name, each in seconds.items()}


def first_steps(settings: list[str]) -> TrainStep:
    """What takes the steps of a variant."""
    device = torch.device("cpu")
    config = resolve_run([*PRESET, *settings], None)
    processes = Processes.join(device)
    task, config = open_task(config, device, processes)
    return TrainStep(config, task, TrainState.build(config, device), device, processes)


def trained_and_measured(variant: str, seed: int, n_steps: int, runs: Path) -> dict[str, Any]:
    """Train a variant for so many steps, from where it is, and measure it on the validation pairs."""
    name = "-".join([*"".join(c if c.isalnum() else " " for c in variant).split(), str(seed)])
    settings = [
        f"seed={seed}",
        f"train.max_steps={n_steps}",
        f"train.warmup_steps={round(WARMUP_PART * n_steps)}",
        "train.keep_last=1",
        "train.snapshot_megabytes=none",
    ]
    before = os.times().children_user
    clearformer("train", *PRESET, *VARIANTS[variant], *settings, "--run", name, "--resume", runs=runs)
    seconds = os.times().children_user - before
    searched, greedy = (
        json.loads(clearformer("eval", name, "--split", "val", "--beams", str(beams), "--json", runs=runs))
        for beams in (BEAMS, 1)
    )
    metrics = json.loads((runs / name / "metrics.jsonl").read_text().splitlines()[-1])
    found = {
        "variant": variant,
        "seed": seed,
        "steps": n_steps,
        "cpu_seconds": round(seconds, 1),
        "train_loss": metrics["loss"],
        "val_loss": searched["loss"],
        "val_bleu_lowercase": searched["bleu_lowercase"]["score"],
        "val_bleu_lowercase_greedy": greedy["bleu_lowercase"]["score"],
        "val_chrf": searched["chrf"]["score"],
        "length_ratio": searched["length_ratio"],
    }
    print(json.dumps(found), file=sys.stderr, flush=True)
    return found


def clearformer(*arguments: str, runs: Path) -> str:
    """What a command prints; SystemExit with its last line where it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "clearformer", *arguments],
        env=os.environ | {"CLEARFORMER_RUNS": str(runs), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """For each variant, the means over its seeds and the differences from the preset seed by seed."""
    by_seed = {(run["variant"], run["seed"]): run for run in runs}
    told = {}
    for variant in dict.fromkeys(run["variant"] for run in runs):
        own = [run for run in runs if run["variant"] == variant]
        pairs = [(run, by_seed[base]) for run in own if (base := ("preset", run["seed"])) in by_seed]
        told[variant] = {"seeds": len(own)}
        for figure in ("val_loss", "val_bleu_lowercase", "val_bleu_lowercase_greedy"):
            told[variant][figure] = round(statistics.mean(run[figure] for run in own), 4)
            gains = [run[figure] - base[figure] for run, base in pairs]
            told[variant][f"{figure}_gains"] = [round(gain, 4) for gain in gains]
    return told


if __name__ == "__main__":
    main()
