"""The packages to compare with: how they are found, and our models converted to theirs."""

import importlib.util
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import nn

from clearformer.bench.rounds import Absent
from clearformer.errors import ConfigError, UserError
from clearformer.files import user_path
from clearformer.interop.mapping.matching import match_architecture
from clearformer.interop.writing import SpecialIds, write_model
from clearformer.model import Decoder, build
from clearformer.model.attention import MultiHead
from clearformer.model.config import ModelConfig
from clearformer.model.feedforward import GELU
from clearformer.model.positions import Learned
from clearformer.training.store.state import weights_of

FOLDERS = {"nanogpt": "train.py"}  # peers in a checkout, recognised by this file; the others are packages
DISTRIBUTIONS = {"llama_cpp": "llama-cpp-python"}  # packages that are installed under another name


def asked_for(against: list[str] | None, known: tuple[str, ...]) -> dict[str, str | None]:
    """Return the peers to compare with and their folders, if they have one: those given, all for [], none for None.

    Raises:
        UserError: the comparison does not know a name, or a folder is given for a package, or a folder is not a
            checkout of the peer.
    """
    if against is None:
        return {}
    if not against:
        return dict.fromkeys(known)
    asked = {}
    for text in against:
        name, has_folder, folder = text.partition("=")
        if name not in known:
            raise UserError(f"--against {name}: unknown peer; choose from {', '.join(known)}")
        if has_folder and name not in FOLDERS:
            raise UserError(f"--against {text}: {name} is a package, not a folder; give --against {name}")
        if has_folder and not (user_path(folder) / FOLDERS[name]).is_file():
            raise UserError(f"--against {text}: there is no {FOLDERS[name]} in {folder}")
        asked[name] = str(user_path(folder)) if has_folder else None
    return asked


def absence(name: str, folder: str | None = None) -> Absent | None:
    """Return why a peer cannot take part; None if it can."""
    if name in FOLDERS:
        if folder is not None:
            return None
        return Absent(name, f"no folder given: --against {name}=FOLDER, a checkout of it")
    if importlib.util.find_spec(name) is not None:
        return None
    return Absent(
        name, f"not installed: {Path(sys.executable).name} -m pip install {DISTRIBUTIONS.get(name, name)}"
    )


def with_version(name: str) -> str:
    """Return a package's name and version."""
    distribution = DISTRIBUTIONS.get(name, name)
    return f"{distribution} {metadata.version(distribution)}"


# --- one of our models in transformers --------------------------------------------------------------------


def like_gpt2(config: ModelConfig) -> ModelConfig:
    """Return a GPT-2 of a decoder's sizes, to stand in for a model that transformers does not have."""
    return ModelConfig(
        vocab_size=config.vocab_size,
        d_model=config.d_model,
        n_layers=config.n_layers,
        max_seq_len=config.max_seq_len,
        dropout=config.dropout,
        attention=MultiHead(n_heads=getattr(config.attention, "n_heads", 1), qkv_bias=True, output_bias=True),
        position=Learned(),
        ffn=GELU(approximate="tanh"),
    )


def in_transformers(model: Decoder) -> tuple[nn.Module, str]:
    """Convert our model to transformers' with the same weights; if there is none, return a stand-in and a note."""
    try:
        fitted, note, weights = match_architecture(model.config), "", weights_of(model)
    except ConfigError as error:
        config = like_gpt2(model.config)
        fitted, weights = match_architecture(config), weights_of(build(config))
        note = f"a GPT-2 of the same sizes, because transformers has no such model ({error})"
    from transformers import AutoModelForCausalLM

    with quietly(), tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), fitted, weights, SpecialIds())
        theirs: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return theirs, note


@contextmanager
def quietly() -> Iterator[None]:
    """Silence transformers' progress bars and warnings in the `with` block."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
