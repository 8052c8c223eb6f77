"""Who may import whom, and who must do without torch."""

import ast
import subprocess
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
    "config": {"errors"},
    "resources": set(),
    "threads": {"resources"},
    "device": {"config", "threads"},
    "hooks": {"errors"},
    "model": {"config", "hooks"},
    "cost": {"model", "device"},
    "text": {"config", "files"},
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
    "presets": {"auto", "runs"},
    "study": {"run", "lens", "bench", "presets"},
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


def test_modules_are_imported_by_name_only_where_they_are_put_off() -> None:
    """An import by a computed name would pass by the test above."""
    late = [path for path in source_files() if "importlib.import_module" in imports_of(path)]
    assert {part_of(path) for path in late} <= TOGETHER | COMMAND_LINE


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


def test_text_and_data_are_imported_without_torch() -> None:
    assert "torch" not in loaded_by("import clearformer.text, clearformer.data")


@pytest.mark.skipif(not (PACKAGE / "cli" / "__init__.py").exists(), reason="there is no command line yet")
def test_the_command_line_is_there_before_torch_and_pydantic() -> None:
    """So that --help answers at once."""
    assert not loaded_by("import clearformer.cli") & {"torch", "pydantic", "numpy"}


HELP_OF_ALL = (
    "import io; from clearformer.cli import COMMANDS, main; sys.stdout = text = io.StringIO(); "
    "assert not any(main([name, '--help']) for name in COMMANDS); sys.stdout = sys.__stdout__; "
    "assert text.getvalue().count('Usage:') == len(COMMANDS)"
)


def test_no_command_loads_for_its_help_what_it_needs_for_its_work() -> None:
    loaded = loaded_by(HELP_OF_ALL)
    assert "typer" in loaded
    assert not loaded & {"torch", "numpy", "pydantic", "tokenizers", "rich", "importlib.metadata"}


def test_the_lens_offers_what_the_page_makes_and_loads_none_of_it() -> None:
    loaded = loaded_by("import clearformer.lens; assert callable(clearformer.lens.show)")
    assert not [module for module in loaded if module.startswith("clearformer.page")]


TWO_STEPS = (
    "import torch, clearformer.training.loop; from clearformer.training.optim.optimizers import Muon, AdamW; "
    "net = torch.nn.Sequential(torch.nn.Linear(2, 2)); net[0].weight.grad = torch.ones(2, 2); "
    "[(o.step(), o.zero_grad(False)) for s in (AdamW(), Muon()) for o in s.build(net, 0.1)]"
)


def test_training_needs_no_compiler_where_nothing_is_compiled() -> None:
    """torch's takes more than a second to import, and its optimisers would do so by themselves."""
    loaded = loaded_by(TWO_STEPS)
    assert "torch" in loaded
    assert not loaded & {"torch._dynamo", "torch._inductor", "sympy", "sklearn", "sacrebleu", "matplotlib"}


def test_a_text_is_continued_without_what_trains_compiles_and_compares(tmp_path: Path) -> None:
    from clearformer.model import ModelConfig, build
    from clearformer.run import Run
    from clearformer.text import ByteTokenizerSpec

    model = build(ModelConfig(vocab_size=256, d_model=8, n_layers=1, max_seq_len=8))
    Run(model, ByteTokenizerSpec().train(())).save(tmp_path / "run")
    typed = ["generate", str(tmp_path / "run"), "--prompt", "a", "--max-new-tokens", "2"]
    loaded = loaded_by(
        f"import io; from clearformer.cli import main; sys.stdout = io.StringIO(); "
        f"assert main({typed}) == 0; assert sys.stdout.getvalue(); sys.stdout = sys.__stdout__"
    )
    assert "clearformer.decoding" in loaded
    assert not {"torch._dynamo", "torch._inductor", "sympy", "transformers"} & loaded
    assert not {"matplotlib", "rich", "sklearn", "scipy", "sacrebleu", "starlette"} & loaded
    assert (
        not {"clearformer.training.loop", "clearformer.interop", "clearformer.lens", "clearformer.page"}
        & loaded
    )


def loaded_by(statement: str) -> set[str]:
    """The modules that a fresh interpreter holds after a statement."""
    code = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r}); {statement}; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return set(result.stdout.split())
