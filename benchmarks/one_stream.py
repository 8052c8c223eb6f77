"""Generation of one stream in two checkouts, a text here and a text there: which is slower, and by how much?

    python benchmarks/one_stream.py BEFORE_FOLDER AFTER_FOLDER [--launches 10] [--rounds 100] [--json FILE]

A model as the preset `quick` has it, with random weights, continues one text of 16 tokens by 20, greedy, uncompiled.
Each checkout works in a process of its own, which waits while the other works: in each round both write one text, in an
order drawn anew. Slow spells of a shared machine outlast a round, so the rounds' ratios say more than the times do.
Two processes of one checkout differ by more than their rounds' scatter tells, by where their weights came to lie: so
both are launched several times, and the standard error is that of the launches. Prints the launches' geometric means,
and the mean of these. OMP_NUM_THREADS is handed on.
"""

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

VOCABULARY, PROMPT, NEW = 103, 16, 20
WARM_UP = 10
WORKER = "--worker"


def quick_model() -> Any:
    """The preset's model, with the embedding norm that it did not have at first."""
    import torch

    import clearformer as cf

    torch.manual_seed(1)
    config = cf.preset("quick").model
    sizes = {"vocab_size": VOCABULARY, "max_seq_len": 256, "embedding_norm": True}
    return cf.build(type(config).model_validate({**config.model_dump(), **sizes})).eval()


def work() -> None:
    """Write a text for every line of standard input, and say how many seconds it took."""
    try:
        from clearformer.decoding import Sampling, collect, generate_tokens, random_stream
    except ImportError:  # a checkout from before the package was renamed
        from clearformer.generate import (  # type: ignore[import-not-found,no-redef]
            Sampling,
            collect,
            generate_tokens,
            random_stream,
        )
    model, prompt = quick_model(), list(range(3, 3 + PROMPT))

    def write() -> float:
        start = time.perf_counter()
        streams = [random_stream(0, 0)]
        collect(generate_tokens(model, [prompt], NEW, Sampling(temperature=0.0), streams, compiled=False), 1)
        return time.perf_counter() - start

    for _ in range(WARM_UP):
        write()
    for _ in sys.stdin:
        print(write(), flush=True)


def ask(worker: subprocess.Popen[str]) -> float:
    """The seconds of one text."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write("\n")
    worker.stdin.flush()
    return float(worker.stdout.readline())


def start(folder: Path) -> subprocess.Popen[str]:
    """A checkout's process, warmed up."""
    environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
    command = [sys.executable, __file__, WORKER]
    worker = subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    ask(worker)
    return worker


def main() -> None:
    """Measure and print."""
    if sys.argv[1:] == [WORKER]:
        work()
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--launches", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=100, help="of each launch")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    folders = {name: getattr(given, name).resolve() for name in ("before", "after")}
    launches = [launch(folders, given.rounds) for _ in range(given.launches)]
    logs = [mean_log_ratio(rounds) for rounds in launches]
    found = {
        "mean": math.exp(statistics.mean(logs)),
        "standard_error": statistics.stdev(logs) / len(logs) ** 0.5 if len(logs) > 1 else None,
        "launches": [round(math.exp(log), 4) for log in logs],
        "threads": os.environ.get("OMP_NUM_THREADS", "all"),
    }
    print(json.dumps(found))
    if given.json:
        given.json.write_text(json.dumps({**found, "rounds": launches}) + "\n")


def launch(folders: dict[str, Path], n_rounds: int) -> list[dict[str, float]]:
    """The seconds of each checkout's text in each round of a new pair of processes."""
    workers = {name: start(folders[name]) for name in random.sample(list(folders), 2)}
    rounds = []
    for _ in range(n_rounds):
        order = random.sample(list(workers), 2)
        rounds.append({name: round(ask(workers[name]), 5) for name in order})
    for worker in workers.values():
        worker.kill()
    return rounds


def mean_log_ratio(rounds: list[dict[str, float]]) -> float:
    """The mean over the rounds of the logarithm of after / before."""
    return statistics.mean(math.log(each["after"] / each["before"]) for each in rounds)


if __name__ == "__main__":
    main()
