"""What changes of the preset `multi30k` gain on the validation pairs, after equal time on one core; never on the test.

    python benchmarks/translation_ablation.py FOLDER --json FILE [--cpu-seconds 2400] [--seeds 3] [--only NAME ...]
                                              [--pairs N] [--jobs 1] [--loss-only]

CLEARFORMER_DATA names the folder with `multi30k`; English to German. Each variant takes as many steps as the seconds
of the processor are enough for: those of a step are measured first, step by step of all variants in turn, so that what
else the machine does weighs on all of them alike. The learning rate falls to 0 within those steps. Then the loss of all
validation pairs, and BLEU and chrF of their translations by beam search of 5, by the mean of the last ten of forty
checkpoints and, for what that gains, by the last one; with --loss-only no translations, which of a model that has
learned little take minutes.

Runs lie in FOLDER, all variants of the first seed first, --jobs of them at a time on a thread each. The JSON file is
written after each run; the same command goes on where it was ended. Variants are compared at equal time: what needs
more of it to pay is at a disadvantage (some are made for twice the time too). So is, in a short run, what keeps a model
from learning its training pairs by heart: --pairs trains on the first N of them alone, so that few minutes are as many
epochs as a whole run has.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from training_runs import last_metrics

from clearformer.data import PairsData
from clearformer.data.pairs.sources import open_pairs
from clearformer.device import keep_freed_memory, processor_name
from clearformer.files import write_file
from clearformer.resolving import resolve_run
from clearformer.training.processes.distributed import Processes
from clearformer.training.setup import open_task
from clearformer.training.step import TrainStep
from clearformer.training.store.checkpoint import Progress
from clearformer.training.store.state import TrainState

BASE = [
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
    "no label smoothing": ["train.label_smoothing=0"],
    "dropout 0.1": ["model.dropout=0.1"],
    "dropout 0.3": ["model.dropout=0.3"],
    "dropout 0.2 within the feed-forward layers too": ["model.ffn.dropout=0.2"],
    "vocabulary of 5,000": ["tokenizer.vocab_size=5000"],
    "6 + 2 layers": ["model.n_layers=6", "model.n_decoder_layers=2"],
    "another matrix for the head": ["model.tie_embeddings=false"],
    "moving average of the weights 0.99": ["train.ema=0.99"],
    "lower case": ["tokenizer.lowercase=true"],
    "Adam, rate 0.004": ["train.optimizer=adam", "train.lr=0.004"],
    "Adam, rate 0.002": ["train.optimizer=adam", "train.lr=0.002"],
    "half the rate": ["train.lr=0.0035", "train.optimizer.adam_lr=0.005"],
    "twice the rate": ["train.lr=0.014", "train.optimizer.adam_lr=0.02"],
    "batches of 768 tokens": ["train.objective.batch_tokens=768"],
    "batches of 3,072 tokens": ["train.objective.batch_tokens=3072"],
    "sinusoidal positions": ["model.position=sinusoidal"],
    "LayerNorm": ["model.norm=layernorm"],
    "no QK-norm": ["model.attention.qk_norm=none"],
    "post-norm": ["model.placement=post", "model.final_norm=false"],
    "ReLU": ["model.ffn=relu", "model.ffn.d_ff=256"],
}
TWICE = {
    "twice the time": "preset",
    "BPE dropout 0.1, twice the time": "BPE dropout 0.1",
    "R-Drop 5, twice the time": "R-Drop 5",
}
VARIANTS |= {longer: VARIANTS[base] for longer, base in TWICE.items()}
MEASURED_STEPS, WARMUP_PART = 15, 0.04
CHECKPOINTS, AVERAGED = 40, 10
BEAMS = 5
FIGURES = ("val_loss", "val_bleu_lowercase", "val_bleu_lowercase_last", "val_chrf")


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
    parser.add_argument("--pairs", type=int)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--loss-only", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    report = read_report(options.json, {"cpu_seconds": options.cpu_seconds, "pairs": options.pairs})
    base = BASE if options.pairs is None else [*BASE, *first_pairs(options.pairs, options.folder)]
    step_kinds = dict.fromkeys(map(repeated_by, options.only))
    if unmeasured := [name for name in step_kinds if name not in report["cpu_seconds_per_step"]]:
        report["cpu_seconds_per_step"] |= seconds_of_steps(unmeasured, base)
        save(report, options.json)
    done = {(run["variant"], run["seed"]) for run in report["runs"]}
    wanted = [(variant, seed) for seed in range(1, options.seeds + 1) for variant in options.only]
    writing = threading.Lock()

    def measure(variant: str, seed: int) -> None:
        seconds = options.cpu_seconds * (2 if variant in TWICE else 1)
        n_steps = round(seconds / report["cpu_seconds_per_step"][repeated_by(variant)])
        run = trained(variant, seed, n_steps, base, options.folder)
        if not options.loss_only:
            run |= translations_measured(run["name"], options.folder)
        print(json.dumps(run), file=sys.stderr, flush=True)
        with writing:
            report["runs"].append(run)
            report["summary"] = summary(report["runs"])
            save(report, options.json)

    with ThreadPoolExecutor(options.jobs) as pool:
        started = [pool.submit(measure, *each) for each in wanted if each not in done]
        try:
            for each in started:
                each.result()
        finally:
            pool.shutdown(cancel_futures=True)
    print(json.dumps(report["summary"], indent=1))


def repeated_by(variant: str) -> str:
    """The variant whose steps these are."""
    return TWICE.get(variant, variant)


def read_report(file: Path, options: dict[str, Any]) -> dict[str, Any]:
    """The report so far, or a new one; SystemExit where that is of other options."""
    report = {
        "machine": processor_name(),
        "torch": torch.__version__,
        **options,
        "beams": BEAMS,
        "variants": {},
        "cpu_seconds_per_step": {},
        "runs": [],
        "summary": {},
    }
    if file.exists():
        report |= json.loads(file.read_text())
    report["variants"] = VARIANTS
    for name, value in options.items():
        if report[name] != value:
            raise SystemExit(f"{file}: its runs have {name}={report[name]}; give another file for {value}")
    return report


def first_pairs(number: int, folder: Path) -> list[str]:
    """The first training pairs and all validation pairs as files in a folder; the settings that name them."""
    files = {"path": folder / f"first-{number}.tsv", "val_path": folder / "val.tsv"}
    splits = open_pairs(PairsData(name="multi30k", languages="en-de")).read().splits
    for (name, pairs), file in zip((("train", number), ("val", None)), files.values(), strict=True):
        rows = [f"{pair.source}\t{pair.target}\n" for pair in splits[name][:pairs]]
        write_file(file, "".join(rows).encode())
    return ["data.name=none", *(f"data.{key}={file}" for key, file in files.items())]


def save(report: dict[str, Any], file: Path) -> None:
    write_file(file, (json.dumps(report, indent=1) + "\n").encode())


def seconds_of_steps(variants: list[str], base: list[str]) -> dict[str, float]:
    """The processor's seconds of a step of each variant, the mean over some, taken in turn."""
    keep_freed_memory()
    steps = {name: first_steps([*base, *VARIANTS[name]]) for name in variants}
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
    config = resolve_run(settings, None)
    processes = Processes.join(device)
    task, config = open_task(config, device, processes)
    return TrainStep(config, task, TrainState.build(config, device), device, processes)


