"""The preset `auto` at several times, and shapes set by hand beside it: held-out loss on Tiny Shakespeare.

    python benchmarks/budgets.py [--seconds 20 60 120 300] [--seeds 3] [--by-hand] [--json FILE]

CLEARFORMER_DATA names the folder with `shakespeare/input.txt`. One run after another, each with the whole machine, seed
by seed: all times with seed 1, then all with seed 2. Loss: the whole held-out split, at the stride of `clearformer
eval`. --by-hand sets against each time of `auto`'s the shapes next to its own, with seed 1. Prints one JSON object.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from training_runs import last_metrics, run_and_evaluate

# Layers and width beside those that `auto` takes: shallower, deeper, narrower, wider.
BY_HAND = {
    20: [(3, 128), (2, 192)],
    60: [(3, 192), (4, 256)],
    120: [(4, 256), (6, 192)],
    300: [(4, 192), (6, 256)],
}


def main() -> None:
    """Run all, print all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=int, nargs="+", default=[20, 60, 120, 300])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--by-hand", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    report: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(1, options.seeds + 1):
            for seconds in options.seconds:
                at_this_time = report.setdefault(f"{seconds} s", {"auto": []})
                at_this_time["auto"].append(trained(seconds, seed, [], Path(folder)))
                if seed == 1 and options.by_hand:
                    at_this_time["by hand"] = [
                        trained(seconds, seed, shape(*layers_and_width), Path(folder))
                        for layers_and_width in BY_HAND.get(seconds, [])
                    ]
                save(report, options.json)
    print(json.dumps(report, indent=1))


def shape(n_layers: int, d_model: int) -> list[str]:
    """A shape as settings."""
    return [
        f"model.n_layers={n_layers}",
        f"model.d_model={d_model}",
        f"model.attention.n_heads={d_model // 64}",
    ]


def trained(seconds: int, seed: int, settings: list[str], runs: Path) -> dict[str, Any]:
    """One run: its settings, loss, steps."""
    name = "-".join([str(seconds), str(seed), *(s.split("=")[1] for s in settings)])
    given = ["auto", "data.name=shakespeare", f"train.max_seconds={seconds}", f"seed={seed}", *settings]
    loss = run_and_evaluate(given, name, runs)["loss"]
    steps = last_metrics(name, runs)["step"]
    print(f"  {name}: {loss:.4f} after {steps:,} steps", file=sys.stderr, flush=True)
    return {"settings": settings, "seed": seed, "loss": round(loss, 4), "steps": steps}


def save(report: dict[str, Any], file: Path | None) -> None:
    """The means beside the runs, and all that there is so far in the file: a long measurement may be cut short."""
    for of_time in report.values():
        losses = [run["loss"] for run in of_time["auto"]]
        of_time["mean"] = round(statistics.mean(losses), 4)
        of_time["sd"] = round(statistics.stdev(losses), 4) if len(losses) > 1 else None
    if file:
        file.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
