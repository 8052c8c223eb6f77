"""A tiny model in a folder as transformers saves it, to be spoilt."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clearformer.interop.mapping.matching import match_architecture
from clearformer.interop.writing import SpecialIds, write_model
from clearformer.model import ModelConfig, build
from clearformer.model.attention import MultiHead
from clearformer.model.feedforward import GELU
from clearformer.training.store.state import weights_of

TINY = ModelConfig(
    vocab_size=13,
    d_model=6,
    n_layers=2,
    max_seq_len=5,
    attention=MultiHead(n_heads=2, qkv_bias=True, output_bias=True),
    ffn=GELU(d_ff=7),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A GPT-2 of a few hundred parameters."""
    path = tmp_path / "tiny"
    path.mkdir()
    write_model(path, match_architecture(TINY), weights_of(build(TINY)), SpecialIds(eos=3))
    return path


@pytest.fixture
def with_fields(folder: Path) -> Callable[..., Path]:
    """Changes fields of that model's config.json; None takes one out."""

    def change(**fields: Any) -> Path:
        path = folder / "config.json"
        values = json.loads(path.read_text()) | fields
        path.write_text(json.dumps({name: value for name, value in values.items() if value is not None}))
        return folder

    return change
