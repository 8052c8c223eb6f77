"""Runs of the command line, each in a process of its own, for what compares them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def run_and_evaluate(
    settings: list[str], name: str, runs: Path, n_threads: int | None = None
) -> dict[str, Any]:
    """Train with some settings, evaluate on the whole held-out split at `eval`'s stride; what `eval --json` says.

    Raises:
        SystemExit: training failed; with the last line of what it said.
    """
    environment = os.environ | {"CLEARFORMER_RUNS": str(runs)}
    if n_threads is not None:
        environment["OMP_NUM_THREADS"] = str(n_threads)
    command = [sys.executable, "-m", "clearformer"]
    done = subprocess.run(
        [*command, "train", *settings, "--run", name],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(settings)}: {done.stderr.strip().splitlines()[-1]}")
    told = subprocess.run(
        [*command, "eval", name, "--json"], env=environment, capture_output=True, text=True, check=True
    )
    return json.loads(told.stdout)


def last_metrics(name: str, runs: Path) -> dict[str, Any]:
    """The last line of a run's metrics."""
    return json.loads((runs / name / "metrics.jsonl").read_text().splitlines()[-1])
