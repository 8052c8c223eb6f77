"""A model whose nonlinear parts keep the values they had for one text."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearformer.errors import UserError
from clearformer.hooks import ActivationCache, Hook, HookFn
from clearformer.lens.activations import has_known_heads, kept
from clearformer.lens.inputs import Inputs
from clearformer.lens.ledgers.readout import final_vectors
from clearformer.lens.ledgers.stream import check_norm
from clearformer.model import Transformer
from clearformer.model.attention import Attention
from clearformer.model.block import Block
from clearformer.model.feedforward import FeedForward, GatedFeedForward
from clearformer.model.norms import LayerNormModule, RMSNormModule

LAST_PARTS = ("embed", "hook_scale", "hook_pattern", "hook_pre", "hook_post", "hook_resid_post")
"""Endings of the hook points that it needs."""


class HeldStill:
    """A model made linear in its embeddings around one text.

    Attributes:
        cache: The activations of the text.
        embeddings: The inputs of the function: the vectors of tokens and of positions, by hook point.

    Raises:
        UserError: the model has a part of an unknown kind, which cannot be held fixed.
    """

    def __init__(self, inputs: Inputs) -> None:
        self.inputs, self.model = inputs, inputs.model
        check_known_parts(self.model)
        with torch.no_grad():
            self.cache = kept(inputs, lambda name: name.endswith(LAST_PARTS))
        self.embeddings = {name: vectors for name, vectors in self.cache.items() if name.endswith("embed")}
        self._hooks = dict(held_hooks(self.model, self.cache))

    def final(self, embeddings: Mapping[str, Tensor]) -> Float[Tensor, "T D"]:
        """Return the final vectors for other embeddings."""
        given = {name: _instead(vectors) for name, vectors in embeddings.items()}
        with self.model.hooked(self._hooks | given):
            seen = kept(self.inputs, lambda name: name.endswith("hook_resid_post"))
            return final_vectors(self.model, seen)


def check_known_parts(model: Transformer) -> None:
    """Raise UserError if the model has a part of a user's kind."""
    for path, module in model.named_modules():
        if path.endswith(("ln_embed", "ln_final")):
            check_norm(module, path)
        if not isinstance(module, Block):
            continue
        for name in ("ln1", "ln_cross", "ln2"):
            if (norm := getattr(module, name)) is not None:
                check_norm(norm, f"{path}.{name}")
        known = {
            "attn": has_known_heads(module.attn),
            "mlp": isinstance(module.mlp, FeedForward | GatedFeedForward | None),
        }
        for name in (name for name, is_known in known.items() if not is_known):
            kind = type(getattr(module, name)).__name__
            raise UserError(f"{path}.{name}: a {kind} cannot be held constant")


def held_hooks(model: Transformer, cache: ActivationCache) -> dict[str, HookFn]:
    """Return hook functions that hold norm scales, patterns and activations at their cached values."""
    hooks: dict[str, HookFn] = {}
    for path, module in model.named_modules():
        match module:
            case LayerNormModule() | RMSNormModule():
                hooks |= _replaced(f"{path}.hook_scale", cache)
            case Attention():
                hooks |= _replaced(f"{path}.hook_pattern", cache)
            case FeedForward():
                before, after = cache[f"{path}.hook_pre"], cache[f"{path}.hook_post"]
                hooks |= _scaled(f"{path}.hook_pre", path, torch.where(before == 0, 0, after / before))
            case GatedFeedForward():
                gate = module.activation(cache[f"{path}.hook_pre"])
                hooks |= _scaled(f"{path}.hook_pre_linear", path, gate)
            case nn.Module():
                pass
    return hooks


def _replaced(name: str, cache: ActivationCache) -> dict[str, HookFn]:
    """Return a hook that puts the cached value in; none at a point that the text does not reach."""
    return {name: _instead(cache[name])} if name in cache else {}


def _instead(value: Tensor) -> HookFn:
    return lambda _activation, _hook: value


def _scaled(before: str, path: str, factor: Tensor) -> dict[str, HookFn]:
    """Return hooks that make `hook_post` a fixed multiple of the activation at `before`."""
    seen: list[Tensor] = []

    def remember(activation: Tensor, _hook: Hook) -> None:
        seen[:] = [activation]

    def multiply(_activation: Tensor, _hook: Hook) -> Any:
        return seen.pop() * factor

    return {before: remember, f"{path}.hook_post": multiply}
