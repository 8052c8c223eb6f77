"""Runs to begin from, by name. Each holds only what differs from the defaults; any key can be overridden."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from clearformer.config import NONE, explicit, parse_override, read_toml, resolve
from clearformer.data import TextData
from clearformer.errors import ConfigError, did_you_mean
from clearformer.model.attention import MultiHead
from clearformer.model.config import ModelConfig
from clearformer.model.feedforward import GELU, ReLU, ReLU2
from clearformer.model.init import GPT2, Gaussian
from clearformer.model.norms import LayerNorm, NoNorm, RMSNorm
from clearformer.model.positions import Learned, NoPositions, RoPE
from clearformer.text import GPT2TokenizerSpec
from clearformer.train.config import RunConfig, TrainConfig
from clearformer.train.optimizers import Adam, AdamW, Muon
from clearformer.train.schedules import Constant, Cosine, WarmupStableDecay

DEFAULT = "quick"


def quick() -> RunConfig:
    """A modern small decoder that is good within a minute on two CPU cores."""
    return RunConfig(
        model=ModelConfig(
            d_model=192,
            n_layers=4,
            max_seq_len=128,
            attention=MultiHead(n_heads=3, qk_norm=RMSNorm(learned=False)),
            position=RoPE(),
            norm=RMSNorm(learned=False),
            ffn=ReLU2(bias=False),
            init=Gaussian(zero_outputs=True),
            tie_embeddings=False,
            logit_soft_cap=15.0,
        ),
        train=TrainConfig(
            batch_size=16,
            max_seconds=60,
            lr=0.016,
            optimizer=Muon(adam_lr=0.002),
            schedule=WarmupStableDecay(decay=0.8),
            eval_every=100,
        ),
    )


def lecture() -> RunConfig:
    """The four-layer model of lecture 000, section 5.4: no norm, no positions, one head, Adam at 3e-4."""
    return RunConfig(
        model=ModelConfig(
            d_model=256,
            n_layers=4,
            max_seq_len=128,
            attention=MultiHead(n_heads=1, output=False),
            position=NoPositions(),
            norm=NoNorm(),
            ffn=ReLU(),
            init=Gaussian(),
            tie_embeddings=False,
        ),
        data=TextData(name="shakespeare"),
        train=TrainConfig(
            batch_size=64,
            max_steps=10_000,
            lr=3e-4,
            optimizer=Adam(),
            schedule=Constant(),
            clip=None,
            eval_every=500,
        ),
    )


def minigpt() -> RunConfig:
    """The minimal GPT of lecture 004, section 4.9: 6 layers, 8 heads, d = 256, GELU, pre-norm, tied."""
    return RunConfig(
        model=ModelConfig(
            d_model=256,
            n_layers=6,
            max_seq_len=512,
            dropout=0.1,
            attention=MultiHead(n_heads=8, qkv_bias=True, output_bias=True),
            ffn=GELU(d_ff=1024),
        ),
        data=TextData(name="shakespeare"),
        train=TrainConfig(batch_size=16, max_steps=2000, lr=1e-3, warmup_steps=100),
    )


def nanogpt_cpu() -> RunConfig:
    """nanoGPT's recipe for a CPU: 4 layers, 4 heads, d = 128, 64 characters of context, 2,000 steps."""
    model = ModelConfig(d_model=128, n_layers=4, max_seq_len=64, attention=MultiHead(n_heads=4))
    return _nanogpt(model, batch_size=12, max_steps=2000)


def shakespeare_gpu() -> RunConfig:
    """nanoGPT's recipe for a GPU: 6 layers, 6 heads, d = 384, 256 characters of context, 5,000 steps."""
    model = ModelConfig(d_model=384, n_layers=6, max_seq_len=256, dropout=0.2, attention=MultiHead(n_heads=6))
    return _nanogpt(model, batch_size=64, max_steps=5000)


def _nanogpt(model: ModelConfig, batch_size: int, max_steps: int) -> RunConfig:
    """What nanoGPT's recipes for Tiny Shakespeare share: a GPT-2 without biases, AdamW from 1e-3 to 1e-4."""
    return RunConfig(
        model=model.replace(norm=LayerNorm(bias=False), ffn=GELU(bias=False)),
        data=TextData(name="shakespeare"),
        train=TrainConfig(
            batch_size=batch_size,
            max_steps=max_steps,
            lr=1e-3,
            optimizer=AdamW(betas=(0.9, 0.99)),
            schedule=Cosine(final=0.1),
            warmup_steps=100,
        ),
    )


def gpt2() -> RunConfig:
    """GPT-2 with 124M parameters (Radford et al. 2019), in its own vocabulary."""
    return RunConfig(
        model=ModelConfig(
            d_model=768,
            n_layers=12,
            max_seq_len=1024,
            attention=MultiHead(n_heads=12, qkv_bias=True, output_bias=True),
            position=Learned(),
            ffn=GELU(approximate="tanh"),
            init=GPT2(),
        ),
        tokenizer=GPT2TokenizerSpec(),
        train=TrainConfig(
            batch_size=480,
            accumulate=40,
            max_steps=600_000,
            lr=6e-4,
            optimizer=AdamW(betas=(0.9, 0.95)),
            warmup_steps=2000,
        ),
    )


PRESETS: dict[str, Callable[[], RunConfig]] = {
    "quick": quick,
    "lecture": lecture,
    "minigpt": minigpt,
    "nanogpt-cpu": nanogpt_cpu,
    "shakespeare-gpu": shakespeare_gpu,
    "gpt2": gpt2,
}


def preset(name: str) -> RunConfig:
    """The preset of a name.

    Raises:
        ConfigError: there is none (with the nearest name).
    """
    if name not in PRESETS:
        hint = did_you_mean(name, PRESETS)
        raise ConfigError(f"there is no preset {name!r}{hint or ''}; there are {', '.join(PRESETS)}")
    return PRESETS[name]()


def split_arguments(arguments: list[str]) -> tuple[str, list[str]]:
    """The preset's name and the overrides among a command's arguments: `[PRESET] [key=value ...]`."""
    names = [argument for argument in arguments if "=" not in argument]
    if len(names) > 1:
        raise ConfigError(f"one preset at a time: got {' and '.join(names)}; settings are written key=value")
    return (names[0] if names else DEFAULT), [argument for argument in arguments if "=" in argument]


def resolve_run(arguments: list[str], config_file: Path | None) -> RunConfig:
    """A run's configuration from a preset, then a TOML file, then overrides, later ones winning.

    Raises:
        ConfigError: one line for the first thing wrong.
    """
    name, overrides = split_arguments(arguments)
    layers = [explicit(preset(name))]
    if config_file is not None:
        layers.append(read_toml(config_file))
    layers += [parse_override(text) for text in overrides]
    return resolve(RunConfig, *map(_one_text, layers))


def _one_text(layer: dict[str, Any]) -> dict[str, Any]:
    """A layer that names one text, so that it takes the place of the text of an earlier layer."""
    data = layer.get("data")
    for given, other in (("name", "path"), ("path", "name")):
        if isinstance(data, dict) and given in data and other not in data:
            return layer | {"data": data | {other: NONE}}
    return layer
