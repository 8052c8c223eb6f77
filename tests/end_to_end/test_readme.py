"""README does what it says: its commands have valid settings, and its Python runs."""

import re
from pathlib import Path

import pytest

from clearformer.model import build_on_meta
from clearformer.resolving import resolve_run
from clearformer.training.store.folder import RunFolder

from ..forks import ForkServer

README = (Path(__file__).parents[2] / "README.md").read_text()
TRAININGS = re.findall(r"^clearformer train\b([^#\n]*)", README, re.MULTILINE)
PYTHON = "\n".join(re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE))
FILES = {
    "my.txt": "a text\n" * 100,
    "my.fr": "un\n" * 20,
    "my.en": "one\n" * 20,
    "labelled.tsv": "text\tlabel\na\tb\n",
}
RUNS = {  # those that the commands begin with
    "bert": ("masked", "data.path=my.txt"),
    "mine": ("masked", "data.path=my.txt"),
    "other": ("data.source=my.fr", "data.target=my.en"),
}
TINY = (
    "train.max_steps=4",
    "train.max_seconds=none",
    "train.batch_size=2",
    "train.device=cpu",
    "train.dtype=float32",
    "train.compile=false",
    "model.d_model=24",
    "model.max_seq_len=32",
    "data.val_fraction=0.01",
)


def arguments(command: str) -> list[str]:
    """The presets and settings of one of README's commands."""
    words = command.split()
    return words[: words.index("--run")] if "--run" in words else words


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)
    monkeypatch.setenv("CLEARFORMER_RUNS", str(tmp_path))
    for run, trained in RUNS.items():  # as if the commands that make them had been run
        (tmp_path / run).mkdir()
        RunFolder(tmp_path / run).write_config(resolve_run(list(trained), None))


@pytest.mark.parametrize("command", sorted(set(map(str.strip, TRAININGS))))
def test_settings_of_a_command_are_valid(files: None, command: str) -> None:
    config = resolve_run(arguments(command), None)
    build_on_meta(config.model.replace(vocab_size=50))


def test_the_python_runs(tmp_path: Path, forks: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLEARFORMER_RUNS", "runs")
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    trained = forks.run("train", *TINY)
    assert trained.returncode == 0, trained.stderr
    assert (tmp_path / "runs" / "quick-pydoc").is_dir()

    done = forks.run(script=PYTHON)

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "folder" / "config.json").is_file()
    assert (tmp_path / "ledger.png").is_file()
