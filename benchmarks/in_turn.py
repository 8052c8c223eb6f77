"""Time long-running commands against each other by giving them the machine in turn, a few seconds at a time.

    python benchmarks/in_turn.py --slices 24 --seconds 2.5 CONTENDERS.toml [--json FILE]

    [before]
    folder = "old-checkout"
    command = "PYTHONPATH=src python -m clearformer train quick train.max_steps=20000 train.log_every=1 --run before"
    progress = "old-checkout/runs/before/metrics.jsonl"

What a command says goes to NAME.log beside the file of contenders. Every one adds a line to its `progress` file for
each unit of work (a step, a text). All are started, and stopped (SIGSTOP) once they have done some. Then each goes on
alone for one slice, in an order that is drawn anew each time, and its lines are counted, from the end of one unit to
the end of another. A slow spell of a shared machine, which outlasts a slice, so meets all of them alike; what is
reported is the median of the slices' ratios to the first contender.
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import time
import tomllib
from pathlib import Path

WARM_UP_LINES = 15
WARM_UP_SECONDS = 300


class Contender:
    """A command in a process group of its own, and the file in which it counts its work."""

    def __init__(self, name: str, log: Path, folder: str, command: str, progress: str) -> None:
        self.name, self.log, self.progress = name, log, Path(progress)
        self.progress.unlink(missing_ok=True)
        with log.open("w") as output:
            self.process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec env {command}"],
                cwd=folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def lines(self) -> int:
        """Units of work done so far; SystemExit where the command has ended."""
        if self.process.poll() is not None:
            raise SystemExit(f"{self.name} ended by itself: see {self.log}")
        return self.progress.read_bytes().count(b"\n") if self.progress.exists() else 0

    def warm_up(self) -> None:
        """Let it run until it works steadily."""
        deadline = time.monotonic() + WARM_UP_SECONDS
        while self.lines() < WARM_UP_LINES:
            if time.monotonic() > deadline:
                raise SystemExit(f"{self.name} did nothing in {WARM_UP_SECONDS} s: see {self.log}")
            time.sleep(0.2)
        self.send(signal.SIGSTOP)

    def units_per_second(self, seconds: float) -> float:
        """Its speed in one slice of about the given length."""
        self.send(signal.SIGCONT)
        time.sleep(0.3)
        first, start = self.after_a_unit()
        time.sleep(seconds)
        last, end = self.after_a_unit()
        self.send(signal.SIGSTOP)
        return (last - first) / (end - start)

    def after_a_unit(self) -> tuple[int, float]:
        """Wait for the next unit; the units then done, and the time."""
        before = self.lines()
        while (now := self.lines()) == before:
            time.sleep(0.001)
        return now, time.perf_counter()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to all its processes."""
        os.killpg(self.process.pid, number)


def measure(contenders: list[Contender], slices: int, seconds: float) -> list[dict[str, float]]:
    """Units a second of each contender, slice by slice."""
    orders = random.Random(1)
    rows = []
    for _ in range(slices):
        order = orders.sample(contenders, len(contenders))
        rows.append({contender.name: round(contender.units_per_second(seconds), 3) for contender in order})
        print(json.dumps(rows[-1], sort_keys=True), flush=True)
    return rows


def time_ratios(rows: list[dict[str, float]], first: str) -> dict[str, dict[str, float]]:
    """Time of a unit beside that of the first contender: median and quartiles over the slices."""
    table = {}
    for name in rows[0]:
        low, middle, high = statistics.quantiles([row[first] / row[name] for row in rows], n=4)
        speed = statistics.median(row[name] for row in rows)
        table[name] = {"time_ratio": middle, "low": low, "high": high, "units_per_second": speed}
    return {name: {key: round(value, 3) for key, value in row.items()} for name, row in table.items()}


def main() -> None:
    """Measure the contenders of a file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("contenders", type=Path)
    parser.add_argument("--slices", type=int, default=24)
    parser.add_argument("--seconds", type=float, default=2.5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    contenders: list[Contender] = []
    try:
        for name, settings in tomllib.loads(given.contenders.read_text()).items():
            contenders.append(Contender(name, given.contenders.parent / f"{name}.log", **settings))
            contenders[-1].warm_up()
        rows = measure(contenders, given.slices, given.seconds)
    finally:
        for contender in contenders:
            contender.send(signal.SIGKILL)
    table = time_ratios(rows, contenders[0].name)
    for name, row in table.items():
        print(f"{name}: " + ", ".join(f"{key} {value}" for key, value in row.items()))
    if given.json:
        given.json.write_text(json.dumps({"ratios": table, "slices": rows}, indent=1))


if __name__ == "__main__":
    main()
