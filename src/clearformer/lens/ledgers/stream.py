"""The residual stream as the sum of what was written to it (Elhage et al. 2021; lecture 002, the residual stream).

Each part goes through the same steps as the whole: where a block has its norms after its sub-layers, through each later
norm. A norm keeps the scale it had in this call, which makes it linear: the normed parts sum to the normed whole.

    post-norm    x' = norm(x + out)        x = a + b        x' = norm(a) + norm(b) + norm(out) + the norm's bias

Shapes: N parts, P positions, D d_model, H heads, Dh head size.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearformer.errors import UserError
from clearformer.hooks import ActivationCache, hooked
from clearformer.lens.activations import has_known_heads
from clearformer.model import Transformer
from clearformer.model.attention import Attention
from clearformer.model.block import Block
from clearformer.model.norms import LayerNormModule, RMSNormModule

KEPT = (
    "hook_embed",
    "hook_pos_embed",
    "hook_scale",
    "hook_z",
    "hook_attn_out",
    "hook_cross_attn_out",
    "hook_mlp_out",
    "hook_resid_post",
)
"""Endings of the hook points that a decomposition needs."""


@dataclass(frozen=True)
class Writer:
    """A part of a model that writes to the residual stream.

    Attributes:
        name: Its hook point, or its parameter if it is a bias.
        layer: The number of its block, if any.
        head: The number of the attention head, if any.
    """

    name: str
    layer: int | None = None
    head: int | None = None


@dataclass(frozen=True)
class Stream:
    """The residual stream at some positions, as the sum of `vectors` over its first dimension."""

    writers: list[Writer]
    vectors: Float[Tensor, "N P D"]

    @property
    def total(self) -> Float[Tensor, "P D"]:
        """The residual stream itself."""
        return self.vectors.sum(0)

    def plus(self, other: "Stream") -> "Stream":
        """Return the stream with more parts."""
        return Stream([*self.writers, *other.writers], torch.cat([self.vectors, other.vectors]))

    def plus_constant(self, writer: Writer, vector: Float[Tensor, " D"] | None) -> "Stream":
        """Return the stream with a bias, if there is one, which is the same at every position."""
        if vector is None:
            return self
        return self.plus(Stream([writer], vector.expand(1, *self.vectors.shape[1:])))


def is_needed(name: str) -> bool:
    """Whether a decomposition needs the activation at a hook point."""
    return name.rpartition(".")[2].replace("encoder_", "").replace("decoder_", "") in KEPT


class Decomposition:
    """The residual streams of one call of a model, split into parts.

    Args:
        model: The model.
        cache: Its activations for one text, at the points where `is_needed`.
    """

    def __init__(self, model: Transformer, cache: ActivationCache) -> None:
        self.model, self.cache = model, cache

    def final(self, prefix: str, rows: Sequence[int]) -> Stream:
        """Return the stream after a stack's final norm, at some positions.

        Raises:
            UserError: the model has a norm of an unknown kind, whose scale cannot be held constant.
        """
        *_, (_, stream) = self._on_the_way(prefix, rows)
        return self.through_norm(self.model.stack(prefix).ln_final, f"{prefix}ln_final", stream, rows)

    def read_by(self, prefix: str, layer: int, sublayer: str, rows: Sequence[int]) -> Stream:
        """Return the stream as a block's `attn` or `cross_attn` reads it, after its norm, at some positions."""
        wanted = f"{prefix}blocks.{layer}.{sublayer}"
        stream = next(stream for point, stream in self._on_the_way(prefix, rows) if point == wanted)
        block = self._block(prefix, layer)
        norm = "ln1" if sublayer == "attn" else "ln_cross"
        if block.placement != "pre":
            return stream
        return self.through_norm(getattr(block, norm), f"{prefix}blocks.{layer}.{norm}", stream, rows)

    def through_norm(self, norm: nn.Module, path: str, stream: Stream, rows: Sequence[int]) -> Stream:
        """Apply a norm to all parts, with the scale of the whole; its bias becomes a part of its own."""
        check_norm(norm, path)
        if isinstance(norm, nn.Identity):
            return stream
        scale = self.cache[f"{path}.hook_scale"][0, list(rows)]  # [P 1]
        return frozen_norm(norm, stream, scale, path)

    def _on_the_way(self, prefix: str, rows: Sequence[int]) -> Iterator[tuple[str, Stream]]:
        """Yield the stream before each sub-layer, with the sub-layer's name, and finally after all blocks."""
        stream = self._embedded(prefix, rows)
        for layer in range(len(self.model.stack(prefix).blocks)):
            block, path = self._block(prefix, layer), f"{prefix}blocks.{layer}"
            yield f"{path}.attn", stream
            heads = self._attention(block.attn, path, "attn", layer, rows)
            stream = self._add(block, "ln1", path, stream, heads, rows)
            if block.cross_attn is not None:
                yield f"{path}.cross_attn", stream
                heads = self._attention(block.cross_attn, path, "cross_attn", layer, rows)
                stream = self._add(block, "ln_cross", path, stream, heads, rows)
            if block.mlp is not None:
                yield f"{path}.mlp", stream
                stream = self._add(block, "ln2", path, stream, self._mlp(block.mlp, path, layer, rows), rows)
        yield f"{prefix}ln_final", stream

    def _block(self, prefix: str, layer: int) -> Block:
        block = self.model.stack(prefix).blocks[layer]
        assert isinstance(block, Block)
        return block

    def _embedded(self, prefix: str, rows: Sequence[int]) -> Stream:
        """Return the tokens' vectors and those of their positions, after the embedding norm."""
        vectors = self.cache[f"hook_{prefix}embed"][0, list(rows)]  # [P D]
        types = None if self.model.token_types is None else self.model.token_types.weight[0]
        stream = Stream(
            [Writer(f"hook_{prefix}embed")], (vectors if types is None else vectors - types)[None]
        )
        stream = stream.plus_constant(Writer("token_types.weight"), types)
        if (name := f"hook_{prefix}pos_embed") in self.cache:
            stream = stream.plus(Stream([Writer(name)], self.cache[name][:, list(rows)]))
        return self.through_norm(self.model.stack(prefix).ln_embed, f"{prefix}ln_embed", stream, rows)

    def _add(
        self, block: Block, norm: str, path: str, stream: Stream, written: Stream, rows: Sequence[int]
    ) -> Stream:
        """Return the stream after a sub-layer wrote to it; see `Block.add`."""
        stream = stream.plus(written) if block.residual else written
        if block.placement != "post":
            return stream
        return self.through_norm(getattr(block, norm), f"{path}.{norm}", stream, rows)

    def _attention(
        self, attention: nn.Module, path: str, sublayer: str, layer: int, rows: Sequence[int]
    ) -> Stream:
        """Return the output of each head, and the bias of the output matrix."""
        name = f"{path}.{sublayer}.hook_z"
        if not has_known_heads(attention):
            whole = f"{path}.hook_{sublayer}_out"
            return Stream([Writer(whole, layer)], self.cache[whole][:, list(rows)])
        z = self.cache[name][0, list(rows)].transpose(0, 1)  # [H P Dh]
        n_heads = len(z)
        alone = torch.einsum("hpd,hk->hpkd", z, torch.eye(n_heads, dtype=z.dtype, device=z.device)).flatten(2)
        writers = [Writer(name, layer, head) for head in range(n_heads)]
        if not isinstance(attention, Attention):
            return Stream(writers, alone)
        bias = attention.output(torch.zeros_like(alone[:1, :1]))  # [1 1 D]
        heads = Stream(writers, attention.output(alone) - bias)
        has_bias = getattr(getattr(attention, "W_O", None), "bias", None) is not None
        writer = Writer(f"{path}.{sublayer}.W_O.bias", layer)
        return heads.plus_constant(writer, bias[0, 0] if has_bias else None)

    def _mlp(self, mlp: nn.Module, path: str, layer: int, rows: Sequence[int]) -> Stream:
        """Return the output of a feed-forward network, and the bias of its last matrix."""
        name = f"{path}.hook_mlp_out"
        written = self.cache[name][:, list(rows)]  # [1 P D]
        bias = getattr(getattr(mlp, "W_out", None), "bias", None)
        stream = Stream([Writer(name, layer)], written if bias is None else written - bias)
        return stream.plus_constant(Writer(f"{path}.mlp.W_out.bias", layer), bias)


