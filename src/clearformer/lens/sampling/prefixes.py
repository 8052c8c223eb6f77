"""The beginning of a text that was read: its keys and values, with which decoding goes on from any of its positions.

A causal model makes the same of a text's beginning whatever follows, so that one reading serves all positions.
"""

from torch import Tensor

from clearformer.hooks import ActivationCache
from clearformer.lens.activations import KEYS, ROTATED_KEYS, VALUES, cached_points, kept
from clearformer.lens.inputs import Inputs, quiet
from clearformer.model import Cache, Decoder
from clearformer.model.attention import Attention, LastModule
from clearformer.model.block import Block
from clearformer.model.cache import KeyValueCache


def prefix_cache(inputs: Inputs, n: int) -> Cache | None:
    """A decoder's cache of the first n tokens of a text, as its own reading would fill it.

    None where a layer keeps something else, as linear attention does with its sums.
    """
    model = inputs.model
    if not isinstance(model, Decoder) or not all(map(keeps_keys_and_values, model.blocks)):
        return None
    points = cached_points(model)
    with quiet(model):
        seen = kept(inputs, lambda name: name in points)
    cache = model.new_cache()
    for i, layer in enumerate(cache.layers):
        keys, values = keys_of(seen, i), seen.get(f"blocks.{i}{VALUES}")
        if keys is not None and values is not None and isinstance(layer.attn, KeyValueCache):
            layer.attn.append(0, *(each[:, :n].transpose(1, 2) for each in (keys, values)))
    cache.extend(n, None)
    return cache


def keeps_keys_and_values(block: object) -> bool:
    """Whether all that a block keeps of earlier positions are the keys and values that its hook points show."""
    if not isinstance(block, Block):
        return False
    kind = type(block.attn)
    by_the_base = issubclass(kind, Attention) and (kind.forward, kind.mix) == (
        Attention.forward,
        Attention.mix,
    )
    keeps = isinstance(block.new_cache().attn, KeyValueCache)
    return keeps and (by_the_base or kind is LastModule)


def keys_of(seen: ActivationCache, layer: int) -> Tensor | None:
    """The keys that are kept: behind the rotation, where there is one; None of a block that reads nothing."""
    names = (f"blocks.{layer}{name}" for name in (ROTATED_KEYS, KEYS))
    return next((seen[name] for name in names if name in seen), None)
