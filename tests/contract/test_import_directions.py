"""Who may import whom, as the files say; what a process then holds is in test_loaded_modules.py."""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "clearformer"

# Each part and those it builds on; what these build on in turn is open to it too.
BUILDS_ON = {
    "errors": set(),
    "late": set(),
    "results": {"errors"},
    "files": {"errors"},
    "parts": {"files"},
    "config": {"parts"},
    "resources": set(),
    "threads": {"resources"},
    "device": {"config", "threads"},
    "hooks": {"errors"},
    "model": {"config", "hooks"},
    "cost": {"model", "device"},
    "text": {"config"},
    "data": {"text"},
    "decoding": {"device", "model", "text", "results"},
    "evaluation": {"model", "data", "decoding"},
    "training": {"device", "cost", "model", "text", "data", "decoding", "evaluation"},
    "runs": {"training", "results"},
    "auto": {"training"},
    "interop": {"runs"},
    "lens": {"runs", "late"},
    "registry": {"training", "late"},
    "testing": {"registry"},
    "run": {"interop"},
    "bench": {"run"},
    "page": {"run", "lens"},
    "presets": {"auto"},
    "resolving": {"presets", "runs"},
    "study": {"run", "lens", "bench", "resolving"},
}
TOGETHER = {"__init__", "api"}  # bring the parts together, and may import any of them
COMMAND_LINE = {"__main__", "cli"}  # may import everything; nobody else imports these


def allowed(part: str) -> set[str]:
    below = BUILDS_ON[part]
    return {part}.union(below, *(allowed(each) for each in below))


def source_files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def part_of(path: Path) -> str:
    """The top-level package or module that a file belongs to."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported_modules(tree: ast.AST) -> Iterator[str]:
    """The full names of all that is imported anywhere in a file, inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name the whole path, so that this test can follow them"
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def imports_of(path: Path) -> list[str]:
    return list(imported_modules(ast.parse(path.read_text(encoding="utf-8"))))


def imported_parts(path: Path) -> set[str]:
    """The parts of clearformer that a file imports; a bare name of the package is part `__init__`."""
    parts = set()
    for module in imports_of(path):
        package, *inner = module.split(".")
        if package == "clearformer":
            is_part = inner and ((PACKAGE / inner[0]).is_dir() or (PACKAGE / f"{inner[0]}.py").is_file())
            parts.add(inner[0] if is_part else "__init__")
    return parts


def test_every_part_has_its_place() -> None:
    assert {part_of(path) for path in source_files()} <= BUILDS_ON.keys() | TOGETHER | COMMAND_LINE


@pytest.mark.parametrize("path", source_files(), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_imports_go_one_way(path: Path) -> None:
    part = part_of(path)
    if part in COMMAND_LINE:
        return
    within = BUILDS_ON.keys() | TOGETHER if part in TOGETHER else allowed(part)
    assert imported_parts(path) <= within


OTHERS_PACKAGES = {"data/pairs/sources.py", "data/text/sources.py"}  # of an extra, and of Python itself


def imports_by_name(path: Path) -> bool:
    calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    names = {call.attr if isinstance(call, ast.Attribute) else getattr(call, "id", "") for call in calls}
    return bool(names & {"import_module", "_import_module", "__import__"})


def test_modules_are_imported_by_name_only_where_they_are_put_off() -> None:
    """An import by a computed name would pass by the test above."""
    late = {path.relative_to(PACKAGE).as_posix() for path in source_files() if imports_by_name(path)}
    assert late == {"__init__.py", "cli/__init__.py"} | OTHERS_PACKAGES


@pytest.mark.parametrize("part", ["errors", "files", "config", "text", "data"])
def test_words_and_files_need_no_torch(part: str) -> None:
    paths = [path for path in source_files() if part_of(path) == part]
    assert paths
    for path in paths:
        assert not [module for module in imports_of(path) if module.split(".")[0] in ("torch", "jaxtyping")]


def test_the_model_needs_torch_alone_and_what_settings_and_shapes_are_written_with() -> None:
    paths = [path for path in source_files() if part_of(path) == "model"]
    packages = {module.split(".")[0] for path in paths for module in imports_of(path)}
    assert packages - sys.stdlib_module_names == {"torch", "pydantic", "jaxtyping", "clearformer"}
