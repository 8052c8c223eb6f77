"""Mutation check: measure the share of small mistakes in the package that its tests find.

    python tools/mutation.py reach FOLDER TESTS...                   which test reaches which line (needs coverage >= 7)
    python tools/mutation.py sample FOLDER FILES... --n 300 --seed 1 try a sample of the mutants of these files
    python tools/mutation.py again FOLDER [--equivalent FILE]        try the survivors again, with more tests
    python tools/mutation.py report FOLDER [--equivalent FILE]       the shares and the survivors, as JSON

FILES are files or folders of the package (`model`, `runs/folders.py`). A mutant is one changed operator, constant,
condition or returned value. It is tried in a copy of the package, in a forked process, against the tests that reach its
statement, the quickest first. If one fails, it is `killed` (`timeout` counts as killed, too); if all pass, it has
`survived`; if no test reaches it, it is `unreached`, which counts as survived.

FOLDER stores the results: `reach.json`, `drawn.json`, and `tried.jsonl`, to which each result is appended at once, so
that an interrupted run can be resumed. `reach` may be called again with new or changed tests. `--equivalent` names a
JSON object of mutants that change no behaviour, found by hand, each with the reason; they are counted separately.
"""

import argparse
import ast
import importlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis.configuration
import pytest
import torch

# Imported before a child is forked, so that it need not import them again.
IMPORTED = (
    "anyio",
    "beartype.claw",
    "jaxtyping",
    "numpy",
    "pydantic",
    "rich.console",
    "safetensors.torch",
    "sympy",
    "tokenizers",
    "torch._dynamo",
    "typer",
)
SWAPS = [
    (ast.Lt, ast.LtE),
    (ast.Gt, ast.GtE),
    (ast.Eq, ast.NotEq),
    (ast.Is, ast.IsNot),
    (ast.In, ast.NotIn),
    (ast.Add, ast.Sub),
    (ast.And, ast.Or),
]
REPLACEMENT: dict[type[ast.AST], type[Any]] = {
    one: other for pair in SWAPS for one, other in (pair, pair[::-1])
}
REPLACEMENT |= {
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Add,
    ast.Pow: ast.Mult,
}
UNTOUCHED = (
    ast.Raise,
    ast.Import,
    ast.ImportFrom,
    ast.JoinedStr,
    ast.arg,
    ast.Assert,
)  # messages, annotations
MAX_BYTES = 12 << 30  # of memory, for the tests of a mutant
PYTEST = [
    *("-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"),
    *("-p", "no:unraisableexception"),  # files compiled while shapes are checked are closed late
]
ADDED_SECONDS = 60  # for the start, added to the time after which a mutant's tests count as hanging


@dataclass(frozen=True)
class Budget:
    """The most tests that are run on one mutant.

    Attributes:
        tests: The number of tests.
        cases: The number of cases of each parametrised test.
        seconds: Their total duration.
    """

    tests: int
    cases: int
    seconds: float


QUICK, THOROUGH = Budget(30, 3, 15), Budget(200, 30, 60)


# --- mutants ----------------------------------------------------------------------------------------------


def mutated(node: ast.AST) -> ast.AST | None:
    """Return the node with a mistake, or None if no mistake is defined for it."""
    match node:
        case ast.Compare(left, [operator, *more], right) if type(operator) in REPLACEMENT:
            return ast.Compare(left, [REPLACEMENT[type(operator)](), *more], right)
        case ast.BinOp(left, operator, right) if type(operator) in REPLACEMENT:
            return ast.BinOp(left, REPLACEMENT[type(operator)](), right)
        case ast.BoolOp(operator, values):
            return ast.BoolOp(REPLACEMENT[type(operator)](), values)
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            return operand
        case ast.Constant(bool() as value):
            return ast.Constant(not value)
        case ast.Constant(int() | float() as value):
            return ast.Constant(value + 1)
        case ast.Return(ast.expr() as value) if ast.unparse(value) != "None":
            return ast.Return(ast.Constant(None))
        case ast.If(_, body, orelse):
            return ast.If(ast.Constant(False), body, orelse)
    return None


