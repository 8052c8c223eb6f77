"""Accuracy of small encoders on SST-2, TREC and AG News, seed by seed, from scratch and after masked pre-training.

    python benchmarks/classification.py [--tasks sst2 trec agnews] [--seeds 1 2 3] [--json FILE]

CLEARFORMER_DATA names the folder with `sst2`, `trec`, `agnews` and `multi30k`; runs stay under CLEARFORMER_RUNS and
one that is already there is not trained again. SST-2's encoder is pre-trained on the task's own texts, those of TREC
and AG News on the English training texts of all four data sets (SST-2's phrases only where they stand in no longer
one). SST-2 is measured on its dev split, the others on their test splits; the baseline is `clearformer eval`'s.
Prints one JSON object.
"""

import argparse
import gzip
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from clearformer.files import runs_folder

PLAIN = ["train.compile=false", "train.max_seconds=none", "train.checkpoint_every=none"]
LOWERCASE = "tokenizer.lowercase=true"
FINE_TUNING = [LOWERCASE, "model.pooling=mean", "model.dropout=0.3", "train.label_smoothing=0.1"]
ENGLISH = [LOWERCASE, "tokenizer.vocab_size=12000", "model.max_seq_len=64"]
OF_ENGLISH = [*ENGLISH[1:], "data.too_long=truncate", "data.val_fraction=0.0"]
TASKS: dict[str, dict[str, Any]] = {
    "sst2": {
        "split": "val",
        "settings": ["train.lr=0.004", "train.max_steps=1500"],
        "pretrained": "sst2-masked",
    },
    "trec": {
        "split": "test",
        "settings": [*OF_ENGLISH, "train.lr=0.004", "train.max_steps=1000"],
        "pretrained": "english-masked",
    },
    "agnews": {
        "split": "test",
        "settings": [*OF_ENGLISH, "train.lr=0.002", "train.max_steps=600"],
        "pretrained": "english-masked",
    },
}


def train(name: str, *arguments: str) -> None:
    """Train a run, unless it is there."""
    if not (runs_folder() / name).exists():
        command = [sys.executable, "-m", "clearformer", "train", *arguments, *PLAIN, "--run", name]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def pretrain(name: str) -> None:
    """Train an encoder to fill in masked tokens."""
    if name == "sst2-masked":
        data = ["data.kind=labelled", "data.name=sst2", LOWERCASE]
        train(name, "masked", *data, "train.batch_size=128", "train.max_steps=9000", "train.eval_every=1000")
        return
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "english.txt"
        text.write_text("\n".join(english_texts(Path(os.environ["CLEARFORMER_DATA"]))) + "\n")
        data = [f"data.path={text}", "data.val_fraction=0.01", *ENGLISH]
        train(name, "masked", *data, "train.batch_size=48", "train.max_steps=5000", "train.eval_every=1000")


def english_texts(data: Path) -> list[str]:
    """The English training texts of the four data sets, in random order."""
    trec = [line.split(" ", 1)[1].strip() for line in (data / "trec/train.txt").open(encoding="latin-1")]
    phrases = [line.split("\t")[1].strip() for line in lines_of(data / "sst2/train.tsv.gz")[1:]]
    news = [line.split("\t")[0] for line in lines_of(data / "agnews/train10k.tsv.gz")]
    texts = [*trec, *longest(phrases), *news, *lines_of(data / "multi30k/train.en.gz")]
    random.Random(0).shuffle(texts)
    return texts


def lines_of(file: Path) -> list[str]:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        return [line.rstrip("\n") for line in lines]


def longest(phrases: list[str]) -> list[str]:
    """The phrases that stand in no longer one."""
    inside: set[str] = set()
    kept = []
    for phrase in sorted(set(phrases), key=lambda text: (-len(text.split()), text)):
        words = phrase.split()
        if " ".join(words) in inside:
            continue
        kept.append(phrase)
        inside |= {" ".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, len(words) + 1)}
    return kept


def accuracy(name: str, split: str) -> tuple[float, float]:
    """A run's accuracy in percent, and its baseline's."""
    command = [sys.executable, "-m", "clearformer", "eval", name, "--split", split, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    return 100 * told["accuracy"], 100 * told["baseline"]["accuracy"]


def measure(task: str, seeds: list[int], pretrained: bool) -> dict[str, Any]:
    """Mean and standard deviation of the accuracy over the seeds."""
    plan = TASKS[task]
    settings = [f"data.name={task}", *FINE_TUNING, *plan["settings"]]
    if pretrained:
        pretrain(plan["pretrained"])
        settings.append(f"train.pretrained={plan['pretrained']}")
    found, baseline = [], 0.0
    for seed in seeds:
        name = f"{task}-{'pretrained' if pretrained else 'fresh'}-{seed}"
        train(name, "classify", f"seed={seed}", *settings)
        reached, baseline = accuracy(name, plan["split"])
        found.append(round(reached, 2))
        print(f"{name}: {reached:.2f}%, baseline {baseline:.2f}%", file=sys.stderr)
    spread = statistics.stdev(found) if len(found) > 1 else 0.0
    return {
        "accuracy": found,
        "mean": round(statistics.mean(found), 2),
        "sd": round(spread, 2),
        "baseline": round(baseline, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    told = {
        task: {
            "fresh": measure(task, arguments.seeds, pretrained=False),
            "pretrained": measure(task, arguments.seeds, pretrained=True),
        }
        for task in arguments.tasks
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(told, indent=1) + "\n")
    print(json.dumps(told))


if __name__ == "__main__":
    main()
