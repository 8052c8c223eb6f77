"""How well TracIn's ranking of training windows agrees with the truth: the run trained again without each.

    python benchmarks/tracin.py [--json FILE] [--quick]

CLEARFORMER_DATA names a folder with `shakespeare/input.txt`. Runs and cache are made in a temporary folder.

A small decoder of characters is trained on the first part of Tiny Shakespeare, every window once an epoch, for each of
STEPS. For each of some held-out places, drawn by a seed, the loss of the true next character is followed back: TracIn
scores all training windows at all kept checkpoints. Of these, 20 that lie evenly over the ranking of the first place
are left out in turn, for every time they were seen, and the run is trained again; before, it is trained again without
leaving out anything, and must come out the same to the bit. Printed are Spearman's rank correlations of TracIn's
scores with the true changes of each place's loss, whatever they are. Prints one JSON object; a few minutes on one core.
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

CHARS = 4_800  # of Tiny Shakespeare
STEPS = (80, 240)
PLACES = 3
WINDOWS = 20
LENGTH = 32
MODEL = {"d_model": 32, "n_layers": 2, "max_seq_len": LENGTH, "attention": {"n_heads": 2}}
TRAIN = {
    "max_seconds": None,
    "batch_size": 8,
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
    from clearformer.runs.own_data import read_own_data

    prepared = read_own_data(run).prepared
    assert isinstance(prepared, Dataset)
    split = prepared.splits["val"]
    starts = np.random.default_rng(SEED).choice(len(split) - LENGTH, n, replace=False)
    rows = [split.read(int(start), int(start) + LENGTH).tolist() for start in starts]
    return [(row[:-1], row[-1]) for row in rows]


def compared(run: Any, places: list[tuple[list[int], int]], n: int) -> list[dict[str, Any]]:
    """The agreement on each place's prediction."""
    from clearformer import lens
    from clearformer.lens.learning.agreement import rank_correlation
    from clearformer.lens.learning.prediction import prediction_of

    learned = [lens.tracin(run, tokens, target=target, sample=None) for tokens, target in places]
    chosen = [learned[0].windows[i] for i in np.linspace(0, len(learned[0].windows) - 1, n).astype(int)]
    if not lens.counterfactual(run, places[0][0], without=[]).same_weights:
        raise SystemExit("trained again without leaving out anything, the run came out otherwise")
    models = [lens.counterfactual(run, places[0][0], without=[window]).model for window in chosen]
    found = []
    for (tokens, target), of_place in zip(places, learned, strict=True):
        prediction = prediction_of(run, tokens, target=target)
        scores = {window.id: window.score for window in of_place.windows}
        rows = [
            {
                "id": window.id,
                "times_seen": len(window.seen),
                "score": rounded(scores[window.id]),
                "true_change": rounded(prediction.value(model) - of_place.loss),
            }
            for window, model in zip(chosen, models, strict=True)
        ]
        found.append(
            {
                "text": run.tokenizer.decode(np.array(tokens)),
                "target": of_place.target,
                "loss": rounded(of_place.loss),
                "rank_correlation": round(
                    rank_correlation([row["score"] for row in rows], [row["true_change"] for row in rows]), 3
                ),
                "windows": rows,
            }
        )
    return found


def rounded(value: float) -> float:
    """A number of four figures."""
    return float(f"{value:.4g}")


def versions() -> dict[str, Any]:
    import torch

    from clearformer.device import processor_name

    return {
        "processor": processor_name(),
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
            start = time.process_time()
            run = trained(steps, scratch / "text.txt")
            of_places = compared(run, held_out_places(run, places), windows)
            correlations = [each["rank_correlation"] for each in of_places]
            runs.append(
                {
                    "steps": steps,
                    "val_loss": rounded(run.val_loss),
                    "rank_correlations": correlations,
                    "mean": round(sum(correlations) / len(correlations), 3),
                    "cpu_seconds": round(time.process_time() - start, 1),
                    "places": of_places,
                }
            )
            print(f"{steps} steps: {correlations}", file=sys.stderr)
            if arguments.json:  # after each run: what is measured is kept
                arguments.json.write_text(json.dumps(described(runs, windows), indent=1) + "\n")
    print(json.dumps(described(runs, windows), indent=1))
    return 0


def described(runs: list[dict[str, Any]], windows: int) -> dict[str, Any]:
    """The measurements, and what they are of."""
    return versions() | {
        "chars": CHARS,
        "model": MODEL,
        "train": TRAIN,
        "seed": SEED,
        "windows_compared": windows,
        "runs": runs,
    }


if __name__ == "__main__":
    sys.exit(main())
