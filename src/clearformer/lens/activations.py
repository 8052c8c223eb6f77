"""A text's activations at every named point: `logits, cache = lens.run_with_cache(run, "First Citizen:")`.

cache["pattern", 0]                      [1 H T S], no gradient attached: .numpy() works
cache["blocks.0.attn.hook_pattern"]      the same
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Literal, TypeGuard, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearformer.config import is_packaged
from clearformer.decoding import Text
from clearformer.errors import UserError, shown
from clearformer.hooks import ActivationCache, Hook, HookFn, hook_points, hooked
from clearformer.hooks.readings import MISSING, readings_in_use
from clearformer.lens.inputs import Inputs, Readable, Subject, quiet, read
from clearformer.model import Encoder, EncoderDecoder, Transformer
from clearformer.model.attention import Attention, LastModule, ProjectedHeads
from clearformer.model.block import Block, EncoderOutput
from clearformer.model.masks import Mask
from clearformer.text import Tokenizer

SubLayer = Literal["attn", "cross_attn", "encoder"]
"""The attention of a block: its self-attention, an encoder-decoder's cross-attention, or its encoder's attention."""
SQUARE = ("hook_attn_scores", "hook_pattern")
"""Endings of the hook points that exist only when attention is computed by its formula."""
OFTEN_WANTED = (
    "embed",
    "hook_scale",
    "hook_z",
    "attn_out",
    "hook_mlp_out",
    ".0.hook_resid_pre",
    "hook_resid_post",
    "ln_embed.hook_normalized",
    "ln_final.hook_normalized",
)
"""Endings of the hook points kept from every forward pass: few numbers per token, used by most lens functions."""
METHODS = ("forward", "mix", "formula", "output", "queries_keys_values", "queries", "keys_values")
"""The methods by which an attention computes."""
LAST = "the last vectors"  # in place of a hook point's name

Names = str | Iterable[str] | Callable[[str], bool] | None


def run_with_cache(
    subject: Subject,
    text: Readable,
    output: Text | None = None,
    *,
    names: Names = None,
    tokenizer: Tokenizer | None = None,
    masked: Sequence[int] = (),
) -> tuple[Float[Tensor, "..."], ActivationCache]:
    """Return the logits of a text and its activations, detached; the model's mode is left as it was.

    Args:
        subject: A run, or a bare model.
        text: What to read; see `read` for this and the other arguments.
        output: What an encoder-decoder writes.
        names: Hook points or patterns of them (`blocks.*.attn.hook_z`), or a function of a name; by default all.
        tokenizer: The tokenizer of a bare model.
        masked: Positions at which an encoder reads [MASK].

    Raises:
        UserError: no hook point has such a name (the nearest is suggested), or the text cannot be read; see `read`.
    """
    inputs = read(subject, text, output, tokenizer=tokenizer, masked=masked)
    with quiet(inputs.model):
        return inputs.model.run_with_cache(*inputs.arguments, names=names)


def kept(inputs: Inputs, is_wanted: Callable[[str], bool]) -> ActivationCache:
    """Return the activations at some points, computing no logits.

    Callers must not change them: they may be shared through `Readings`.
    """
    names = [name for name in hook_points(inputs.model) if is_wanted(name)]
    found = _found(inputs, names)
    return ActivationCache({name: found[name] for name in names if name in found})


def computes_as_known(attention: nn.Module) -> bool:
    """Whether all that an attention computes is computed by the package's own methods, and by none of a user's kind."""
    methods = (getattr(type(attention), name, None) for name in METHODS)
    return all(is_packaged(method) for method in methods if method is not None)


def has_known_heads(attention: nn.Module) -> bool:
    """Whether an attention writes the sum of its heads at `hook_z`; a user's kind may do more to them, or have none."""
    return isinstance(attention, Attention | LastModule) and computes_as_known(attention)


def has_known_matrices(attention: nn.Module) -> TypeGuard[ProjectedHeads]:
    """Whether an attention's queries, keys, values and output are those of its matrices alone."""
    return isinstance(attention, ProjectedHeads) and computes_as_known(attention)


def of_the_formula(attention: nn.Module) -> list[str]:
    """Return the hook points of the queries, keys and values that attention's formula takes, after any rotation.

    Empty for attention that is not computed by the formula alone, such as linear attention.
    """
    kind = type(attention)
    if not issubclass(kind, Attention) or (kind.forward, kind.mix) != (Attention.forward, Attention.mix):
        return []
    if not computes_as_known(attention):  # its formula may not come by the hook of the pattern
        return []
    is_turned = getattr(attention, "hook_rot_k", None) is not None
    return ["hook_rot_q", "hook_rot_k", "hook_v"] if is_turned else ["hook_q", "hook_k", "hook_v"]


