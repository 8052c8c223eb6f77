"""How fast work goes on while other programs use the machine: with threads by load, and with as many as ever.

    python benchmarks/busy.py [--of train] [--preset quick] [--seconds 8] [--rounds 5] [--busy 0,1,2] [--json FILE]

CLEARFORMER_DATA names a folder with `shakespeare/input.txt`. OMP_NUM_THREADS, if set, is the most threads. Every side
is a process of its own; one works while the others wait:

    by load        `ThreadsByLoad`, and the step compiled for any number of threads
    fixed          one number of threads throughout, and the step compiled for it
    deterministic  the same with deterministic kernels (training alone)

The work is one of these, and what is counted is how often a second it is done: a compiled step of training (`train`),
the held-out loss of 16,384 characters (`evaluate`), or a text of 64 tokens (`generate`), both by the untrained model.

Beside it so many processes as `--busy` says count without end. In each round every side works for so many seconds
beside each number of them, in an order drawn anew. Prints the median of the rate, and the median of its ratio to
the side `fixed` beside nothing of the same round, as one JSON object.
"""

import argparse
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

SIDES = ("by load", "fixed", "deterministic")
BUSY = "while True: pass"
SETTLE_SECONDS = 3.5  # beside a new load, before work is counted: three looks at the cores


def work(side: str, of: str, preset: str) -> None:
    """Work for as many seconds as each line of standard input says, and say how often a second it was done."""
    from clearformer.threads import FixedThreads, ThreadsByLoad

    prepare = {"train": training_steps, "evaluate": evaluations, "generate": texts}[of]
    with ThreadsByLoad() if side == "by load" else FixedThreads() as threads, ExitStack() as stack:
        do = prepare(side, preset, stack)
        print("ready", flush=True)
        for line in sys.stdin:
            seconds, begin, n = float(line), time.perf_counter(), 0
            end = begin + SETTLE_SECONDS + seconds
            counted = 0.0
            while (now := time.perf_counter()) < end:
                threads.adapt()
                do()
                if now - begin > SETTLE_SECONDS:
                    n += 1
                    counted += time.perf_counter() - now
            print(n / counted if n else 0.0, flush=True)


def training_steps(side: str, preset: str, stack: ExitStack) -> Callable[[], object]:
    """Return a compiled step of training."""
    import torch

    from clearformer.device import deterministic_kernels
    from clearformer.training import step
    from clearformer.training.processes.distributed import Processes
    from clearformer.training.reporting.report import Reporter
    from clearformer.training.setup import open_task
    from clearformer.training.store.checkpoint import Progress
    from clearformer.training.store.state import TrainState

    if side == "deterministic":
        stack.enter_context(deterministic_kernels(torch.device("cpu"), compiled=True))
    cpu = torch.device("cpu")
    processes = Processes.join(cpu)
    task, config = open_task(configured(preset), cpu, processes, None, lambda *_: None)
    if side != "by load":
        whole = step.compile_step
        step.compile_step = lambda function, *, dynamic, **_: whole(function, dynamic=dynamic)
    taken = step.TrainStep(config, task, TrainState.build(config, cpu), cpu, processes)
    taken.prepare(Reporter(), compiled=True)
    steps = (Progress(step=n) for n in itertools.count())
    return lambda: taken.take(next(steps))


def evaluations(_side: str, preset: str, stack: ExitStack) -> Callable[[], object]:
    """Return an evaluation of an untrained model."""
    import clearformer as cf

    run = untrained(preset)
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    file = Path(folder, "text.txt")
    file.write_text(data_file().read_text(encoding="utf-8")[:16_384], encoding="utf-8")
    return lambda: cf.evaluate(run, file)


def texts(_side: str, preset: str, _stack: ExitStack) -> Callable[[], object]:
    """Return the writing of a text by an untrained model."""
    import clearformer as cf

    run = untrained(preset)
    return lambda: cf.generate(run, "KING", max_new_tokens=64, seed=1)


def untrained(preset: str) -> Any:
    """Return a run of the preset's model with its first weights."""
    import clearformer as cf

    tokenizer = cf.tokenize(data_file().read_text(encoding="utf-8"), "char").tokenizer
    return cf.Run(cf.build(configured(preset).model.replace(vocab_size=tokenizer.vocab_size)), tokenizer)


def configured(preset: str) -> Any:
    """Return the preset's configuration on the text, compiled."""
    import clearformer as cf

    return cf.preset(preset, data={"path": str(data_file())}, train={"device": "cpu", "compile": True})


def data_file() -> Path:
    """Return the text's file."""
    return Path(os.environ["CLEARFORMER_DATA"]) / "shakespeare" / "input.txt"


class Worker:
    """A side's process."""

    def __init__(self, side: str, of: str, preset: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--worker", side, "--of", of, "--preset", preset],
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

    def times_a_second(self, seconds: float) -> float:
        """Let it work for a while."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        return float(self.answer())


def beside(n_busy: int, worker: Worker, seconds: float) -> float:
    """How often a second it is done beside so many busy processes."""
    others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(n_busy)]
    try:
        return worker.times_a_second(seconds)
    finally:
        for other in others:
            other.kill()
            other.wait()


def table(rounds: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Medians over the rounds."""
    alone = [each["rates"]["fixed"]["0"] for each in rounds]
    rows = []
    for side, by_busy in rounds[0]["rates"].items():
        for n_busy in by_busy:
            speeds = [each["rates"][side][n_busy] for each in rounds]
            ratios = [speed / fixed for speed, fixed in zip(speeds, alone, strict=True)]
            rows.append(
                {
                    "side": side,
                    "busy_processes": int(n_busy),
                    "times_a_second": round(statistics.median(speeds), 3),
                    "of_fixed_alone": round(statistics.median(ratios), 3),
                    "least": round(min(ratios), 3),
                    "most": round(max(ratios), 3),
                }
            )
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--of", choices=("train", "evaluate", "generate"), default="train")
    parser.add_argument("--preset", default="quick")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--busy", default="0,1,2", help="with 0, to which all is compared")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", choices=SIDES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        work(given.worker, given.of, given.preset)
        return
    busy = sorted({0, *map(int, given.busy.split(","))})
    sides = SIDES if given.of == "train" else SIDES[:2]
    workers = {side: Worker(side, given.of, given.preset) for side in sides}
    draws, rounds = random.Random(1), []
    for _ in range(given.rounds):
        order = [(side, n) for side in sides for n in busy]
        draws.shuffle(order)
        rates: dict[str, dict[str, float]] = {side: dict.fromkeys(map(str, busy), 0.0) for side in sides}
        for side, n in order:
            rates[side][str(n)] = round(beside(n, workers[side], given.seconds), 3)
        rounds.append({"rates": rates})
        print(json.dumps(rates), file=sys.stderr, flush=True)
    for worker in workers.values():
        worker.process.kill()
    found = {
        "cores": os.cpu_count(),
        "of": given.of,
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
