"""How well TracIn's ranking of training windows agrees with the truth: the run trained again without each.

    python benchmarks/tracin.py [--json FILE] [--quick]

CLEARFORMER_DATA names a folder with `shakespeare/input.txt`. Runs and cache are made in a temporary folder.

A small decoder of characters is trained on the first part of Tiny Shakespeare, every window once an epoch, for each of
STEPS. For each of some held-out places, drawn by a seed, the loss of the true next character is followed back: TracIn
scores all training windows at all kept checkpoints, 20 of them evenly over the ranking are left out in turn for every
time they were seen, and the run is trained again. Before, it is trained again without leaving out anything, and must
come out the same to the bit. Printed are Spearman's rank correlations with the true changes of the loss, whatever they
are: of TracIn's scores, and of its estimates, which count how often and at which rate a window was seen. Prints one
JSON object; a few minutes on one core.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

CHARS = 9_600  # of Tiny Shakespeare
STEPS = (100, 300)
PLACES = 3
WINDOWS = 20
LENGTH = 32
MODEL = {"d_model": 32, "n_layers": 2, "max_seq_len": LENGTH, "attention": {"n_heads": 2}}
TRAIN = {
    "max_seconds": None,
    "batch_size": 16,
    "lr": 1e-3,
    "optimizer": {"kind": "adamw"},
    "device": "cpu",
    "dtype": "float32",
    "compile": False,
    "keep_last": 100,
    "eval_every": 1_000_000,
}
SEED = 0


def trained(steps: int, text: Path) -> Any:
    """A run of so many steps, with six checkpoints."""
    import clearformer as cf

    return cf.train(
        "quick",
        run=f"steps-{steps}",
        data={"path": str(text), "order": "epochs"},
        tokenizer={"kind": "char"},
        model=MODEL,
        train=TRAIN | {"max_steps": steps, "checkpoint_every": -(-steps // 6)},
    )


def held_out_places(run: Any, n: int) -> list[tuple[list[int], int]]:
    """Tokens of the held-out text, and the token that comes next, at places drawn by the seed."""
    from clearformer.data import Dataset
    from clearformer.runs.folders import read_own_data

    prepared = read_own_data(run).prepared
    assert isinstance(prepared, Dataset)
    split = prepared.splits["val"]
    starts = np.random.default_rng(SEED).choice(len(split) - LENGTH, n, replace=False)
    rows = [split.read(int(start), int(start) + LENGTH).tolist() for start in starts]
    return [(row[:-1], row[-1]) for row in rows]


def compared(run: Any, tokens: list[int], target: int, windows: int) -> dict[str, Any]:
    """The agreement on one prediction."""
    from clearformer import lens

    start = time.process_time()
    found = lens.check_tracin(run, tokens, target=target, windows=windows, sample=None)
    return {
        "text": run.tokenizer.decode(np.array(tokens)),
        "target": found.target,
        "loss": round(found.loss, 4),
        "rank_correlation_of_scores": round(found.rank_correlation, 3),
        "rank_correlation_of_estimates": round(found.rank_correlation_of_estimates, 3),
        "cpu_seconds": round(time.process_time() - start, 1),
        "windows": [
            {
                "id": each.window.id,
                "times_seen": len(each.window.seen),
                "score": float(f"{each.window.score:.4g}"),
                "estimate": float(f"{each.estimate:.4g}"),
                "true_change": float(f"{each.change:.4g}"),
            }
            for each in found.compared
        ],
    }


def versions() -> dict[str, Any]:
    import torch

    from clearformer.bench.machine import processor

    return {
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="few steps and windows, to see that it works")
    arguments = parser.parse_args()
    lengths, places, windows = ((6,), 1, 3) if arguments.quick else (STEPS, PLACES, WINDOWS)
    whole = (Path(os.environ["CLEARFORMER_DATA"]) / "shakespeare" / "input.txt").read_text()
    runs = []
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        os.environ |= {"CLEARFORMER_RUNS": str(scratch / "runs"), "CLEARFORMER_CACHE": str(scratch / "cache")}
        (scratch / "text.txt").write_text(whole[:CHARS])
        for steps in lengths:
            run = trained(steps, scratch / "text.txt")
            of_places = [compared(run, *place, windows) for place in held_out_places(run, places)]
            of_scores = [each["rank_correlation_of_scores"] for each in of_places]
            mean = round(sum(of_scores) / len(of_scores), 3)
            runs.append(
                {
                    "steps": steps,
                    "val_loss": round(run.val_loss, 4),
                    "mean_of_scores": mean,
                    "places": of_places,
                }
            )
            print(f"{steps} steps: {of_scores}, mean {mean}", file=sys.stderr)
    result = versions() | {
        "chars": CHARS,
        "model": MODEL,
        "train": TRAIN,
        "windows_compared": windows,
        "runs": runs,
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