def frozen_norm(norm: nn.Module, stream: Stream, scale: Float[Tensor, "P 1"], path: str) -> Stream:
    """Apply a norm with a constant scale to all parts of a stream; add its bias."""
    x, weight = stream.vectors, getattr(norm, "weight", None)
    if isinstance(norm, LayerNormModule):
        x = x - x.mean(-1, keepdim=True)
    x = x / scale
    layer = int(path.split(".")[1]) if "blocks." in path else None
    normed = Stream(stream.writers, x if weight is None else x * weight)
    return normed.plus_constant(Writer(f"{path}.bias", layer), getattr(norm, "bias", None))


def check_norm(norm: nn.Module, path: str) -> None:
    """Raise UserError if the norm is of a kind whose scale cannot be held constant."""
    if not isinstance(norm, nn.Identity | LayerNormModule | RMSNormModule):
        raise UserError(
            f"{path}: a ledger holds the scale of LayerNorm and RMSNorm constant, not that of "
            f"{type(norm).__name__}"
        )


def scale_of(norm: nn.Module, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B 1"]:
    """Return the number that a norm divides each vector by."""
    seen: list[Tensor] = []
    with hooked(norm, {"hook_scale": lambda scale, _: seen.append(scale)}):
        norm(x)
    return seen[0]


def own_prefix(model: Transformer) -> str:
    """Return the prefix of the stack whose positions predict."""
    return "decoder_" if model.config.family == "encoder-decoder" else ""
