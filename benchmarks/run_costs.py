"""What a run costs besides its steps: the time to the first one, and the time between them.

    python benchmarks/run_costs.py [--rounds 5] [--only start|between] [--json FILE] [--quick]

CLEARFORMER_DATA names a folder with `shakespeare/input.txt`. Runs and cache are made in a temporary folder.

Start: `clearformer train nanogpt-cpu train.max_steps=1` (which is not compiled), from the command to the beginning and
to the end of its only step; with an empty cache, where the text is prepared first, and with the text prepared. That the
system has read Python's and torch's files before is not undone. The plain command, on which nothing is measured but its
whole time, takes its turn beside them and shows what the measuring adds.

Between: `clearformer train quick` and `clearformer train nanogpt-cpu` as they are, from the beginning of the first step
to the end of the run. Each part is the time inside the functions named in PARTS, without that in others of them which
they call; `rest` is what no part has. `besides` is the share of everything but the steps: what `data` takes lies inside
the steps that metrics.jsonl counts, but here besides them. Checkpoints are copied here and written in a thread beside:
`waiting` is what is left to wait for, at the next one and at the run's end; what writing took is told by itself and in
no share, but it takes from the same cores, so the steps beside it are slower. Compiling comes before, the sample at the
end of the command after, and both are told apart; so is the last evaluation, which is the run's result, and counts as
the others do.

The child's standard error is a terminal, as it is for people, so that the progress bar is drawn. All commands take
turns, A B C ... A B C ...; figures are medians of the rounds. Prints one JSON object.
"""

import argparse
import contextlib
import functools
import importlib
import json
import os
import pty
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

START = ["nanogpt-cpu", "train.max_steps=1"]
BETWEEN = {"quick": ["quick"], "nanogpt-cpu": ["nanogpt-cpu"]}
QUICK_BETWEEN = {
    "quick": ["quick", "train.max_seconds=2", "train.compile=false", "train.eval_every=10"],
    "nanogpt-cpu": ["nanogpt-cpu", "train.max_steps=50"],
}

LOOP = "clearformer.training.loop"
TRAINING = f"{LOOP}:Training"
RUN, STEP = "run", "steps"
PARTS = {
    STEP: [f"{TRAINING}.step"],
    "data": ["clearformer.training.step:TrainStep.micro_batch"],
    "evaluation": [f"{TRAINING}.evaluate"],
    "checkpoints": [f"{TRAINING}.save"],
    "waiting": ["clearformer.training.store.async_checkpoint:CheckpointWriter.wait"],
    "logging": [
        "clearformer.training.reporting.run_log:RunLog.describe",
        "clearformer.training.store.folder:Metrics.append",
        "clearformer.training.reporting.console:ConsoleReporter.stepped",
    ],
}
BESIDE = {"writing": ["clearformer.training.store.checkpoint_store:CheckpointStore.write"]}
BEFORE = {
    "text": ["clearformer.training.tasks.next_token:prepare"],
    "decisions": ["clearformer.training.setup:resolve_auto"],
    "model": [f"{TRAINING}.__init__"],
    "folder": [f"{TRAINING}.start"],
    "compiling": [f"{TRAINING}.prepare_steps"],
}
FUNCTIONS = {RUN: [f"{TRAINING}.run"], **PARTS, **BESIDE, **BEFORE}


# --- in the child -----------------------------------------------------------------------------------------


class Call(NamedTuple):
    """When a function was called and came back, and how long it was in no other that is timed."""

    start: float
    end: float
    own: float


