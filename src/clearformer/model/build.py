"""Building a model from its configuration: with initial weights, with uninitialised ones, or without memory."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from clearformer.model.config import ModelConfig
from clearformer.model.init import names_set
from clearformer.model.transformer import Decoder, Encoder, EncoderDecoder, Transformer

FAMILIES: dict[str, type[Transformer]] = {
    "decoder": Decoder,
    "encoder": Encoder,
    "encoder-decoder": EncoderDecoder,
}


def build(config: ModelConfig) -> Any:
    """Return a model whose weights are drawn from a seed that torch's global generator gives."""
    model = build_undrawn(config)
    initialise(model, seed=int(torch.randint(2**63 - 1, (), device="cpu")))
    return model


def initialise(model: Transformer, seed: int) -> None:
    """Set the initial weights of a model, the same bits on any device."""
    config = model.config
    _set_as_constructed(model, seed)
    config.init.apply(model, max(config.n_layers, config.n_decoder_layers or 0), seed)


@torch.no_grad()
def _set_as_constructed(model: Transformer, seed: int) -> None:
    """Set the parameters that no `Init` knows, of parts of the user's own, to what their constructors make them."""
    tensors = model.state_dict()
    own = [name for name in sorted(tensors.keys() - names_set(model)) if not tensors[name].is_meta]
    if not own:
        return
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        constructed = FAMILIES[model.config.family](model.config).state_dict()
    for name in own:
        tensors[name].copy_(constructed[name])


def build_on_meta(config: ModelConfig) -> Any:
    """Return a model on the meta device: its weights have shapes but no memory."""
    with torch.device("meta"):
        return build_undrawn(config)


@torch.inference_mode(False)
def build_undrawn(config: ModelConfig) -> Any:
    """Return a model whose matrices are uninitialised, for weights that are loaded or set later.

    A caller's `torch.inference_mode()` does not reach them: they could never have a gradient.
    """
    with _NothingIsDrawn():
        return FAMILIES[config.family](config)


class _NothingIsDrawn(TorchFunctionMode):
    """A mode in which the functions that fill a parameter with initial numbers do nothing.

    Other tensors are filled: a buffer that no file of weights holds has only what its constructor sets. torch's global
    generator stays as it was.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = kwargs or {}
        if func in (Tensor.normal_, Tensor.uniform_) or getattr(func, "__module__", "") == nn.init.__name__:
            tensor = args[0] if args else given["tensor"]
            if isinstance(tensor, nn.Parameter):
                return tensor
            with torch.random.fork_rng(devices=[]):
                return func(*args, **given)
        return func(*args, **given)
