"""`make fuzz`: the long form, for as long as is asked; every failure is printed and kept in a file."""

import argparse
import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch

from .cases import parse
from .runner import Campaign, Failure, prepared, verdict_in_child
from .targets import TARGETS


def main() -> int:
    """Exit status 1 where a case fails."""
    options = parser().parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads do not outlive a fork
    torch.set_num_threads(1)
    warnings.simplefilter("error")  # as in the tests
    with tempfile.TemporaryDirectory(prefix="clearformer-fuzz-") as folder:
        home = Path(folder)
        if options.case:
            return again(options.case, home)
        names = options.target or list(TARGETS)
        print(f"{options.seconds:g} s of {', '.join(names)}, by seed {options.seed}", flush=True)
        campaign = Campaign(options.seconds, options.seed, prepared(home, names), names)
        failed = 0
        for failure in campaign.failures():
            failed += 1
            print(failure.told(), flush=True)
            with options.keep.open("a", encoding="utf-8") as file:
                file.write(failure.case.line() + "\n")
    kept = f", kept in {options.keep}" if failed else ""
    print(f"{campaign.n_tried:,} cases, {failed} failures{kept}")
    return 1 if failed else 0


def again(line: str, home: Path) -> int:
    """Try one case."""
    case = parse(line)
    wrong = verdict_in_child(case, prepared(home, [case.target]))
    print(Failure(case, wrong).told() if wrong else "it ends as it must")
    return 1 if wrong else 0


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    options.add_argument("--seconds", type=float, default=60)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--target", action="append", choices=list(TARGETS), help="one of them (all)")
    options.add_argument("--keep", type=Path, default=Path("fuzz-failures.jsonl"), help="where failures go")
    options.add_argument("--case", help="try this one alone, as it was printed")
    return options


if __name__ == "__main__":
    sys.exit(main())
