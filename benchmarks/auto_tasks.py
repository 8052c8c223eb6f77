"""The preset `auto` for pairs and labelled texts, beside settings by hand, by the same clock.

    python benchmarks/auto_tasks.py [--data multi30k trec ...] [--parts 1 0.25] [--seconds 20 60 180] [--json FILE]
        [--decisions layers batches ...] [--hand "KEY=VALUE ..." ...] [--seeds 1 2 ...] [--runs FOLDER]

For each data set, part of its training texts, time and seed, one after another, each with the whole machine: `auto`;
the same with one of its decisions (of --decisions: all) changed by hand (`by_hand`), and with each group of settings in
--hand; for labelled texts the baseline of `eval` as well. None finds the tokens that another has prepared. BLEU by beam
search of 5, and accuracy in percent, are of the data's own validation texts; of several seeds the means are compared.
What stands in the JSON file already is not run again. CLEARFORMER_DATA names the folder of the data. Prints one JSON
object.
"""

import argparse
import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from training_runs import last_metrics, run_and_evaluate

from clearformer.data import LabelledData, PairsData, open_pairs
from clearformer.data.cache import cache_folder
from clearformer.data.labelled.sources import open_labelled
from clearformer.training.config import RunConfig
from clearformer.training.objectives import TranslationObjective
from clearformer.training.store.folder import RunFolder

PAIRS = ("multi30k", "dates")
DECISIONS = ("vocabulary", "rate", "layers", "dropout", "batches")
CACHE = cache_folder()  # the user's own
Changed = Callable[[RunConfig], dict[str, list[str]]]
"""Returns the settings by hand, by label, for the run that `auto` chose."""

DRAWN = 20_161  # the seed by which a part of the training texts is drawn


def write_pairs(folder: Path, name: str, part: float) -> list[str]:
    """A part of the training pairs and all that validate, in files, as settings."""
    splits = open_pairs(PairsData(name=name)).read().splits
    chosen = {"train": drawn(splits["train"], part), "val": splits["val"]}
    settings = []
    for split, prefix in (("train", ""), ("val", "val_")):
        for side in ("source", "target"):
            file = folder / f"{split}.{side}"
            file.write_text("".join(f"{getattr(pair, side)}\n" for pair in chosen[split]))
            settings.append(f"data.{prefix}{side}={file}")
    return settings


def write_labelled(folder: Path, name: str, part: float) -> list[str]:
    """A part of the training texts and all that validate, in files, as settings."""
    splits = open_labelled(LabelledData(name=name)).splits
    chosen = {"train": drawn(splits["train"], part), "val": splits["val"]}
    for split, texts in chosen.items():
        lines = [json.dumps({"text": each.text, "label": each.label}) + "\n" for each in texts]
        (folder / f"{split}.jsonl").write_text("".join(lines))
    return [
        "data.kind=labelled",
        f"data.path={folder / 'train.jsonl'}",
        f"data.val_path={folder / 'val.jsonl'}",
    ]


def drawn(rows: Sequence[Any], part: float) -> list[Any]:
    """A part of some rows, in their order."""
    kept = sorted(random.Random(DRAWN).sample(range(len(rows)), round(part * len(rows))))
    return [rows[i] for i in kept]


