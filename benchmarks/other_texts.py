"""The preset `auto` on texts that it was not tuned on, beside settings by hand and nanoGPT's recipe, by the same clock.

    python benchmarks/other_texts.py TEXT... --nanogpt FOLDER [--seconds 20 60] [--no-grid] [--json FILE]
        [--runs FOLDER]

For each text and time, one after another, each with the whole machine and seed 1: `auto`; the same with one decision
changed by hand (`by_hand`); nanoGPT's recipe for a CPU, on characters, with as many steps as fit into the time by
those of a short run before, its learning rate falling over just these. Bits per character of the held-out text: of
ours at `eval`'s stride, of nanoGPT in windows of 64 over at most 200,000 characters. Each run of ours prepares the text
itself, as the first command on a text does: tokens that an earlier one left would be a start for the settings by hand.
What stands in the JSON file already is not run again. Prints one JSON object.
"""

import argparse
import json
import math
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from against_nanogpt import nanogpt_by_the_clock
from training_runs import last_metrics, run_and_evaluate

from clearformer.training.store.folder import RunFolder

NANOGPT = "nanoGPT's recipe"
VOCABULARIES = (512, 1024, 4096)


def by_hand(folder: RunFolder) -> dict[str, list[str]]:
    """Settings next to those that `auto` took, one decision changed at a time."""
    run = folder.read_config()
    model, lr = run.model, run.train.lr
    words = {
        f"{size:,} BPE tokens": ["tokenizer=bpe", f"tokenizer.vocab_size={size}"] for size in VOCABULARIES
    }
    others = {"characters": ["tokenizer=char"], **words}
    own = (
        "characters"
        if run.tokenizer.kind == "char"
        else f"{getattr(run.tokenizer, 'vocab_size', 0):,} BPE tokens"
    )
    others.pop(own, None)
    heads, layers = model.d_model // 64, model.n_layers
    width = [f"model.d_model={64 * (heads + 1)}", f"model.attention.n_heads={heads + 1}"]
    others[f"{layers} layers of width {64 * (heads + 1)}"] = [*width, f"model.n_layers={layers}"]
    for factor in (0.5, 2):
        rates = [f"train.lr={factor * lr:g}", f"train.optimizer.adam_lr={factor * lr / 8:g}"]
        others[f"{factor:g} times the rate"] = rates
    return others


def trained(text: Path, seconds: int, settings: list[str], runs: Path, name: str) -> dict[str, Any]:
    """One run of ours, from a text that is not prepared: its bits per character and its steps."""
    for kept in ("prepared", "tokenizers"):
        shutil.rmtree(Path(os.environ["CLEARFORMER_CACHE"]) / kept, ignore_errors=True)
    given = ["auto", f"data.path={text}", "seed=1", f"train.max_wall_seconds={seconds}", *settings]
    said = run_and_evaluate(given, name, runs)
    return {
        "bits_per_char": round(said["bits_per_char"], 4),
        "steps": last_metrics(name, runs)["step"],
        "settings": settings,
    }


def main() -> None:
    """Run what is missing, print all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("texts", type=Path, nargs="+")
    parser.add_argument("--nanogpt", type=Path, required=True)
    parser.add_argument("--seconds", type=int, nargs="+", default=[20, 60])
    parser.add_argument("--no-grid", action="store_true", help="leave out the settings by hand")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--runs", type=Path, help="where runs are kept; else they are deleted at the end")
    options = parser.parse_args()
    report: dict[str, Any] = {}
    if options.json and options.json.exists():
        report = json.loads(options.json.read_text())
    with tempfile.TemporaryDirectory() as name:
        os.environ["CLEARFORMER_CACHE"] = str((options.runs or Path(name)) / "cache")  # not the user's own
        for seconds in options.seconds:
            for text in options.texts:
                of_text = report.setdefault(f"{text.stem}, {seconds} s", {"bytes": text.stat().st_size})
                runs = (options.runs or Path(name)) / f"{text.stem}-{seconds}"
                measure(of_text, text, seconds, options, runs)
                if options.json:
                    options.json.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


def measure(of_text: dict[str, Any], text: Path, seconds: int, options: Any, runs: Path) -> None:
    """All runs of a text in a time; none where they are there."""
    if NANOGPT in of_text and ("by hand" in of_text or options.no_grid):
        return
    shutil.rmtree(runs, ignore_errors=True)
    runs.mkdir(parents=True)
    of_text["auto"] = trained(text, seconds, [], runs, "auto")
    folder = RunFolder(runs / "auto")
    of_text["shape"] = described(folder)
    val_fraction = getattr(folder.read_config().data, "val_fraction", 0.1)
    of_text[NANOGPT] = nanogpt_by_the_clock(options.nanogpt, text, val_fraction, seconds, runs)
    if options.no_grid:
        return
    of_text["by hand"] = {
        name: trained(text, seconds, settings, runs, f"hand-{i}")
        for i, (name, settings) in enumerate(by_hand(folder).items())
    }
    best = min(each["bits_per_char"] for each in of_text["by hand"].values())
    of_text["nats behind the best by hand"] = round(
        (of_text["auto"]["bits_per_char"] - best) * math.log(2), 4
    )


def described(folder: RunFolder) -> str:
    """The decisions of `auto` in a line."""
    run = folder.read_config()
    model, train = run.model, run.train
    return (
        f"{run.tokenizer.kind}, {model.n_layers} layers of width {model.d_model}, {train.batch_size} x "
        f"{model.max_seq_len}, rate {train.lr:g}, dropout {model.dropout:g}"
    )


if __name__ == "__main__":
    main()
