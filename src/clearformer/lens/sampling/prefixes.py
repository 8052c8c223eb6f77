"""The keys and values of a text that was read, from which decoding can continue at any of its positions.

A causal model computes the same for a prefix whatever follows it, so that one pass serves all positions.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from clearformer.lens.activations import formula_points, kept, of_the_formula
from clearformer.lens.inputs import Inputs, quiet
from clearformer.model import Cache, Decoder
from clearformer.model.attention import LastModule
from clearformer.model.block import Block
from clearformer.model.cache import KeyValueCache


def prefix_cache(inputs: Inputs, n: int, room: int) -> Cache | None:
    """Return a decoder's cache of the first n tokens of a text, as a pass over them would fill it, with room for more.

    None if a layer keeps anything else, as linear attention does with its sums.
    """
    model = inputs.model
    if not isinstance(model, Decoder) or not all(map(keeps_keys_and_values, model.blocks)):
        return None
    points = formula_points(model)
    with quiet(model):
        seen = kept(inputs, lambda name: name in points)
    cache = model.new_cache()
    for i, (block, layer) in enumerate(zip(model.blocks, cache.layers, strict=True)):
        assert isinstance(block, Block)
        if made := of_the_formula(block.attn):
            _, keys, values = (seen[f"blocks.{i}.attn.{name}"][:, :n].transpose(1, 2) for name in made)
            assert isinstance(layer.attn, KeyValueCache)
            layer.attn.buffers = with_room(keys, room), with_room(values, room)
    cache.extend(n, None)
    return cache


def with_room(x: Float[Tensor, "B K T Dh"], room: int) -> Float[Tensor, "B K C Dh"]:
    """Return keys or values, followed by uninitialised room for more."""
    return torch.cat([x, x.new_empty(*x.shape[:2], room, x.shape[3])], dim=2)


def keeps_keys_and_values(block: object) -> bool:
    """Whether a block keeps only the formula's keys and values of earlier positions, or nothing."""
    if not isinstance(block, Block):
        return False
    keeps = isinstance(block.attn.new_cache(), KeyValueCache) and bool(of_the_formula(block.attn))
    return keeps or isinstance(block.attn, LastModule)
