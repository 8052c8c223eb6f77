"""How fast, and in how much memory, a large text is prepared, drawn from and trained on.

    python benchmarks/prepare_large_text.py --gigabytes 2

Makes a text of that size in a temporary folder (the lines of the built-in pydoc text, shuffled again and again),
prepares it with byte and with BPE tokens, each in a process of its own, draws random batches from it, trains the
quick preset on it for some steps, and prints one JSON object: seconds, megabytes a second, and the peak resident memory
of each process at each stage.
"""

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from clearformer.data import Batches, TextData, open_source, prepare
from clearformer.text import BPETokenizerSpec, ByteTokenizerSpec

TOKENIZERS = {"byte": ByteTokenizerSpec(), "bpe": BPETokenizerSpec()}
HELD_OUT = 0.0001  # enough to measure by, and soon read
N_BATCHES = 1000
TRAIN_STEPS = 30
BATCH_SIZE = 64
SEQ_LEN = 256
GIGABYTE = 10**9
# Linux counts in kilobytes, macOS in bytes.
MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--gigabytes", type=float, default=2.0, help="size of the text (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the shuffled lines (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="where to work; it needs four times the text's size")
    parser.add_argument("--kinds", nargs="+", choices=TOKENIZERS, default=list(TOKENIZERS))
    parser.add_argument("--measure", choices=TOKENIZERS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure, arguments.folder)))
        return
    results: dict[str, Any] = {"gigabytes": arguments.gigabytes, "batches": [N_BATCHES, BATCH_SIZE, SEQ_LEN]}
    for kind in arguments.kinds:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            write_text(Path(folder) / "text.txt", round(arguments.gigabytes * GIGABYTE), arguments.seed)
            command = [sys.executable, __file__, "--measure", kind, "--folder", folder]
            environment = os.environ | {"CLEARFORMER_CACHE": f"{folder}/cache"}
            child = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
        results[kind] = json.loads(child.stdout)
    print(json.dumps(results, indent=2))


def write_text(path: Path, n_bytes: int, seed: int) -> None:
    """Shuffled lines, whole ones, of at least `n_bytes` in all."""
    text = "".join(chunk.text for chunk in open_source(TextData()).documents())
    lines = text.encode().splitlines(keepends=True)
    shuffler = random.Random(seed)
    written = 0
    with path.open("wb") as file:
        while written < n_bytes:
            shuffler.shuffle(lines)
            written += file.write(b"".join(lines))


def measure(kind: str, folder: Path) -> dict[str, float]:
    """Prepares the text in `folder`, draws from it and trains on it, in this process."""
    path = folder / "text.txt"
    config = TextData(path=str(path), val_fraction=HELD_OUT)
    start_bytes = peak_bytes()
    start = time.perf_counter()
    dataset = prepare(config, TOKENIZERS[kind])
    prepared = time.perf_counter()
    prepared_bytes = peak_bytes()
    batches = Batches(dataset.splits["train"], "random", BATCH_SIZE, SEQ_LEN, seed=0)
    for step in range(N_BATCHES):
        batches.batch(step)
    drawn = time.perf_counter()
    again = prepare(config, TOKENIZERS[kind])
    opened = time.perf_counter()
    drawn_bytes = peak_bytes()
    train_on(path, kind, folder / "run")
    return {
        "text_bytes": path.stat().st_size,
        "tokens": sum(len(split) for split in again.splits.values()),
        "prepare_seconds": round(prepared - start, 2),
        "prepare_megabytes_per_second": round(path.stat().st_size / 1e6 / (prepared - start), 1),
        "open_again_seconds": round(opened - drawn, 4),
        "milliseconds_per_batch": round((drawn - prepared) / N_BATCHES * 1e3, 3),
        "peak_resident_megabytes_at_start": round(start_bytes / 1e6),
        "peak_resident_megabytes_prepared": round(prepared_bytes / 1e6),
        "peak_resident_megabytes_drawn": round(drawn_bytes / 1e6),
        "peak_resident_megabytes_trained": round(peak_bytes() / 1e6),
    }


def train_on(path: Path, kind: str, run: Path) -> None:
    """The quick preset on the prepared text, for some steps and the evaluation at their end."""
    from clearformer.resolving import resolve_run
    from clearformer.training.loop import train
    from clearformer.training.reporting.report import Reporter
    from clearformer.training.store.folder import RunFolder

    limits = [f"train.max_steps={TRAIN_STEPS}", "train.max_seconds=none", "train.compile=false"]
    text = [f"data.path={path}", f"data.val_fraction={HELD_OUT}", f"tokenizer={kind}"]
    train(resolve_run(["quick", *text, *limits], None), RunFolder(run), Reporter())


def peak_bytes() -> int:
    """The most memory this process has had resident."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MAXRSS_UNIT


if __name__ == "__main__":
    main()