def by_hand(run: RunConfig, decisions: Sequence[str] = DECISIONS) -> dict[str, list[str]]:
    """Settings next to those that `auto` took, one decision changed at a time."""
    model, lr = run.model, run.train.lr
    vocabulary = getattr(run.tokenizer, "vocab_size", 0)
    layers = {max(1, model.n_layers // 2), 2 * model.n_layers} - {model.n_layers}
    dropouts = {max(0.0, round(model.dropout - 0.1, 2)), round(model.dropout + 0.1, 2)} - {model.dropout}
    objective = run.train.objective
    if isinstance(objective, TranslationObjective):
        size, key = objective.batch_tokens, "train.objective.batch_tokens"
    else:
        size, key = run.train.batch_size, "train.batch_size"
    changed = {
        "vocabulary": {
            f"{factor:g} times the vocabulary": [f"tokenizer.vocab_size={round(factor * vocabulary)}"]
            for factor in (0.5, 2)
        },
        "rate": {f"{factor:g} times the rate": [f"train.lr={factor * lr:g}"] for factor in (0.5, 2)},
        "layers": {f"{n} layers": [f"model.n_layers={n}"] for n in sorted(layers)},
        "dropout": {f"dropout {p:g}": [f"model.dropout={p:g}"] for p in sorted(dropouts)},
        "batches": {f"batches of {n}": [f"{key}={n}"] for n in (size // 2, 2 * size)},
    }
    return {label: settings for each in decisions for label, settings in changed[each].items()}


def trained(data: list[str], seconds: int, settings: list[str], runs: Path, name: str) -> dict[str, Any]:
    """One run: its score, its steps, and where there is one the score of the baseline."""
    given = ["auto", *data, f"train.max_wall_seconds={seconds}", *settings]
    use_cache_of_rates_alone(runs.parent / f"cache-{name}")
    said = run_and_evaluate(given, name, runs)
    found = {
        "score": round(score_of(said), 2),
        "steps": last_metrics(name, runs)["step"],
        "settings": settings,
    }
    if said.get("baseline"):
        found["baseline"] = round(100 * said["baseline"]["accuracy"], 2)
    return found


def use_cache_of_rates_alone(folder: Path) -> None:
    """Let the next run know how fast this machine is, by the user's own cache, and nothing else."""
    folder.mkdir()
    rates = CACHE / "rates.json"
    if rates.exists():
        shutil.copy(rates, folder)
    os.environ["CLEARFORMER_CACHE"] = str(folder)


def score_of(said: dict[str, Any]) -> float:
    """BLEU of a translator, accuracy in percent of a classifier."""
    return said["bleu"]["score"] if "bleu" in said else 100 * said["accuracy"]


def described(run: RunConfig) -> str:
    """The decisions of `auto` in a line."""
    model, objective = run.model, run.train.objective
    is_pairs = isinstance(objective, TranslationObjective)
    batch = f"{objective.batch_tokens} tokens" if is_pairs else f"{run.train.batch_size} texts"
    return (
        f"{getattr(run.tokenizer, 'vocab_size', 0):,} by {run.tokenizer.kind}, {model.n_layers} layers of width "
        f"{model.d_model}, {batch}, rate {run.train.lr:g}, dropout {model.dropout:g}"
    )


def measure(
    name: str, part: float, seconds: int, seeds: Sequence[int], changed: Changed, scratch: Path
) -> dict[str, Any]:
    """All runs of a part of a data set in a time: of each seed that of `auto`, then those by hand."""
    folder = scratch / f"{name}-{part:g}-{seconds}"
    shutil.rmtree(folder, ignore_errors=True)  # what a run that was ended left there
    folder.mkdir(parents=True)
    data = (write_pairs if name in PAIRS else write_labelled)(folder, name, part)
    runs = folder / "runs"
    own, others = {}, {}
    for seed in seeds:
        own[seed] = trained(data, seconds, [f"seed={seed}"], runs, f"auto-{seed}")
        chosen = RunFolder(runs / f"auto-{seed}").read_config()
        for i, (label, settings) in enumerate(changed(chosen).items()):
            one = trained(data, seconds, [f"seed={seed}", *settings], runs, f"hand-{i}-{seed}")
            others.setdefault(label, {})[seed] = one
    of_auto, by_label = of_seeds(own), {label: of_seeds(each) for label, each in others.items()}
    best = max(each["score"] for each in by_label.values())
    return {
        "auto": of_auto,
        "shape": described(RunFolder(runs / f"auto-{seeds[0]}").read_config()),
        "by hand": by_label,
        "behind": round(best - of_auto["score"], 2),
    }


def of_seeds(runs: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """A run as it is, or several that differ in the seed, with the mean of their scores."""
    if len(runs) == 1:
        return next(iter(runs.values()))
    return {"score": round(fmean(run["score"] for run in runs.values()), 2), "of seeds": runs}


def main() -> None:
    """Run what is missing, print all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", nargs="+", default=["multi30k", "trec", "agnews"])
    parser.add_argument("--parts", type=float, nargs="+", default=[1.0, 0.25])
    parser.add_argument("--seconds", type=int, nargs="+", default=[20, 60, 180])
    parser.add_argument("--decisions", nargs="*", choices=DECISIONS, default=list(DECISIONS))
    parser.add_argument("--hand", nargs="+", default=[], help="further settings by hand, separated by spaces")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--runs", type=Path, help="where runs are kept; else they are deleted at the end")
    options = parser.parse_args()
    if not options.decisions and not options.hand:
        parser.error("nothing to compare auto with: give --decisions or --hand")

    def changed(run: RunConfig) -> dict[str, list[str]]:
        return by_hand(run, options.decisions) | {given: given.split() for given in options.hand}

    numbers = ", ".join(map(str, options.seeds))
    of_several = f", seeds {numbers}" if len(options.seeds) > 1 else ""
    report: dict[str, Any] = {}
    if options.json and options.json.exists():
        report = json.loads(options.json.read_text())
    with tempfile.TemporaryDirectory() as temporary:
        for seconds in options.seconds:
            for name in options.data:
                for part in options.parts:
                    label = f"{part:g} of {name}, {seconds} s{of_several}"
                    if label not in report:
                        scratch = options.runs or Path(temporary)
                        report[label] = measure(name, part, seconds, options.seeds, changed, scratch)
                    if options.json:
                        options.json.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
