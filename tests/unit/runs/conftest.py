"""A text, a model that knows its characters, and runs of both."""

from collections.abc import Callable
from pathlib import Path

import pytest

from clearformer.config import resolve
from clearformer.data import TextData, prepare_data
from clearformer.model import ModelConfig, Transformer, build
from clearformer.runs.folders import (
    run_config,
    write_run,
)
from clearformer.text import CharTokenizerSpec, Tokenizer
from clearformer.training.store.folder import RunFolder

TEXT = "".join(f"line {number} of a text\n" for number in range(100))


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEARFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CLEARFORMER_RUNS", str(tmp_path / "runs"))


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text(TEXT)
    return file


@pytest.fixture
def tokenizer() -> Tokenizer:
    return CharTokenizerSpec().train([TEXT])


@pytest.fixture
def model(tokenizer: Tokenizer) -> Transformer:
    return build(
        resolve(
            ModelConfig,
            {"vocab_size": tokenizer.vocab_size, "d_model": 8, "n_layers": 1, "max_seq_len": 7},
        )
    )


@pytest.fixture
def written(
    model: Transformer, tokenizer: Tokenizer, text_file: Path, tmp_path: Path
) -> Callable[..., RunFolder]:
    """The folder of a run of that text: `written("a", step=3)`."""

    def written(name: str, step: int = 0, sha256: str | None = None) -> RunFolder:
        data = TextData(path=str(text_file))
        prepared = prepare_data(data, tokenizer, max_tokens=7)
        config = run_config(model.config).replace(data=data)
        of_the_text = prepared.manifest["source"]["sha256"] if sha256 is None else sha256
        return write_run(tmp_path / "runs" / name, config, tokenizer, model.state_dict(), step, of_the_text)

    return written