def formula_points(model: Transformer) -> list[str]:
    """Return the points of `of_the_formula` for the self-attention of every block."""
    blocks = [(path, block) for path, block in model.named_modules() if isinstance(block, Block)]
    return [f"{path}.attn.{name}" for path, block in blocks for name in of_the_formula(block.attn)]


def patterns_in_the_open(
    inputs: Inputs, names: Sequence[str]
) -> Iterator[tuple[str, Float[Tensor, "H T S"]]]:
    """Yield patterns one by one, by the formula, from the queries and keys of one forward pass."""
    model = inputs.model
    points = {name: _made_of(model, name) for name in names}
    wanted = {point for name, own in points.items() for point in own or points_before(model, *block_of(name))}
    seen = kept(inputs, wanted.__contains__)
    for name, made_of in points.items():
        if made_of:
            yield name, _pattern_of(inputs, name, *(seen[point] for point in made_of))
        else:
            yield name, block_in_the_open(inputs, *block_of(name), seen, name)[name][0]


def _made_of(model: Transformer, name: str) -> list[str]:
    """Return the hook points that the formula makes a pattern from; empty for cross-attention."""
    path = name.removesuffix(".hook_pattern")
    made_of = [] if path.endswith(".cross_attn") else of_the_formula(model.get_submodule(path))
    return [f"{path}.{point}" for point in made_of]


def _pattern_of(inputs: Inputs, name: str, *made_of: Float[Tensor, "1 T H Dh"]) -> Float[Tensor, "H T S"]:
    prefix, _ = block_of(name)
    attention = inputs.model.get_submodule(name.removesuffix(".hook_pattern"))
    assert isinstance(attention, Attention)
    q, k, v = (each.transpose(1, 2) for each in made_of)
    mask, positions = mask_of(inputs, prefix), inputs.model.stack(prefix).position
    found: list[Tensor] = []

    def keep(pattern: Tensor, _: Hook) -> None:
        found.append(pattern)
        raise _EnoughError

    with suppress(_EnoughError), hooked(attention, {"hook_pattern": keep}):
        attention.formula(q, k, v, mask, positions.bias(mask.q_pos, mask.k_pos))
    return found[0][0]


def block_of(name: str) -> tuple[str, int]:
    """Return the prefix of a hook point's stack, and its block's number."""
    prefix, _, rest = name.partition("blocks.")
    return prefix, int(rest.partition(".")[0])


def mask_of(inputs: Inputs, prefix: str) -> Mask:
    """Return the mask of a stack's self-attention."""
    model = inputs.model
    tokens = inputs.source if prefix == "encoder_" else inputs.tokens
    assert tokens is not None
    return model.mask(tokens, None, causal=not (isinstance(model, Encoder) or prefix == "encoder_"))


def last_vectors(inputs: Inputs) -> Float[Tensor, "1 T D"]:
    """Return the vectors after the final norm, before a masked head or a classifier; do not change them."""
    return _found(inputs, [LAST])[LAST]


def outputs_at(inputs: Inputs, position: int) -> Float[Tensor, " V"]:
    """Return the logits at one position, or those of the classes."""
    model, vectors = inputs.model, last_vectors(inputs)
    return outputs_of(model, vectors if inputs.class_names else vectors[:, position : position + 1])[0, 0]


def outputs_of(model: Transformer, vectors: Float[Tensor, "B T D"]) -> Float[Tensor, "B T V"]:
    """Return the logits of vectors after the final norm; a classifier pools them into one row [B 1 C]."""
    if not isinstance(model, Encoder):
        return model.unembed(vectors)
    if model.config.n_classes is not None:
        return model.classifier(model.pool(vectors))[:, None]
    return model.unembed(model.masked_head(vectors))


def block_in_the_open(
    inputs: Inputs, prefix: str, layer: int, before: Mapping[str, Tensor], until: str = ""
) -> ActivationCache:
    """Return all activations of one block, with attention by its formula, plus the final norm's after the last block.

    Args:
        inputs: The text.
        prefix: The prefix of the stack's hook points.
        layer: The block, from 0.
        before: The activations at `points_before` the block, from an ordinary forward pass.
        until: The only hook point of the block that is wanted, if any; the block stops there.
    """
    model = inputs.model
    stack, path = model.stack(prefix), f"{prefix}blocks.{layer}"
    residual, *memory = points_before(model, prefix, layer)
    mask, seen = mask_of(inputs, prefix), ActivationCache()

    def keep_of(parent: str) -> HookFn:
        def keep(activation: Tensor, hook: Hook) -> None:
            name = f"{parent}.{hook.name}"
            seen[name] = activation
            if name == until:
                raise _EnoughError

        return keep

    block = stack.blocks[layer]
    names = [until.removeprefix(f"{path}.")] if until else hook_points(block)
    read = EncoderOutput(before[memory[0]], None) if memory else None
    with suppress(_EnoughError), hooked(block, dict.fromkeys(names, keep_of(path))):
        block(before[residual], mask, stack.position, None, read)
    if not until and layer == len(stack.blocks) - 1:
        last = stack.ln_final
        with hooked(last, dict.fromkeys(hook_points(last), keep_of(f"{prefix}ln_final"))):
            last(seen[f"{path}.hook_resid_post"])
    return seen


