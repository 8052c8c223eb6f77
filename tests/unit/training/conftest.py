"""For the tests of training: a text, a model that trains in milliseconds, and folders of their own."""

from collections.abc import Callable
from pathlib import Path

import pytest

from clearformer.config import parse_override, resolve
from clearformer.training.config import RunConfig
from clearformer.training.loop import TrainResult, train
from clearformer.training.reporting.report import Reporter
from clearformer.training.store.folder import RunFolder

SENTENCE = "the quick brown fox jumps over {} lazy dogs;\n"
BASE = (
    "model.d_model=6",
    "model.n_layers=1",
    "model.max_seq_len=7",
    "model.attention.n_heads=3",
    "model.ffn.d_ff=11",
    "train.batch_size=4",
    "train.max_steps=13",
    "train.log_every=1",
    "train.eval_every=5",
    "train.checkpoint_every=none",
    "train.device=cpu",
    "train.dtype=float32",
    "train.compile=false",
)


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEARFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CLEARFORMER_RUNS", str(tmp_path / "runs"))


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    """Fifty lines, no two of them alike."""
    file = tmp_path / "text.txt"
    file.write_text("".join(SENTENCE.format(number) for number in range(1000, 1050)))
    return file


@pytest.fixture
def configure(text_file: Path) -> Callable[..., RunConfig]:
    """A run of the tiny model with settings as one types them: `configure("train.lr=0.1")`."""

    def configure(*settings: str) -> RunConfig:
        layers = [parse_override(setting) for setting in (f"data.path={text_file}", *BASE, *settings)]
        return resolve(RunConfig, *layers)

    return configure


@pytest.fixture
def run_folder(tmp_path: Path) -> Callable[[str], RunFolder]:
    """A run's folder by its name."""
    return lambda name: RunFolder(tmp_path / "runs" / name)


@pytest.fixture
def trained(
    configure: Callable[..., RunConfig], run_folder: Callable[[str], RunFolder]
) -> Callable[..., TrainResult]:
    """Train a new run of a name with some settings: `trained("a", "train.lr=0.1")`."""

    def trained(name: str, *settings: str, reporter: Reporter | None = None) -> TrainResult:
        return train(configure(*settings), run_folder(name), reporter or Reporter())

    return trained


@pytest.fixture
def resumed(run_folder: Callable[[str], RunFolder]) -> Callable[..., TrainResult]:
    """Go on with the run of a name, as it was configured."""

    def resumed(name: str, reporter: Reporter | None = None, **changes: object) -> TrainResult:
        folder = run_folder(name)
        config = folder.read_config()
        return train(
            config.replace(train=config.train.replace(**changes)), folder, reporter or Reporter(), resume=True
        )

    return resumed