@dataclass(frozen=True)
class Mutant:
    """One mistake in a file.

    Attributes:
        file: The file, in the package.
        number: Its index among the mutants of the file.
        line, column: Its place.
        change: The code before and after.
        first, last: The lines of its statement; tests that reach one of them can find it.
        at_import: Whether its code runs when the file is imported, so that tests of other lines may find it, too.
    """

    file: str
    number: int
    line: int
    column: int
    change: str
    first: int
    last: int
    at_import: bool

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.change}"

    def is_own(self, test: str) -> bool:
        """Whether a test belongs to this file's own unit tests."""
        return test.startswith(f"tests/unit/{Path(self.file).parent / f'test_{Path(self.file).name}'}::")


class Mutator(ast.NodeTransformer):
    """Lists the mutants of a file, and makes the one with a given number."""

    def __init__(self, file: str, number: int | None = None) -> None:
        self.file, self.number = file, number
        self.mutants: list[Mutant] = []
        self.around: list[ast.AST] = []  # the enclosing statements, from the file to the innermost

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, UNTOUCHED):
            return node
        is_statement = isinstance(node, ast.stmt | ast.Module)
        if is_statement:
            self.around.append(node)
        result = self.change(node)
        if is_statement:
            self.around.pop()
        return result

    def change(self, node: ast.AST) -> ast.AST:
        wrong = mutated(node)
        if wrong is not None:
            before, after = (ast.unparse(each).partition("\n")[0] for each in (node, wrong))
            number, place = len(self.mutants), (node.lineno, node.col_offset + 1)  # type: ignore[attr-defined]
            change = f"{before}  ->  {after}"
            at_import = not is_in_a_body(self.around)
            self.mutants.append(
                Mutant(self.file, number, *place, change, *lines_to_reach(self.around), at_import)
            )
            if number == self.number:
                return ast.copy_location(wrong, node)
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.value = node.value and self.visit(node.value)
        return node


DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def is_in_a_body(around: Sequence[ast.AST]) -> bool:
    """Whether the innermost statement runs when a function is called, and not at import."""
    return any(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in around[:-1])


def lines_to_reach(around: Sequence[ast.AST]) -> tuple[int, int]:
    """Return the lines of the innermost statement, without its body; for code run at import, of the whole definition.

    A file's constants count as reached by every test that reaches any line of the file.
    """
    here: Any = around[-1]
    if is_in_a_body(around) and not isinstance(here, DEFINITIONS):
        body = getattr(here, "body", None)
        return here.lineno, max(here.lineno, body[0].lineno - 1) if body else here.end_lineno
    for each in reversed(around):
        if isinstance(each, DEFINITIONS):
            return each.lineno, each.end_lineno or each.lineno
    return 0, sys.maxsize


def mutants_of(path: Path, file: str) -> list[Mutant]:
    """Return all mutants of a file."""
    mutator = Mutator(file)
    mutator.visit(ast.parse(path.read_text(encoding="utf-8")))
    return mutator.mutants


# --- which test reaches what ------------------------------------------------------------------------------


class Reached:
    """Records which lines tests reach, as a plugin of pytest; tests that fail or are skipped are left out."""

    def __init__(self, coverage: Any) -> None:
        self.coverage, self.seconds, self.not_passed = coverage, {}, set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.coverage.switch_context(item.nodeid)
        begun = time.monotonic()
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = round(time.monotonic() - begun, 3)
            self.coverage.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome != "passed":
            self.not_passed.add(report.nodeid)

    def by_file(self, package: Path) -> dict[str, dict[int, list[str]]]:
        """Return the tests that reach each line, by file and line."""
        data, found = self.coverage.get_data(), {}
        for path in data.measured_files():
            lines = data.contexts_by_lineno(path)
            kept = {line: sorted({*tests} - {""} - self.not_passed) for line, tests in lines.items()}
            found[str(Path(path).relative_to(package))] = {
                line: tests for line, tests in kept.items() if tests
            }
        return found


