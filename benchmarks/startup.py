"""What a person waits for after the Enter key: a command's help, the first token, an evaluation, the first step.

    python benchmarks/startup.py [--rounds 5] [--before CHECKOUT] [--json FILE]

A run of `quick` is trained for a few steps, not compiled, in a temporary folder; how good it is has no part in the
times. Then each of these takes its turn, in a new process, round after round:

    help            `clearformer COMMAND --help` of every command, to its end
    generate        `clearformer generate RUN` to the first new token
    eval            `clearformer eval RUN` of the whole held-out split, to its end
    train           `clearformer train quick train.compile=false` to the first step in metrics.jsonl; then it is ended
    torch           `import torch` alone, to the end of the process
    transformers    a GPT-2 of the same sizes from its folder to the first new token; it has no tokenizer to read

With --before the same commands of another checkout take their turns beside these. All is warm: a round that is not
counted comes first, in which Python's files are compiled and the system reads all of them. With --json the rounds of an
earlier call are kept, and further ones added. Figures are medians of seconds, by the clock and of the processor; of the
helps the slowest is told. Prints one JSON object.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import clearformer as cf
from clearformer.bench.loading import THEIR_FIRST_TOKEN
from clearformer.bench.machine import describe, measure_limits
from clearformer.bench.peers import in_transformers
from clearformer.cli import COMMANDS
from clearformer.device import resolve_device

HERE = Path(cf.__file__).parents[2]
STEPS = ("train.max_steps=2", "train.compile=false")
EACH_STEP = ("train.log_every=1", "train.compile=false")
PROGRAM = (sys.executable, "-m", "clearformer")

Seconds = dict[str, float]
"""By the `clock` and of the `processor`."""


@dataclass(frozen=True)
class Wait:
    """A command, and what a person waits for: its end, its first words, or a file that it writes."""

    command: tuple[str, ...]
    until: str | Path = "end"

    def seconds(self, environment: Mapping[str, str]) -> Seconds:
        """How long it takes once."""
        start = time.perf_counter()
        with subprocess.Popen(
            self.command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            self._wait(process)
            seconds = time.perf_counter() - start
            return {"clock": seconds, "processor": self._end(process)}

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        if isinstance(self.until, Path):
            while not (self.until.exists() and self.until.stat().st_size):
                if process.poll() is not None:
                    raise SystemExit(f"{' '.join(self.command)} ended with {process.returncode}")
                time.sleep(0.002)
        elif self.until == "first words":
            process.stdout.read(1)
        else:
            process.stdout.read()
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

    def _end(self, process: subprocess.Popen[bytes]) -> float:
        """Let it end, or end it where it is not waited for; its processor's seconds."""
        if isinstance(self.until, Path):
            os.killpg(process.pid, signal.SIGKILL)
        assert process.stdout is not None
        process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in (0, -signal.SIGKILL):
            raise SystemExit(f"{' '.join(self.command)} ended with {process.returncode}")
        return usage.ru_utime + usage.ru_stime


# --- what is waited for -----------------------------------------------------------------------------------


def waits(run: Path, metrics: Path) -> dict[str, Wait]:
    """The waits for one checkout's commands, by their names."""
    return {
        **{f"help {name}": Wait((*PROGRAM, name, "--help")) for name in COMMANDS},
        "generate": Wait((*PROGRAM, "generate", str(run), "--max-new-tokens", "1"), "first words"),
        "eval": Wait((*PROGRAM, "eval", str(run))),
        "train": Wait((*PROGRAM, "train", "quick", *EACH_STEP, "--run", metrics.parent.name), metrics),
    }


def others(theirs: Path) -> dict[str, Wait]:
    """What stands beside them."""
    code = f"{THEIR_FIRST_TOKEN}print('a token', flush=True)"
    return {
        "torch": Wait((sys.executable, "-c", "import torch")),
        "transformers": Wait((sys.executable, "-c", code, str(theirs)), "first words"),
    }


def one_round(sides: Mapping[str, Path], folder: Path) -> dict[str, Seconds]:
    """Every wait once, the sides of each in turn."""
    found: dict[str, Seconds] = {}
    metrics = folder / "first-step" / "metrics.jsonl"
    for name in waits(folder / "run", metrics):
        for side, checkout in sides.items():
            shutil.rmtree(metrics.parent, ignore_errors=True)
            wait = waits(folder / "run", metrics)[name]
            found[f"{side}: {name}"] = wait.seconds(environment(checkout, folder))
    for name, wait in others(folder / "theirs").items():
        found[name] = wait.seconds(environment(HERE, folder))
    return found


def environment(checkout: Path, runs: Path) -> dict[str, str]:
    """The variables of a command of some checkout; its Python may keep what it compiles, as a person's does."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPATH": str(checkout / "src"), "CLEARFORMER_RUNS": str(runs)}


def prepare(folder: Path) -> None:
    """Train the run that is opened, and write a model of its sizes as transformers has it."""
    command = (*PROGRAM, "train", "quick", *STEPS, "--run", "run")
    subprocess.run(command, env=environment(HERE, folder), check=True, capture_output=True)
    theirs, _ = in_transformers(cf.load(folder / "run", device="cpu").model)  # type: ignore[arg-type]
    theirs.save_pretrained(folder / "theirs")  # type: ignore[operator]


# --- what is told -----------------------------------------------------------------------------------------


def medians(rounds: list[dict[str, Seconds]]) -> dict[str, Any]:
    """The median of each wait; of the helps of a side the slowest, by name."""
    times = {
        name: {
            kind: round(statistics.median(each[name][kind] for each in rounds), 3) for kind in rounds[0][name]
        }
        for name in rounds[0]
    }
    helps: dict[str, dict[str, Seconds]] = defaultdict(dict)
    told: dict[str, Any] = {}
    for name, seconds in times.items():
        side, _, command = name.partition(": help ")
        if command:
            helps[side][command] = seconds
        else:
            told[name] = seconds
    for side, of_side in helps.items():
        slowest = max(of_side, key=lambda command: of_side[command]["clock"])
        told[f"{side}: help"] = of_side[slowest] | {"slowest": slowest}
    return told


def main() -> None:
    """Measure, and print what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--before", type=Path, help="another checkout, whose commands are timed beside these")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    earlier = json.loads(given.json.read_text())["rounds"] if given.json and given.json.exists() else []
    sides = {"before": given.before.resolve()} if given.before else {}
    sides["now"] = HERE
    device = resolve_device("cpu")
    report: dict[str, Any] = {"machine": describe(device, measure_limits(device))}
    rounds = list(earlier)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        prepare(folder)
        one_round(sides, folder)
        for number in range(given.rounds):
            print(f"round {number + 1} of {given.rounds}", file=sys.stderr, flush=True)
            rounds.append(one_round(sides, folder))
            report |= {"medians": medians(rounds), "rounds": rounds}
            if given.json:
                given.json.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps({name: report[name] for name in ("machine", "medians")}, indent=1))


if __name__ == "__main__":
    main()
