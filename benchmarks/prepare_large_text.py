"""How fast, and in how much memory, a large text is prepared and drawn from.

    python benchmarks/prepare_large_text.py --gigabytes 2

Makes a text of that size in a temporary folder (the lines of the built-in pydoc text, shuffled again and again),
prepares it with byte and with BPE tokens, each in a process of its own, draws random batches from it, and prints one
JSON object: seconds, megabytes a second, and the peak resident memory of each process.
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from clearformer.data import Batches, DataConfig, open_source, prepare
from clearformer.text import BPETokenizerSpec, ByteTokenizerSpec

TOKENIZERS = {"byte": ByteTokenizerSpec(), "bpe": BPETokenizerSpec()}
N_BATCHES = 1000
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
    parser.add_argument("--measure", choices=TOKENIZERS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure, arguments.folder)))
        return
    results: dict[str, Any] = {"gigabytes": arguments.gigabytes, "batches": [N_BATCHES, BATCH_SIZE, SEQ_LEN]}
    for kind in TOKENIZERS:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            write_text(Path(folder) / "text.txt", round(arguments.gigabytes * GIGABYTE), arguments.seed)
            command = [sys.executable, __file__, "--measure", kind, "--folder", folder]
            child = subprocess.run(command, check=True, capture_output=True, text=True)
        results[kind] = json.loads(child.stdout)
    print(json.dumps(results, indent=2))


def write_text(path: Path, n_bytes: int, seed: int) -> None:
    """Shuffled lines, whole ones, of at least `n_bytes` in all."""
    text = "".join(chunk.text for chunk in open_source(DataConfig()).documents())
    lines = text.encode().splitlines(keepends=True)
    shuffler = random.Random(seed)
    written = 0
    with path.open("wb") as file:
        while written < n_bytes:
            shuffler.shuffle(lines)
            written += file.write(b"".join(lines))


def measure(kind: str, folder: Path) -> dict[str, float]:
    """Prepares the text in `folder` and draws from it, in this process."""
    path = folder / "text.txt"
    start_bytes = peak_bytes()
    start = time.perf_counter()
    dataset = prepare(DataConfig(path=str(path)), TOKENIZERS[kind], cache_dir=folder / "cache")
    prepared = time.perf_counter()
    prepared_bytes = peak_bytes()
    batches = Batches(dataset.splits["train"], "random", BATCH_SIZE, SEQ_LEN, seed=0)
    for step in range(N_BATCHES):
        batches.batch(step)
    drawn = time.perf_counter()
    again = prepare(DataConfig(path=str(path)), TOKENIZERS[kind], cache_dir=folder / "cache")
    opened = time.perf_counter()
    return {
        "text_bytes": path.stat().st_size,
        "tokens": sum(len(split) for split in again.splits.values()),
        "prepare_seconds": round(prepared - start, 2),
        "prepare_megabytes_per_second": round(path.stat().st_size / 1e6 / (prepared - start), 1),
        "open_again_seconds": round(opened - drawn, 4),
        "milliseconds_per_batch": round((drawn - prepared) / N_BATCHES * 1e3, 3),
        "peak_resident_megabytes_at_start": round(start_bytes / 1e6),
        "peak_resident_megabytes_prepared": round(prepared_bytes / 1e6),
        "peak_resident_megabytes": round(peak_bytes() / 1e6),
    }


def peak_bytes() -> int:
    """The most memory this process has had resident."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MAXRSS_UNIT


if __name__ == "__main__":
    main()