class Clock:
    """The calls of the functions that it was set on, by their part.

    By `time.time`, the clock that parent and child share.
    """

    def __init__(self) -> None:
        self.calls: dict[str, list[Call]] = defaultdict(list)
        self.in_thread = threading.local()

    @property
    def in_others(self) -> list[float]:
        """For each function under way in this thread, how long those that it called took."""
        if not hasattr(self.in_thread, "in_others"):
            self.in_thread.in_others = [0.0]
        return self.in_thread.in_others

    def set_on(self, place: str, part: str) -> None:
        """Time the function at `module:name.name` under the name of a part."""
        module, _, path = place.partition(":")
        *owners, name = path.split(".")
        owner = functools.reduce(getattr, owners, importlib.import_module(module))
        setattr(owner, name, self.timed(getattr(owner, name), part))

    def timed(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.time()
            self.in_others.append(0.0)
            try:
                return function(*args, **kwargs)
            finally:
                end = time.time()
                self.calls[part].append(Call(start, end, end - start - self.in_others.pop()))
                self.in_others[-1] += end - start

        return call


def train_under_the_clock(file: Path, arguments: list[str]) -> int:
    """The command in this process, its functions timed; what was found goes into a file."""
    clock = Clock()
    for part, places in FUNCTIONS.items():
        for place in places:
            clock.set_on(place, part)
    imported = time.time()
    from clearformer.cli import main as clearformer

    status = clearformer(arguments)
    file.write_text(json.dumps({"imported": imported, "calls": clock.calls}))
    return status


# --- in the parent ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timed:
    """One command: when it was given and when it was over, when its imports were, and its calls by part."""

    asked: float
    over: float
    imported: float
    calls: Mapping[str, Sequence[Call]]

    @property
    def first_step(self) -> Call:
        return self.calls[STEP][0]

    @property
    def run_end(self) -> float:
        return self.calls[RUN][0].end


def timed_command(arguments: list[str], scratch: Path, cache: Path) -> Timed:
    """`clearformer train` with its functions timed."""
    file = scratch / "calls.json"
    command = [sys.executable, __file__, "--inside", str(file), *train_command(arguments)]
    asked, over = run_in_terminal(command, scratch, cache)
    told = json.loads(file.read_text())
    calls = {part: [Call(*call) for call in calls] for part, calls in told["calls"].items()}
    return Timed(asked, over, told["imported"], calls)


def plain_command(arguments: list[str], scratch: Path, cache: Path) -> float:
    """`clearformer train` as it is; returns its seconds."""
    command = [sys.executable, "-m", "clearformer", *train_command(arguments)]
    asked, over = run_in_terminal(command, scratch, cache)
    return over - asked


def train_command(arguments: list[str]) -> list[str]:
    return ["train", *arguments, "--run", f"run-{time.time_ns()}"]


def run_in_terminal(command: list[str], scratch: Path, cache: Path) -> tuple[float, float]:
    """Run a command whose standard error is a terminal; returns when it was begun and over."""
    environment = os.environ | {
        "CLEARFORMER_CACHE": str(cache),
        "CLEARFORMER_RUNS": str(scratch),
        "TERM": "xterm-256color",
        "COLUMNS": "120",
    }
    ours, theirs = pty.openpty()
    shown: list[bytes] = []
    reader = threading.Thread(target=read_all, args=(ours, shown))
    reader.start()
    asked = time.time()
    done = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=theirs, check=False)
    over = time.time()
    os.close(theirs)
    reader.join()
    os.close(ours)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{b''.join(shown).decode(errors='replace')[-2000:]}")
    return asked, over


def read_all(descriptor: int, into: list[bytes]) -> None:
    """Take what a terminal shows until nobody writes to it any more, which Linux tells as an error."""
    with contextlib.suppress(OSError):
        while data := os.read(descriptor, 2**16):
            into.append(data)


# --- start ------------------------------------------------------------------------------------------------


def start_figures(timed: Timed) -> dict[str, float]:
    """Seconds from the command to the first step's beginning and end, and what they went into."""
    began = timed.first_step.start
    parts = {
        part: sum(call.own for call in timed.calls.get(part, ()) if call.start < began) for part in BEFORE
    }
    imports = timed.imported - timed.asked
    return {
        "to_first_step": began - timed.asked,
        "to_its_end": timed.first_step.end - timed.asked,
        "whole": timed.over - timed.asked,
        "imports": imports,
        **parts,
        "rest": began - timed.asked - imports - sum(parts.values()),
    }


