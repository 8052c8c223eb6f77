"""The preset `auto` by the clock on Tiny Shakespeare: the time taken, the steps foretold, and the held-out loss.

    python benchmarks/budgets.py [--seconds 20 60 120 300] [--seeds 3] [--nanogpt FOLDER] [--slowed]
        [--json FILE]

CLEARFORMER_DATA names the folder with `shakespeare/input.txt`. One run after another, each with the whole machine, seed
by seed: all times with seed 1, then all with seed 2. `taken` is from the command to its last line. Loss: nats a
character of the whole held-out split, at the stride of `clearformer eval`. With --nanogpt, a checkout of nanoGPT trains
its recipe for a CPU by the same clock, once for each time (its seed is fixed), and is evaluated in windows without
overlap, which costs it about 0.025 nats. With --slowed, each time has one more
run, in which another process takes a core from half the time on. What stands in the JSON file already is
not run again. Prints one JSON object.
"""

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import Any

from against_nanogpt import nanogpt_by_the_clock
from busy import BUSY
from training_runs import evaluated, last_metrics, trained

SLOWED = "beside a busy process from half the time on"
NANOGPT = "nanoGPT's recipe"
VAL_FRACTION = 0.1


def main() -> None:
    """Run what is missing, print all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=int, nargs="+", default=[20, 60, 120, 300])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--nanogpt", type=Path)
    parser.add_argument("--slowed", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    report: dict[str, Any] = {}
    if options.json and options.json.exists():
        report = json.loads(options.json.read_text())
    with tempfile.TemporaryDirectory() as name:
        for seed in range(1, options.seeds + 1):
            for seconds in options.seconds:
                of_time = report.setdefault(f"{seconds} s", {"runs": []})
                if all(run["seed"] != seed for run in of_time["runs"]):
                    of_time["runs"].append(one_run(seconds, seed, Path(name)))
                if options.nanogpt and NANOGPT not in of_time:
                    of_time[NANOGPT] = by_nanogpt(options.nanogpt, seconds, Path(name) / f"nanogpt-{seconds}")
                if options.slowed and SLOWED not in of_time:
                    with busy_core_after(seconds / 2):
                        of_time[SLOWED] = one_run(seconds, seed, Path(name) / "slowed")
                summarise(of_time)
                if options.json:
                    options.json.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


@contextmanager
def busy_core_after(seconds: float) -> Iterator[None]:
    """A process that counts without end, from so many seconds after the beginning of the block to its end."""
    others: list[subprocess.Popen[bytes]] = []
    timer = Timer(seconds, lambda: others.append(subprocess.Popen([sys.executable, "-c", BUSY])))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        for other in others:
            other.kill()
            other.wait()


def one_run(seconds: int, seed: int, runs: Path) -> dict[str, Any]:
    """One run of `auto`: what it took, what it had foretold, what it gave."""
    name = f"{seconds}-{seed}"
    given = ["auto", "data.name=shakespeare", f"train.max_wall_seconds={seconds}", f"seed={seed}"]
    taken, said = trained(given, name, runs)
    foretold = re.search(r"about ([\d,]+) steps in all", said)
    loss = evaluated(name, runs)["bits_per_char"] * math.log(2)
    return {
        "seed": seed,
        "taken": round(taken, 2),
        "steps": last_metrics(name, runs)["step"],
        "foretold": foretold and int(foretold[1].replace(",", "")),
        "nats_per_char": round(loss, 4),
    }


def by_nanogpt(folder: Path, seconds: int, scratch: Path) -> dict[str, Any]:
    """nanoGPT's recipe in the same time, in nats a character."""
    text = Path(os.environ["CLEARFORMER_DATA"]) / "shakespeare" / "input.txt"
    found = nanogpt_by_the_clock(folder, text, VAL_FRACTION, seconds, scratch)
    return {"nats_per_char": round(found.pop("bits_per_char") * math.log(2), 4), **found}


def summarise(of_time: dict[str, Any]) -> None:
    """The mean and the spread of the losses beside the runs."""
    losses = [run["nats_per_char"] for run in of_time["runs"]]
    of_time["mean"] = round(statistics.mean(losses), 4)
    of_time["sd"] = round(statistics.stdev(losses), 4) if len(losses) > 1 else None


if __name__ == "__main__":
    main()