def measure_reach(source: Path, tests: list[str], answer: Path) -> int:
    """Run tests on a package, and write to a file which lines each of them reaches."""
    try:
        measuring = importlib.import_module("coverage")
    except ImportError:
        sys.exit("mutation: `reach` needs coverage: pip install 'coverage>=7'")
    package = source / "clearformer"
    coverage = measuring.Coverage(data_file=None, source=[str(package)], config_file=False, messages=False)
    coverage.start()
    reached = Reached(coverage)
    status = pytest.main([*PYTEST, *tests], plugins=[reached])
    coverage.stop()
    answer.write_text(json.dumps({"seconds": reached.seconds, "lines": reached.by_file(package)}))
    return status


class Reach:
    """The lines that tests reach, as stored in a folder's `reach.json`."""

    def __init__(self, file: Path) -> None:
        known = json.loads(file.read_text()) if file.exists() else {"seconds": {}, "lines": {}}
        self.file, self.seconds = file, known["seconds"]
        self.lines: dict[str, dict[str, list[str]]] = known["lines"]

    def update(self, measured: dict[str, Any]) -> None:
        """Replace the stored lines of some tests by newly measured ones."""
        new = set(measured["seconds"])
        self.seconds |= measured["seconds"]
        for file in {*self.lines, *measured["lines"]}:
            old, added = self.lines.setdefault(file, {}), measured["lines"].get(file, {})
            for line in {*old, *added}:
                old[line] = [test for test in old.get(line, []) if test not in new] + added.get(line, [])
        self.file.write_text(json.dumps({"seconds": self.seconds, "lines": self.lines}))

    def reaching(self, file: str, first: int, last: int) -> set[str]:
        """Return the tests that reach any line from `first` to `last`."""
        lines = self.lines.get(file, {})
        return {test for line, tests in lines.items() if first <= int(line) <= last for test in tests}

    def tests_for(self, mutant: Mutant, budget: "Budget") -> list[str]:
        """Choose tests that reach a mutant: its own unit tests first, then the quickest, with few cases of each."""
        here = self.reaching(mutant.file, mutant.first, mutant.last)
        reaching = here | self.reaching(mutant.file, 0, sys.maxsize) if mutant.at_import else here
        cases = defaultdict(list)
        for test in sorted(reaching, key=lambda test: (self.seconds[test], test)):
            cases[test.partition("[")[0]].append(test)
        spread = [test for each in cases.values() for test in each[:: -(-len(each) // budget.cases)]]
        spread.sort(key=lambda test: (not mutant.is_own(test), test not in here, self.seconds[test], test))
        chosen, left = [], budget.seconds
        for test in spread[: budget.tests]:
            left -= self.seconds[test]
            if left < 0 and chosen:
                break
            chosen.append(test)
        return chosen


# --- trying -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """The outcome of a mutant: killed (and by which test), timeout, survived or unreached."""

    name: str
    number: int
    outcome: str
    n_tests: int = 0
    seconds: float = 0.0
    by: str = ""


class FirstFailure:
    """Writes the name of the failing test, or test file, as a plugin of pytest."""

    def __init__(self, answer: Path) -> None:
        self.answer = answer

    def pytest_runtest_logreport(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed:
            self.answer.write_text(report.nodeid)

    pytest_collectreport = pytest_runtest_logreport


@contextmanager
def scratch_copy(source: Path) -> Iterator[Path]:
    """Copy the package, with its compiled files, to a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="mutation-") as scratch:
        shutil.copytree(source / "clearformer", Path(scratch) / "clearformer")
        yield Path(scratch)


@contextmanager
def compiled_copy(source: Path, tests: list[str]) -> Iterator[Path]:
    """Copy the package and compile what some tests import, so that further copies need not be compiled again."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    with scratch_copy(source) as scratch:
        in_child(scratch, lambda: pytest.main([*PYTEST, "--collect-only", *tests]), float("inf"))
        yield scratch


def try_mutant(source: Path, mutant: Mutant, tests: list[str], most_seconds: float) -> Result:
    """Run tests on a mutant."""
    if not tests:
        return Result(mutant.name, mutant.number, "unreached")
    begun = time.monotonic()
    with scratch_copy(source) as scratch:
        path, answer = scratch / "clearformer" / mutant.file, scratch / "failed"
        wrong = Mutator(mutant.file, mutant.number).visit(ast.parse(path.read_text(encoding="utf-8")))
        path.write_text(ast.unparse(ast.fix_missing_locations(wrong)), encoding="utf-8")
        options = [*PYTEST, "-x", f"--basetemp={scratch / 'tmp'}"]
        own = [test for test in tests if mutant.is_own(test)]
        status: int | None = 0
        for some in (own, tests[len(own) :]):  # other test files are imported only if the own tests pass
            if some and status == 0:
                work = partial(pytest.main, [*options, *some], plugins=[FirstFailure(answer)])
                status = in_child(scratch, work, most_seconds)
        by = answer.read_text() if answer.exists() else ""
    outcome = "timeout" if status is None else "survived" if status == 0 else "killed"
    return Result(mutant.name, mutant.number, outcome, len(tests), round(time.monotonic() - begun, 1), by)


def in_child(source: Path, work: Callable[[], int], most_seconds: float) -> int | None:
    """Run work on a package in a forked process; returns its status, or None if it took too long."""
    child = os.fork()
    if child == 0:
        os.setpgrp()
        resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
        with (source / "output").open("w") as output:
            for stream in (1, 2):
                os.dup2(output.fileno(), stream)
        sys.path.insert(0, str(source))
        os.environ["PYTHONPATH"] = str(source)
        hypothesis.configuration.set_hypothesis_home_dir(source / "hypothesis")
        hypothesis.settings.register_profile(
            "mutation", derandomize=True, phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate]
        )
        hypothesis.settings.load_profile(
            "mutation"
        )  # the same examples each time, and no shrinking of failures
        status = 1
        try:
            status = int(work())
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    end = time.monotonic() + most_seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


# --- commands ---------------------------------------------------------------------------------------------


def reach(options: argparse.Namespace) -> None:
    with scratch_copy(options.root / "src") as scratch:
        answer = scratch / "reach"
        status = in_child(scratch, lambda: measure_reach(scratch, options.tests, answer), float("inf"))
        if not answer.exists():
            sys.exit((scratch / "output").read_text())
        Reach(options.folder / "reach.json").update(json.loads(answer.read_text()))
        print((scratch / "output").read_text()[-500:], f"status {status}", file=sys.stderr)


def files_of(root: Path, given: Sequence[str]) -> list[str]:
    """Return the Python files of the given files and folders of the package."""
    package = root / "src" / "clearformer"
    paths = [
        path
        for each in given
        for path in ([package / each] if each.endswith(".py") else (package / each).rglob("*.py"))
    ]
    return sorted(str(path.relative_to(package)) for path in paths)


def sample(options: argparse.Namespace) -> None:
    package = options.root / "src" / "clearformer"
    every = [m for file in files_of(options.root, options.files) for m in mutants_of(package / file, file)]
    drawn = random.Random(options.seed).sample(every, min(options.n, len(every)))
    facts = {"seed": options.seed, "of": len(every), "drawn": [asdict(mutant) for mutant in drawn]}
    (options.folder / "drawn.json").write_text(json.dumps(facts, indent=1))
    known = results(options.folder)
    try_all(options, [mutant for mutant in drawn if mutant.name not in known], QUICK)


def again(options: argparse.Namespace) -> None:
    known = results(options.folder)
    survived = [m for m in drawn_mutants(options.folder) if m.name in known and not is_killed(known[m.name])]
    equivalent = equivalent_mutants(options)
    try_all(options, [mutant for mutant in survived if mutant.name not in equivalent], THOROUGH)


def try_all(options: argparse.Namespace, mutants: Sequence[Mutant], budget: Budget) -> None:
    """Try mutants, and append each result to `tried.jsonl`."""
    known = Reach(options.folder / "reach.json")
    chosen = [known.tests_for(mutant, budget) for mutant in mutants]
    test_files = sorted({test.partition("::")[0] for tests in chosen for test in tests})
    with compiled_copy(options.root / "src", test_files) as source:
        for mutant, tests in zip(mutants, chosen, strict=True):
            most_seconds = ADDED_SECONDS + 5 * sum(known.seconds[test] for test in tests)
            line = json.dumps(asdict(try_mutant(source, mutant, tests, most_seconds)))
            with (options.folder / "tried.jsonl").open("a") as file:
                file.write(line + "\n")
            print(line, file=sys.stderr, flush=True)


def drawn_mutants(folder: Path) -> list[Mutant]:
    return [Mutant(**each) for each in json.loads((folder / "drawn.json").read_text())["drawn"]]


def results(folder: Path) -> dict[str, Result]:
    """Return the last result of each mutant, by its name."""
    file = folder / "tried.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return {each["name"]: Result(**each) for each in map(json.loads, lines)}


def equivalent_mutants(options: argparse.Namespace) -> dict[str, str]:
    """Return the mutants that change no behaviour, with the reasons."""
    return json.loads(options.equivalent.read_text()) if options.equivalent else {}


def is_killed(result: Result) -> bool:
    return result.outcome in ("killed", "timeout")


def report(options: argparse.Namespace) -> None:
    known = results(options.folder)
    equivalent = equivalent_mutants(options)
    by_file: dict[str, Counter[str]] = defaultdict(Counter)
    survivors = {}
    for mutant in drawn_mutants(options.folder):
        if result := known.get(mutant.name):
            killed = is_killed(result)
            by_file[mutant.file][
                "killed" if killed else "equivalent" if mutant.name in equivalent else "survived"
            ] += 1
            if not killed:
                survivors[mutant.name] = equivalent.get(mutant.name, result.outcome)
    total = sum(by_file.values(), Counter())
    tried, killed = sum(total.values()), total["killed"]
    shares = {
        "of_all": round(killed / tried, 4),
        "of_all_but_equivalent": round(killed / (tried - total["equivalent"]), 4),
    }
    counts = {"total": total, **{file: by_file[file] for file in sorted(by_file)}}
    print(json.dumps({"tried": tried, "killed": shares, "counts": counts, "survivors": survivors}, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)

    def command(work: Callable[[argparse.Namespace], None]) -> argparse.ArgumentParser:
        added = commands.add_parser(work.__name__)
        added.set_defaults(work=work)
        added.add_argument("folder", type=Path, help="where results are kept")
        added.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="the repository")
        return added

    command(reach).add_argument("tests", nargs="+")
    sampling = command(sample)
    sampling.add_argument("files", nargs="+")
    sampling.add_argument("--n", type=int, default=300)
    sampling.add_argument("--seed", type=int, default=1)
    for work in (again, report):
        command(work).add_argument("--equivalent", type=Path)
    options = parser.parse_args()
    options.root, options.folder = options.root.resolve(), options.folder.resolve()
    options.folder.mkdir(parents=True, exist_ok=True)
    os.chdir(options.root)
    torch.set_num_threads(1)
    for module in IMPORTED:
        importlib.import_module(module)
    options.work(options)


if __name__ == "__main__":
    main()
