"""A model of a configuration: with its weights drawn, without memory for them, or with memory and no numbers."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from clearformer.model.config import ModelConfig
from clearformer.model.transformer import Decoder, Encoder, EncoderDecoder, Transformer

FAMILIES: dict[str, type[Transformer]] = {
    "decoder": Decoder,
    "encoder": Encoder,
    "encoder-decoder": EncoderDecoder,
}


def build(config: ModelConfig) -> Any:
    """A model of the given configuration, its weights drawn from a seed that torch's global generator gives."""
    model = build_undrawn(config)
    initialise(model, seed=int(torch.randint(2**63 - 1, (), device="cpu")))
    return model


def initialise(model: Transformer, seed: int) -> None:
    """Set the first weights of a model that has memory for them, the same bits on any device."""
    config = model.config
    config.init.apply(model, max(config.n_layers, config.n_decoder_layers or 0), seed)


def build_on_meta(config: ModelConfig) -> Any:
    """A model with the shapes of its weights but none of their memory."""
    with torch.device("meta"):
        return build_undrawn(config)


def build_undrawn(config: ModelConfig) -> Any:
    """A model with memory for its matrices and no numbers in it, for weights that are there already."""
    with _NothingIsDrawn():
        return FAMILIES[config.family](config)


class _NothingIsDrawn(TorchFunctionMode):
    """While it is entered, a tensor that would be given its first numbers stays as it is."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = kwargs or {}
        if func in (Tensor.normal_, Tensor.uniform_) or getattr(func, "__module__", "") == nn.init.__name__:
            return args[0] if args else given["tensor"]
        return func(*args, **given)
