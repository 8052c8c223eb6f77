"""All that is to be measured on one GPU, in stages of less than ten minutes; also whether the code is right there.

    python benchmarks/gpu.py --json FILE [--nanogpt FOLDER]                every stage that FILE does not hold yet
    python benchmarks/gpu.py --json FILE --stage decode [--again]          one of them
    python benchmarks/gpu.py --table FILE                                  what FILE holds, as Markdown
    python benchmarks/gpu.py --json FILE --dry                             tiny sizes on a CPU: whether it runs at all

    tests         what is marked `gpu`: the same numbers as on a CPU, resuming, compiling, CUDA graphs, two processes
    train-124m    GPT-2's shape: tokens a second, MFU, memory beside the plan; transformers beside it, if installed
    train-1.5b    GPT-2 XL's shape
    shakespeare   nanoGPT's recipe for a GPU: the time of training to nanoGPT's own held-out loss of 1.4697
    decode        greedy generation by CUDA graphs and as it is written, of 1, 16 and 64 streams; transformers beside it
    nanogpt       training beside nanoGPT by its recipe for a GPU, where its folder is given
    nanogpt-124m  the same of GPT-2's shape

CLEARFORMER_DATA names a folder with `shakespeare/input.txt` and `gpt2-bpe/`. Nothing is fetched. Run from a checkout
with PYTHONPATH=src, or after installing it. Each stage has a process of its own, is written to FILE as soon as it is
done, and is not done again; one that fails is told of, tried again next time, and keeps no other from its turn.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpu_stages import DRY, FULL, STAGES, Options, Skipped, installed
from gpu_table import DONE, table

NEEDED = {
    "torch": "torch",
    "numpy": "numpy",
    "pydantic": "pydantic",
    "tomli_w": "tomli-w",
    "tokenizers": "tokenizers",
    "safetensors": "safetensors",
    "jaxtyping": "jaxtyping",
    "pytest": "pytest",
    "clearformer": "clearformer (PYTHONPATH=src)",
}
"""What is imported, and by what name it is installed."""

DATA = ("shakespeare/input.txt", "gpt2-bpe/encoder.json", "gpt2-bpe/vocab.bpe")
MOST_SECONDS = 590  # of a stage

FAILED, SKIPPED = "failed", "skipped"


# --- results ----------------------------------------------------------------------------------------------


def read_results(file: Path) -> dict[str, Any]:
    """What the file holds so far."""
    return json.loads(file.read_text()) if file.is_file() else {"stages": {}}


def keep(file: Path, stage: str, result: dict[str, Any]) -> None:
    """Write one stage's result beside the others: all of it or nothing."""
    results = read_results(file)
    results["stages"][stage] = result
    beside = file.with_name(f".{file.name}.new")
    beside.write_text(json.dumps(results, indent=1) + "\n")
    beside.replace(file)


def run_stage(stage: str, options: Options) -> dict[str, Any]:
    """One stage's result, whatever becomes of it."""
    start = time.perf_counter()
    try:
        told = {"state": DONE, "figures": STAGES[stage](options)}
        if failed := told["figures"].get("failed"):
            which = ", ".join(told["figures"]["which_failed"])
            told |= {"state": FAILED, "error": f"{failed} tests failed: {which}"}
    except Skipped as reason:
        told = {"state": SKIPPED, "error": str(reason)}
    except Exception as error:  # whatever it is, the other stages have their turn
        traceback.print_exc()
        told = {"state": FAILED, "error": f"{type(error).__name__}: {first_line(error)}"}
    return about(stage, options) | told | {"seconds": round(time.perf_counter() - start, 3)}


def first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "")