def one_start_round(scratch: Path, prepared: Path) -> dict[str, dict[str, float]]:
    """The command without a prepared text, with one, and with nothing measured inside it."""
    empty = Path(tempfile.mkdtemp(dir=scratch))
    return {
        "empty cache": start_figures(timed_command(START, scratch, empty)),
        "text prepared": start_figures(timed_command(START, scratch, prepared)),
        "text prepared, plain": {"whole": plain_command(START, scratch, prepared)},
    }


# --- between the steps ------------------------------------------------------------------------------------


def between_figures(timed: Timed) -> dict[str, float]:
    """Seconds of the run's parts, their shares of it, and how often each came."""
    began = timed.first_step.start
    wall = timed.run_end - began
    calls = {part: [c for c in timed.calls.get(part, ()) if c.start >= began] for part in PARTS}
    seconds = {part: sum(call.own for call in calls[part]) for part in PARTS}
    seconds["rest"] = wall - sum(seconds.values())
    shares = {part: value / wall for part, value in seconds.items()}
    return {
        "besides": 1 - shares[STEP],
        **{f"share of {part}": share for part, share in shares.items()},
        "wall_seconds": wall,
        **{f"seconds of {part}": value for part, value in seconds.items()},
        **{f"times of {part}": len(calls[part]) for part in PARTS},
        "seconds of writing beside": sum(call.own for part in BESIDE for call in timed.calls.get(part, ())),
        "share of last evaluation": calls["evaluation"][-1].own / wall,
        "median_ms_of_step": 1000 * statistics.median(call.own for call in calls[STEP]),
        "seconds_to_first_step": began - timed.asked,
        "seconds_of_compiling": sum(call.own for call in timed.calls.get("compiling", ())),
        "seconds_after": timed.over - timed.run_end,
    }


# --- telling ----------------------------------------------------------------------------------------------


def summary(rounds: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, Any]:
    """For each command the medians of its figures, and the rounds of the first, which is what it is about."""
    return {
        name: {
            **{
                figure: rounded(statistics.median(told[name][figure] for told in rounds))
                for figure in figures
            },
            "rounds": [rounded(told[name][next(iter(figures))]) for told in rounds],
        }
        for name, figures in rounds[0].items()
    }


def rounded(value: float) -> float:
    return float(f"{value:.4g}")


def versions() -> dict[str, Any]:
    import torch

    from clearformer.device import processor_name

    return {
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
    }


def main() -> int:
    if sys.argv[1:2] == ["--inside"]:
        return train_under_the_clock(Path(sys.argv[2]), sys.argv[3:])
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, help="default: 5, and 1 with --quick")
    parser.add_argument("--only", choices=("start", "between"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="short runs, to see that it works")
    arguments = parser.parse_args()
    n_rounds = arguments.rounds or (1 if arguments.quick else 5)
    commands = QUICK_BETWEEN if arguments.quick else BETWEEN
    starts, betweens = [], []
    with tempfile.TemporaryDirectory() as name:
        scratch, prepared = Path(name), Path(name) / "prepared"
        for warm_up in (START, ["quick", "train.max_steps=1", "train.compile=false"]):
            plain_command(warm_up, scratch, prepared)  # prepares both texts
        for _ in range(n_rounds):
            if arguments.only != "between":
                starts.append(one_start_round(scratch, prepared))
            if arguments.only != "start":
                betweens.append(
                    {
                        what: between_figures(timed_command(settings, scratch, prepared))
                        for what, settings in commands.items()
                    }
                )
    result = versions() | {
        "rounds": n_rounds,
        **({"start": {"command": START, **summary(starts)}} if starts else {}),
        **({"between": {"commands": commands, **summary(betweens)}} if betweens else {}),
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
