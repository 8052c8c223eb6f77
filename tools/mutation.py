"""How many small mistakes in the package its tests find: each is made in a copy, and the tests of its file are run.

    python tools/mutation.py --n 100 --seed 1 model/norms.py=tests/unit/model/test_norms.py ... > found.json

A target is a file of the package and, with commas between them, the tests that are to find the mistakes in it. Which
mistakes are made follows from the seed. One is `killed` where a test fails, a `timeout` (found, too) where the tests
hang, and has `survived` where they pass. The tests must pass without a mistake.
"""

import argparse
import ast
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch  # before a child is made, which need not import it again

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "clearformer"
BOTH_WAYS = [
    (ast.Lt, ast.LtE),
    (ast.Gt, ast.GtE),
    (ast.Eq, ast.NotEq),
    (ast.Is, ast.IsNot),
    (ast.In, ast.NotIn),
    (ast.Add, ast.Sub),
    (ast.And, ast.Or),
]
EXCHANGED: dict[type[ast.AST], type[Any]] = {
    one: other for pair in BOTH_WAYS for one, other in (pair, pair[::-1])
}
EXCHANGED |= {
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Add,
    ast.Pow: ast.Mult,
}


def mistaken(node: ast.AST) -> ast.AST | None:
    """The node with a mistake, or None where none is made."""
    match node:
        case ast.Compare(left, [operator, *more], right) if type(operator) in EXCHANGED:
            return ast.Compare(left, [EXCHANGED[type(operator)](), *more], right)
        case ast.BinOp(left, operator, right) if type(operator) in EXCHANGED:
            return ast.BinOp(left, EXCHANGED[type(operator)](), right)
        case ast.BoolOp(operator, values):
            return ast.BoolOp(EXCHANGED[type(operator)](), values)
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            return operand
        case ast.Constant(bool() as value):
            return ast.Constant(not value)
        case ast.Constant(int() | float() as value):
            return ast.Constant(value + 1)
        case ast.Return(ast.expr()):
            return ast.Return(ast.Constant(None))
        case ast.If(_, body, orelse):
            return ast.If(ast.Constant(False), body, orelse)
    return None


class Mistake(ast.NodeTransformer):
    """Makes the mistake of a number, of those that can be made in a file; annotations and messages have none.

    Attributes:
        n: How many can be made.
        told: The one that was made.
    """

    def __init__(self, number: int | None = None) -> None:
        self.number, self.n, self.told = number, 0, ""

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.Raise | ast.Import | ast.ImportFrom | ast.JoinedStr | ast.arg | ast.Assert):
            return node
        wrong = mistaken(node)
        if wrong is not None:
            self.n += 1
            if self.n - 1 == self.number:
                before, after = (ast.unparse(each).partition("\n")[0] for each in (node, wrong))
                self.told = f"line {getattr(node, 'lineno', '?')}: {before}  ->  {after}"
                return ast.copy_location(wrong, node)
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.value = node.value and self.visit(node.value)
        return node


def tried(file: str, tests: list[str], number: int | None, most_seconds: float) -> dict[str, Any]:
    """What becomes of a mistake in a file; without a number, of none."""
    mistake = Mistake(number)
    wrong = mistake.visit(ast.parse((PACKAGE / file).read_text(encoding="utf-8")))
    with tempfile.TemporaryDirectory() as scratch:
        shutil.copytree(PACKAGE, Path(scratch) / "clearformer", ignore=shutil.ignore_patterns("__pycache__"))
        (Path(scratch) / "clearformer" / file).write_text(ast.unparse(ast.fix_missing_locations(wrong)))
        begun = time.monotonic()
        outcome = in_child(scratch, tests, most_seconds)
    seconds = round(time.monotonic() - begun, 1)
    return {"file": file, "mistake": mistake.told, "outcome": outcome, "seconds": seconds}


def n_mistakes(file: str) -> int:
    """How many can be made in a file."""
    counting = Mistake()
    counting.visit(ast.parse((PACKAGE / file).read_text(encoding="utf-8")))
    return counting.n


def in_child(source: str, tests: list[str], most_seconds: float) -> str:
    """The tests, run on a package by a process that has torch already."""
    child = os.fork()
    if child == 0:
        os.setpgrp()
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        sys.path.insert(0, source)
        os.environ["PYTHONPATH"] = source
        os._exit(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests]))
    end = time.monotonic() + most_seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return "survived" if status == 0 else "killed"
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "timeout"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("targets", nargs="+", metavar="FILE=TEST,...")
    parser.add_argument("--n", type=int, default=100, help="mistakes, drawn from all that can be made")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most-seconds", type=float, default=300, help="for the tests of one mistake")
    options = parser.parse_args()
    os.chdir(ROOT)
    torch.set_num_threads(1)
    targets = {file: tests.split(",") for file, _, tests in (each.partition("=") for each in options.targets)}
    every = [(file, number) for file in targets for number in range(n_mistakes(file))]
    drawn = random.Random(options.seed).sample(every, min(options.n, len(every)))
    for file in sorted({file for file, _ in drawn}):
        if (outcome := tried(file, targets[file], None, options.most_seconds)["outcome"]) != "survived":
            parser.error(f"{file}: without a mistake the tests end as {outcome}")
    found = []
    for file, number in drawn:
        found.append(tried(file, targets[file], number, options.most_seconds))
        print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    counts = Counter(each["outcome"] for each in found)
    json.dump(
        {"of": len(every), "seed": options.seed, "counts": counts, "mistakes": found}, sys.stdout, indent=1
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
