"""What needs a package of an extra says which to install, in one line; the rest works without them."""

import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from clearformer.data import LabelledData, PairsData, prepare_data
from clearformer.errors import MissingPackageError, needs_extra
from clearformer.evaluation.classes.baseline import tfidf_baseline
from clearformer.evaluation.classes.metrics import classification_report
from clearformer.evaluation.figures import confusion_matrix_figure
from clearformer.evaluation.translation import evaluate_translation, score_translations
from clearformer.interop.gguf import gguf_package
from clearformer.lens.comparison.heads import matched
from clearformer.page import look
from clearformer.text import CharTokenizerSpec
from clearformer.training.reporting.loggers import summary_writer_type

ROOT = Path(__file__).parents[2]
MODULES = (
    *("babel", "num2words", "sacrebleu", "sklearn", "scipy", "matplotlib", "gguf", "tensorboard"),
    *("starlette", "uvicorn", "websockets", "anywidget", "wandb"),
)
OF_AN_EXTRA = (  # imported when a page is opened, or a view in a notebook
    *("page/server.py", "page/security.py", "page/parts.py", "page/standalone/widget.py"),
)


def draw() -> None:
    confusion_matrix_figure(classification_report([0, 1], [0, 1], ["a", "b"]), Path("a.png"))


USES: list[tuple[str, str, Callable[[], object]]] = [
    ("babel", "data", lambda: prepare_data(PairsData(name="dates"), CharTokenizerSpec())),
    ("num2words", "data", lambda: prepare_data(PairsData(name="dates"), CharTokenizerSpec())),
    ("babel", "data", lambda: prepare_data(LabelledData(name="languages"), CharTokenizerSpec())),
    ("sacrebleu", "metrics", lambda: score_translations(["a cat"], ["a cat"])),
    ("sacrebleu", "metrics", lambda: evaluate_translation(None, ["un chat"], ["a cat"])),  # type: ignore[arg-type]
    ("sklearn.linear_model", "metrics", lambda: tfidf_baseline(["a", "b"], ["x", "y"], ["a"], ["x"])),
    ("scipy.optimize", "metrics", lambda: matched("pattern", ["a"], ["b"], torch.ones(1, 1))),
    ("matplotlib", "figures", draw),
    ("gguf", "gguf", gguf_package),
    ("torch.utils.tensorboard", "tensorboard", summary_writer_type),
    ("starlette.applications", "page", lambda: look("any run")),
    ("uvicorn", "page", lambda: look("any run")),
    ("websockets", "page", lambda: look("any run")),
]


@pytest.mark.parametrize(("module", "extra", "use"), USES)
def test_a_missing_package_is_one_line_with_its_extra(
    module: str, extra: str, use: Callable[[], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLEARFORMER_CACHE", str(tmp_path))
    for path in OF_AN_EXTRA:  # what another test imported is imported anew
        name = path.removesuffix(".py").replace("/", ".")
        monkeypatch.delitem(sys.modules, f"clearformer.{name}", raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingPackageError) as caught:
        use()
    message = str(caught.value)
    assert message.endswith(f", which is not installed: pip install 'clearformer[{extra}]'")
    assert "\n" not in message
    assert caught.value.exit_status == 2


def test_what_is_installed_is_imported_and_other_errors_stay() -> None:
    with needs_extra("data", "this needs json"):
        import json
    assert json.dumps(1) == "1"
    with pytest.raises(ValueError, match="mine"), needs_extra("data", "this needs json"):
        raise ValueError("mine")


def test_every_module_but_the_built_in_data_is_imported_without_any_extra() -> None:
    modules = [
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        for path in sorted((ROOT / "src").rglob("*.py"))
        if path.name not in ("__init__.py", "__main__.py")
        and "builtin" not in path.parts
        and not path.as_posix().endswith(OF_AN_EXTRA)
    ]
    assert len(modules) > 100
    code = (
        f"import sys, importlib\nsys.modules.update(dict.fromkeys({MODULES!r}))\n"
        f"for name in {modules!r}: importlib.import_module(name)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_package_of_an_extra_is_one_that_may_be_missing() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    needed = {Requirement(each).name.lower() for name, of in extras.items() if name != "all" for each in of}
    assert {"sklearn" if name == "scikit-learn" else name for name in needed} == set(MODULES)


# --- pyproject.toml and the lock files ----------------------------------------------------------------------


def pinned(name: str) -> dict[str, str]:
    """The packages of a lock file, and their versions."""
    lines = (ROOT / name).read_text().replace("\\\n", " ").splitlines()
    split = [line.split() for line in lines if line and not line.startswith("#")]
    if name != "requirements-torch.lock":
        for words in split:
            assert len(words) > 1, words
            assert all(word.startswith("--hash=sha256:") for word in words[1:])
    return {name: version for name, _, version in (words[0].partition("==") for words in split)}


def test_all_that_pyproject_names_is_pinned_once_in_a_version_that_fits() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    files = ("requirements.lock", "requirements-torch.lock", "requirements-dev.lock")
    core, torch, dev = map(pinned, files)
    assert torch.keys() == {"torch"}
    assert not (core.keys() | torch.keys()) & dev.keys()
    extras = project["project"]["optional-dependencies"]
    of_all = Requirement(extras["all"][0]).extras
    assert of_all == extras.keys() - {"all", "wandb"}  # the client of a service, which is asked for by name
    for needs, versions in (
        (project["project"]["dependencies"], core | torch),
        *((extras[name], core) for name in of_all),
        (project["dependency-groups"]["dev"], dev),
    ):
        for requirement in map(Requirement, needs):
            assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)])