def about(stage: str, options: Options) -> dict[str, Any]:
    """How a result can be had again."""
    command = ["python", "benchmarks/gpu.py", "--stage", stage, "--seed", str(options.seed)]
    command += ["--nanogpt", "FOLDER"] if options.nanogpt else []
    return {
        "command": " ".join([*command, *(["--dry"] if options.dry else [])]),
        "seed": options.seed,
        "dry": options.dry,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def is_done(results: dict[str, Any], stage: str, dry: bool) -> bool:
    """Whether a stage need not be done again; what a dry run found is nothing to a real one."""
    result = results["stages"].get(stage, {})
    return result.get("state") == DONE and result["dry"] == dry


def in_a_process_of_its_own(stage: str, file: Path, arguments: Sequence[str], options: Options) -> None:
    """One stage, ended where it takes too long; what it could not write itself is written here."""
    before = read_results(file)["stages"].get(stage)
    command = [sys.executable, __file__, "--stage", stage, *arguments]
    child = subprocess.Popen(command, start_new_session=True)
    try:
        status: int | str = child.wait(MOST_SECONDS)
    except subprocess.TimeoutExpired:
        status = f"took more than {MOST_SECONDS} s"
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)  # nanoGPT or pytest may run under it
            child.wait()
    if status and read_results(file)["stages"].get(stage) == before:
        error = status if isinstance(status, str) else f"exit status {status}"
        keep(file, stage, about(stage, options) | {"state": FAILED, "error": error})


# --- the command ------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="where the results are kept")
    parser.add_argument("--stage", choices=tuple(STAGES), help="this one alone, in this process")
    parser.add_argument("--again", action="store_true", help="also what is done already")
    parser.add_argument("--nanogpt", type=Path, help="a checkout of nanoGPT")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dry", action="store_true", help="tiny sizes on a CPU; all in this process")
    parser.add_argument(
        "--table", type=Path, help="print what this file holds as Markdown, and measure nothing"
    )
    options = parser.parse_args(given)
    if options.table is not None:
        print(table(read_results(options.table)), end="")
        return 0
    if options.json is None:
        parser.error("--json FILE says where the results are kept")
    if lacking := what_is_lacking(options.dry):
        print(f"benchmarks/gpu.py: {lacking}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        nanogpt = options.nanogpt and options.nanogpt.resolve()
        chosen = Options(DRY if options.dry else FULL, options.seed, nanogpt, Path(scratch))
        return run_stages(options, chosen, without(given, "--stage"))


def run_stages(command: argparse.Namespace, options: Options, arguments: Sequence[str]) -> int:
    """Those asked for that are not done yet; 1 where one of them has failed."""
    stages = [command.stage] if command.stage else list(STAGES)
    for stage in stages:
        if not command.again and is_done(read_results(command.json), stage, options.dry):
            print(f"{stage}: done already", file=sys.stderr)
            continue
        print(f"{stage}:", file=sys.stderr, flush=True)
        if command.stage or options.dry:
            keep(command.json, stage, run_stage(stage, options))
        else:
            in_a_process_of_its_own(stage, command.json, arguments, options)
    found = {stage: read_results(command.json)["stages"][stage] for stage in stages}
    for stage, result in found.items():
        print(f"{stage}: {result['state']} {result.get('error', '')}".rstrip(), file=sys.stderr)
    return int(any(result["state"] == FAILED for result in found.values()))


def without(arguments: Sequence[str], option: str) -> list[str]:
    """The arguments of a command without one option and its value."""
    kept, skip = [], False
    for argument in arguments:
        if skip or argument == option:
            skip = not skip
        elif not argument.startswith(f"{option}="):
            kept.append(argument)
    return kept


def what_is_lacking(dry: bool) -> str | None:
    """In one line, the first kind of thing without which nothing can be measured."""
    if missing := [name for module, name in NEEDED.items() if not installed(module)]:
        return f"not installed here: {', '.join(missing)}"
    if dry:
        return None
    import torch

    if not torch.cuda.is_available():
        return "there is no CUDA device here; --dry runs every stage at tiny sizes on a CPU"
    folder = os.environ.get("CLEARFORMER_DATA")
    if not folder:
        return f"CLEARFORMER_DATA names no folder; it must hold {', '.join(DATA)}"
    if absent := [name for name in DATA if not (Path(folder) / name).is_file()]:
        return f"CLEARFORMER_DATA={folder} lacks {', '.join(absent)}"
    return None


if __name__ == "__main__":
    sys.exit(main())