def prefix_of(model: Transformer, part: str) -> str:
    """Return the prefix of the stack that a part belongs to."""
    if not isinstance(model, EncoderDecoder):
        return ""
    return "encoder_" if part == "encoder" else "decoder_"


def check_part(model: Transformer, part: str, name: str = "part") -> None:
    """Raise UserError, which calls the argument `name`, if the model has no such part."""
    *others, last = get_args(SubLayer)
    if part not in (*others, last):
        raise UserError(f"{name}: {', '.join(others)} or {last}; got {shown(part)}")
    if part != "attn" and not isinstance(model, EncoderDecoder):
        raise UserError(f"{name}: only an encoder-decoder has {part}; omit it")


def points_before(model: Transformer, prefix: str, layer: int) -> list[str]:
    """Return the hook points of a block's inputs: the residual stream and, in a decoder stack, the encoder's output."""
    residual = f"{prefix}blocks.{layer - 1}.hook_resid_post" if layer else f"{prefix}blocks.0.hook_resid_pre"
    return [residual, memory_name(model)] if prefix == "decoder_" else [residual]


def memory_name(model: Transformer) -> str:
    """Return the hook point of what cross-attention reads; empty if the model has none."""
    if not isinstance(model, EncoderDecoder):
        return ""
    stack = model.stack("encoder_")
    if hasattr(stack.ln_final, "hook_normalized"):
        return "encoder_ln_final.hook_normalized"
    return f"encoder_blocks.{len(stack.blocks) - 1}.hook_resid_post"


class _EnoughError(Exception):
    """Ends a block's forward pass early: its network would cost more than its pattern."""


# --- reading ----------------------------------------------------------------------------------------------


def _found(inputs: Inputs, names: Sequence[str]) -> Mapping[str, Tensor]:
    """Return the activations at some points, as far as the text reaches them, computed or from the readings in use.

    If scores or a pattern are wanted, that attention is computed by its formula, all other attention as usual. The
    two forms differ in their last bits, so readings are cached separately for each.
    """
    model = inputs.model
    readings = None if torch.is_grad_enabled() else readings_in_use()
    if readings is None:
        return _read(inputs, names)
    form = frozenset(name.rpartition(".")[0] for name in names if name.endswith(SQUARE))
    key = inputs.key
    found = dict(zip(names, readings.find(model, [(key, form, name) for name in names]), strict=True))
    missing = [name for name, value in found.items() if value is MISSING]
    if missing:
        often = [] if form else often_wanted(model)
        if bytes_about(inputs, often) > readings.most_bytes:
            often = []  # they would evict each other
        if often:
            readings.make_room()
        opened = [f"{path}.hook_pattern" for path in sorted(form)]  # hooked so that the form is the same
        made = _read(inputs, list(dict.fromkeys([*missing, *opened, *often])))
        # A point that the text does not reach is cached as None, so that it is not computed again.
        all_names = {**dict.fromkeys(missing), **made}
        readings.keep(model, {(key, form, name): made.get(name) for name in all_names})
        found |= {name: made.get(name) for name in missing}
    return {name: value for name, value in found.items() if value is not None}


def often_wanted(model: Transformer) -> list[str]:
    """Return the hook points kept from every forward pass, including those that continuing the text needs."""
    return [*(name for name in hook_points(model) if name.endswith(OFTEN_WANTED)), *formula_points(model)]


def bytes_about(inputs: Inputs, names: Sequence[str]) -> int:
    """Estimate the memory of a text's activations at some points: most are as wide as the residual stream."""
    weight = inputs.model.embed.weight
    n_tokens = sum(each.shape[1] for each in inputs.arguments)
    n_wide = sum(not name.endswith("hook_scale") for name in names)
    return n_wide * n_tokens * inputs.model.config.d_model * weight.element_size()


def _read(inputs: Inputs, names: Sequence[str]) -> dict[str, Tensor]:
    """Run the model once; return the activations at some points, and the last vectors."""
    model, seen = inputs.model, dict[str, Tensor]()

    def keep(activation: Tensor, hook: Hook) -> None:
        seen[hook.name] = activation

    with model.hooked({name: keep for name in names if name != LAST}):
        seen[LAST] = (model.encode if isinstance(model, Encoder) else model.hidden)(*inputs.arguments)
    return seen