def trained(variant: str, seed: int, n_steps: int, base: list[str], runs: Path) -> dict[str, Any]:
    """Train a variant for so many steps, from where it is; its loss on all validation pairs."""
    name = "-".join([*"".join(c if c.isalnum() else " " for c in variant).split(), str(seed)])
    settings = [
        f"seed={seed}",
        f"train.max_steps={n_steps}",
        f"train.warmup_steps={round(WARMUP_PART * n_steps)}",
        f"train.checkpoint_every={max(1, n_steps // CHECKPOINTS)}",
        "train.snapshot_megabytes=none",
    ]
    clearformer("train", *base, *VARIANTS[variant], *settings, "--run", name, "--resume", runs=runs)
    metrics = last_metrics(name, runs)
    return {
        "name": name,
        "variant": variant,
        "seed": seed,
        "steps": n_steps,
        "seconds": round(metrics["seconds"], 1),
        "train_loss": metrics["loss"],
        "val_loss": metrics["val_loss"],
    }


def translations_measured(name: str, runs: Path) -> dict[str, float]:
    """The figures of a run's translations of the validation pairs."""
    command = ["eval", name, "--split", "val", "--beams", str(BEAMS), "--json", "--average"]
    mean, last = (json.loads(clearformer(*command, str(n), runs=runs)) for n in (AVERAGED, 1))
    return {
        "val_bleu_lowercase": mean["bleu_lowercase"]["score"],
        "val_bleu_lowercase_last": last["bleu_lowercase"]["score"],
        "val_chrf": mean["chrf"]["score"],
        "length_ratio": mean["length_ratio"],
    }


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
        for figure in (each for each in FIGURES if each in own[0]):
            told[variant][figure] = round(statistics.mean(run[figure] for run in own), 4)
            gains = [run[figure] - base[figure] for run, base in pairs]
            told[variant][f"{figure}_gains"] = [round(gain, 4) for gain in gains]
    return told


if __name__ == "__main__":
    main()
