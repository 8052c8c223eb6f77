"""One block: attention, then a feed-forward network, each added to the residual stream by a skip connection.

    pre    x + f(norm(x))        (GPT-2 and after; lecture 002, section 8.1)
    post   norm(x + f(x))        (Vaswani et al. 2017, 3.1; lecture 001)
    none   x + f(x)              (lecture 000, section 5)

Without residuals, x + is left out. In an encoder-decoder's decoder, cross-attention is a third sub-layer between the
two. Parallel attention and feed-forward both read the block's input (GPT-NeoX).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from clearformer.hooks import HookPoint
from clearformer.model.attention import Attention
from clearformer.model.cache import BlockCache, MemoryCache
from clearformer.model.fast import dropout
from clearformer.model.feedforward import build_feed_forward
from clearformer.model.masks import Mask
from clearformer.model.norms import NoNorm
from clearformer.model.positions import Positions
from clearformer.model.shapes import QueryPositions, Rows, SourcePadding, SourceVectors, Vectors

if TYPE_CHECKING:
    from clearformer.model.config import ModelConfig


@dataclass(frozen=True)
class EncoderOutput:
    """An encoder's vectors, one per source token, and the source's padding; cross-attention reads them."""

    vectors: SourceVectors
    padding: SourcePadding = None

    def mask(self, q_pos: QueryPositions) -> Mask:
        """Return the mask under which every query may read every real source token."""
        k_pos = torch.arange(self.vectors.shape[1], device=self.vectors.device)
        return Mask(q_pos, k_pos, causal=False, padding=self.padding)

    def select(self, rows: Rows) -> "EncoderOutput":
        """Return the given rows of the batch, in that order (repeats allowed)."""
        return EncoderOutput(self.vectors[rows], None if self.padding is None else self.padding[rows])


class Block(nn.Module):
    """Attention and feed-forward with their norms and residuals."""

    def __init__(self, config: "ModelConfig", cross: bool = False) -> None:
        super().__init__()
        d, p = config.d_model, config.dropout
        norm = NoNorm() if config.placement == "none" else config.norm
        self.placement, self.residual, self.parallel = config.placement, config.residual, config.parallel
        self.dropout = p
        self.ln1, self.attn = norm.build(d), config.attention.build(d, p)
        if config.position.rotates and isinstance(self.attn, Attention):
            self.attn.add_rotation_hooks()
        self.ln_cross = norm.build(d) if cross else None
        self.cross_attn = config.attention.build_cross(d, p) if cross else None
        self.mlp = build_feed_forward(config.ffn, d)
        self.ln2 = norm.build(d) if self.mlp is not None else None
        self.hook_resid_pre, self.hook_attn_out, self.hook_resid_post = HookPoint(), HookPoint(), HookPoint()
        if cross or self.mlp is not None:
            self.hook_resid_mid = HookPoint()
        if self.mlp is not None:
            self.hook_mlp_out = HookPoint()
        if cross:
            self.hook_cross_attn_out, self.hook_resid_mid_cross = HookPoint(), HookPoint()

    def forward(
        self,
        x: Vectors,
        mask: Mask,
        positions: Positions,
        cache: BlockCache | None = None,
        memory: EncoderOutput | None = None,
    ) -> Vectors:
        before = x = self.hook_resid_pre(x)
        out = self.attn(self.read(self.ln1, x), mask, positions, cache and cache.attn)
        x = self.add(self.ln1, x, self.hook_attn_out(out))
        if self.cross_attn is not None and self.ln_cross is not None and memory is not None:
            x = self.hook_resid_mid(x)
            read, cross_mask = self.read(self.ln_cross, x), memory.mask(mask.q_pos)
            out = self.cross_attn(read, cross_mask, positions, cache and cache.cross, memory.vectors)
            x = self.hook_resid_mid_cross(self.add(self.ln_cross, x, self.hook_cross_attn_out(out)))
        elif self.mlp is not None:
            x = self.hook_resid_mid(x)
        if self.mlp is not None and self.ln2 is not None:
            out = self.hook_mlp_out(self.mlp(self.read(self.ln2, before if self.parallel else x)))
            x = self.add(self.ln2, x, out)
        return self.hook_resid_post(x)

    def read(self, norm: nn.Module, x: Vectors) -> Vectors:
        """Return a sub-layer's input."""
        return norm(x) if self.placement == "pre" else x

    def add(self, norm: nn.Module, x: Vectors, out: Vectors) -> Vectors:
        """Return the residual stream after a sub-layer with output `out`."""
        out = dropout(out, self.dropout, self.training)
        x = x + out if self.residual else out
        return norm(x) if self.placement == "post" else x

    def new_cache(self) -> BlockCache:
        """Return an empty cache for this block."""
        return BlockCache(self.attn.new_cache(), None if self.cross_attn is None else MemoryCache())
