"""How fast training goes on while other programs use the machine: with threads by load, and as it was before.

    python benchmarks/busy.py [--preset quick] [--seconds 8] [--rounds 5] [--busy 0,1,2] [--json FILE]

CLEARFORMER_DATA names a folder with `shakespeare/input.txt`. OMP_NUM_THREADS, if set, is the most threads. Every side
is a process of its own with the preset's compiled step; one trains while the others wait:

    by load        `ThreadsByLoad`, and the step compiled for any number of threads
    fixed          one number of threads throughout, and the step compiled for it
    deterministic  the same with deterministic kernels

Beside it so many processes as `--busy` says count without end. In each round every side trains for so many seconds
beside each number of them, in an order drawn anew. Prints the median of steps a second, and the median of its ratio to
the side `fixed` beside nothing of the same round, as one JSON object.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

SIDES = ("by load", "fixed", "deterministic")
BUSY = "while True: pass"
SETTLE_SECONDS = 2.5  # beside a new load, before steps are counted: two looks at the cores


def work(side: str, preset: str) -> None:
    """Train for as many seconds as each line of standard input says, and say how many steps a second it were."""
    from dataclasses import replace

    import torch

    import clearformer as cf
    from clearformer.device import deterministic_kernels
    from clearformer.training import step
    from clearformer.training.processes.distributed import Processes
    from clearformer.training.reporting.report import Reporter
    from clearformer.training.setup import open_task
    from clearformer.training.store.checkpoint import Progress
    from clearformer.training.store.state import TrainState
    from clearformer.training.threads import ThreadsByLoad

    cpu = torch.device("cpu")
    processes = Processes.join(cpu)
    text = Path(os.environ["CLEARFORMER_DATA"]) / "shakespeare" / "input.txt"
    config = cf.preset(preset, data={"path": str(text)}, train={"device": "cpu", "compile": True})
    task, config = open_task(config, cpu, processes, None, lambda *_: None)
    if side != "by load":
        whole = step.compile_step
        step.compile_step = lambda function, *, dynamic, **_: whole(function, dynamic=dynamic)
    taken = step.TrainStep(config, task, TrainState.build(config, cpu), cpu, processes)
    progress = Progress()
    with ExitStack() as stack:
        if side == "deterministic":
            stack.enter_context(deterministic_kernels(cpu))
        threads = stack.enter_context(ThreadsByLoad(Reporter(), may_change=side == "by load"))
        taken.prepare(Reporter(), compiled=True)
        print("ready", flush=True)
        for line in sys.stdin:
            seconds, begin, n = float(line), time.perf_counter(), 0
            end = begin + SETTLE_SECONDS + seconds
            counted = 0.0
            while (now := time.perf_counter()) < end:
                threads.adapt(progress.step)
                taken.take(progress)
                progress = replace(progress, step=progress.step + 1)
                if now - begin > SETTLE_SECONDS:
                    n += 1
                    counted += time.perf_counter() - now
            print(n / counted if n else 0.0, flush=True)


class Worker:
    """A side's process."""

    def __init__(self, side: str, preset: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--worker", side, "--preset", preset],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.answer()  # compiled, before the next one is

    def answer(self) -> str:
        """A line that it says."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a side has ended by itself")
        return line

    def steps_a_second(self, seconds: float) -> float:
        """Let it train for a while."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        return float(self.answer())


def beside(n_busy: int, worker: Worker, seconds: float) -> float:
    """Steps a second beside so many busy processes."""
    others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(n_busy)]
    try:
        return worker.steps_a_second(seconds)
    finally:
        for other in others:
            other.kill()
            other.wait()


def table(rounds: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Medians over the rounds."""
    alone = [each["steps"]["fixed"]["0"] for each in rounds]
    rows = []
    for side, by_busy in rounds[0]["steps"].items():
        for n_busy in by_busy:
            speeds = [each["steps"][side][n_busy] for each in rounds]
            ratios = [speed / fixed for speed, fixed in zip(speeds, alone, strict=True)]
            rows.append(
                {
                    "side": side,
                    "busy_processes": int(n_busy),
                    "steps_a_second": round(statistics.median(speeds), 3),
                    "of_fixed_alone": round(statistics.median(ratios), 3),
                    "least": round(min(ratios), 3),
                    "most": round(max(ratios), 3),
                }
            )
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--preset", default="quick")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--busy", default="0,1,2", help="with 0, to which all is compared")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", choices=SIDES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        work(given.worker, given.preset)
        return
    busy = sorted({0, *map(int, given.busy.split(","))})
    workers = {side: Worker(side, given.preset) for side in SIDES}
    draws, rounds = random.Random(1), []
    for _ in range(given.rounds):
        order = [(side, n) for side in SIDES for n in busy]
        draws.shuffle(order)
        steps: dict[str, dict[str, float]] = {side: dict.fromkeys(map(str, busy), 0.0) for side in SIDES}
        for side, n in order:
            steps[side][str(n)] = round(beside(n, workers[side], given.seconds), 3)
        rounds.append({"steps": steps})
        print(json.dumps(steps), file=sys.stderr, flush=True)
    for worker in workers.values():
        worker.process.kill()
    found = {
        "cores": os.cpu_count(),
        "preset": given.preset,
        "seconds": given.seconds,
        "table": table(rounds),
        "rounds": rounds,
    }
    print(json.dumps(found["table"], indent=1))
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
