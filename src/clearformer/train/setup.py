"""What is decided and checked once, before a run begins."""

from pathlib import Path

import torch

from clearformer.data import Dataset
from clearformer.train.config import RunConfig, TrainConfig
from clearformer.train.device import resolve_compile, resolve_dtype
from clearformer.train.plan import compile_pays
from clearformer.train.processes import Processes
from clearformer.train.tensorboard import writer_type


def settle(config: RunConfig, dataset: Dataset, device: torch.device, processes: Processes) -> RunConfig:
    """The configuration with everything decided that was left open: what config.toml keeps.

    A resumed run must not decide anew, or it would not be the same run; and what one process measures faster,
    another may not.
    """
    config = config.with_vocabulary(dataset.tokenizer.vocab_size)
    bfloat16 = processes.agree(resolve_dtype(config.train.dtype, device) == "bfloat16")
    dtype = "bfloat16" if bfloat16 else "float32"
    compiled = resolve_compile(
        config.train.compile, device, lambda: compile_pays(config.model, config.train, dtype, device)
    )
    compiled = bool(processes.agree(compiled))
    data = config.data
    if data.path is not None:
        data = data.replace(path=str(Path(data.path).expanduser().resolve()))
    return config.replace(data=data, train=config.train.replace(dtype=dtype, compile=compiled))


def text_of(dataset: Dataset) -> str:
    """The SHA-256 of the text that a data set was made of."""
    return dataset.manifest["source"]["sha256"]


def refuse_what_would_fail_later(settings: TrainConfig, dataset: Dataset) -> None:
    """Use once what a run needs only on the way.

    Raises:
        TokenizerError: the samples' prompt has characters that the text has not.
        ConfigError: TensorBoard is not installed.
    """
    if settings.sample_every:
        dataset.tokenizer.encode(settings.sample_prompt)
    if settings.tensorboard:
        writer_type()
