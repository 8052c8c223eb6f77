"""Runs of the command line, each in a process of its own, for what compares them."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def run_and_evaluate(
    settings: list[str], name: str, runs: Path, n_threads: int | None = None
) -> dict[str, Any]:
    """Train with some settings, evaluate on the whole held-out split at `eval`'s stride; what `eval --json` says.

    Raises:
        SystemExit: training failed; with the last line of what it said.
    """
    trained(settings, name, runs, n_threads)
    return evaluated(name, runs, n_threads)


def trained(settings: list[str], name: str, runs: Path, n_threads: int | None = None) -> tuple[float, str]:
    """Train with some settings; the seconds from the command to its last line, and what it said.

    Raises:
        SystemExit: training failed; with the last line of what it said.
    """
    began = time.perf_counter()
    done = _command(["train", *settings, "--run", name], runs, n_threads)
    taken = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(f"{' '.join(settings)}: {done.stderr.strip().splitlines()[-1]}")
    return taken, done.stdout + done.stderr


def evaluated(name: str, runs: Path, n_threads: int | None = None) -> dict[str, Any]:
    """What `eval --json` says of a run."""
    done = _command(["eval", name, "--json"], runs, n_threads)
    done.check_returncode()
    return json.loads(done.stdout)


def _command(arguments: list[str], runs: Path, n_threads: int | None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"CLEARFORMER_RUNS": str(runs)}
    if n_threads is not None:
        environment["OMP_NUM_THREADS"] = str(n_threads)
    command = [sys.executable, "-m", "clearformer", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def last_metrics(name: str, runs: Path) -> dict[str, Any]:
    """The last line of a run's metrics."""
    return json.loads((runs / name / "metrics.jsonl").read_text().splitlines()[-1])
