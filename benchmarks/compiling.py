"""How long a person waits for a compiled step: the first time, and with what an earlier process left in the cache.

    python benchmarks/compiling.py [--rounds 3] [--settings nanogpt-cpu] [--before CHECKOUT] [--json FILE]

Each wait is that of a fresh process, from the start of compiling to the end of the first step:

    cold    nothing in any cache of torch's or of ours, no precompiled header
    warm    the same again

With --before the same of another checkout take their turns beside these. Figures are medians and least values of
seconds: by the clock, of the process itself and of the compilers that it starts. Prints one JSON object.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import clearformer as cf
from clearformer.bench.machine import describe, measure_limits
from clearformer.device import resolve_device

HERE = Path(cf.__file__).parents[2]

ONE_WAIT = """
import json, resource, sys, tempfile, time
from pathlib import Path
from clearformer.resolving import resolve_run
from clearformer.training.loop import train
from clearformer.training.reporting.report import Reporter
from clearformer.training.store.folder import RunFolder

def now():
    compilers = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter(), time.process_time(), compilers.ru_utime + compilers.ru_stime

class Told(Reporter):
    at = {}
    def say(self, line):
        self.at[line.split()[0]] = now()

config = resolve_run([*sys.argv[1:], "train.compile=true", "train.max_steps=1", "train.eval_flops_fraction=0.1"], None)
with tempfile.TemporaryDirectory() as folder:
    train(config, RunFolder(Path(folder) / "run"), Told())
before, after = (Told.at[line] for line in ("compiling", "compiled"))
names = ("clock", "process", "compilers")
print(json.dumps(dict(zip(names, (b - a for a, b in zip(before, after, strict=True)), strict=True))))
"""


def seconds_of(checkout: Path, caches: Path, settings: list[str]) -> dict[str, float]:
    """One wait, with the caches in a folder."""
    dropped = ("PYTHONDONTWRITEBYTECODE", "TORCHINDUCTOR_CACHE_DIR")
    environment = {name: value for name, value in os.environ.items() if name not in dropped} | {
        "PYTHONPATH": str(checkout / "src"),
        "TMPDIR": str(caches),  # where torch keeps its own, its precompiled headers too
        "CLEARFORMER_CACHE": str(caches / "own"),
    }
    done = subprocess.run(
        [sys.executable, "-c", ONE_WAIT, *settings],
        env=environment,
        cwd=caches,
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def one_round(sides: dict[str, Path], settings: list[str]) -> dict[str, dict[str, float]]:
    """Every wait once, the sides in turn."""
    found = {}
    for side, checkout in sides.items():
        with tempfile.TemporaryDirectory() as caches:
            for kind in ("cold", "warm"):
                found[f"{side}: {kind}"] = seconds_of(checkout, Path(caches), settings)
    return found


def summary(rounds: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, dict[str, float]]]:
    """Medians and least values of each wait."""
    return {
        wait: {
            kind: {
                "median": round(statistics.median(each[wait][kind] for each in rounds), 2),
                "least": round(min(each[wait][kind] for each in rounds), 2),
            }
            for kind in rounds[0][wait]
        }
        for wait in rounds[0]
    }


def main() -> None:
    """Measure, and print what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--settings", nargs="+", default=["quick", "data.name=shakespeare", "train.dtype=bfloat16"]
    )
    parser.add_argument("--before", type=Path, help="another checkout, which is timed beside this one")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    sides = {"before": given.before.resolve()} if given.before else {}
    sides["now"] = HERE
    device = resolve_device("cpu")
    report: dict[str, Any] = {"machine": describe(device, measure_limits(device)), "settings": given.settings}
    rounds = []
    for number in range(given.rounds):
        print(f"round {number + 1} of {given.rounds}", file=sys.stderr, flush=True)
        rounds.append(one_round(sides, given.settings))
        report |= {"seconds": summary(rounds), "rounds": rounds}
        if given.json:
            given.json.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps({name: report[name] for name in ("machine", "settings", "seconds")}, indent=1))


if __name__ == "__main__":
    main()
