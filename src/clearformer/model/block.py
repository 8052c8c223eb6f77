"""One block: attention, then a feed-forward network, each added to the residual stream.

    pre    x + f(norm(x))        (GPT-2 and after; lecture 002, section 8.1)
    post   norm(x + f(x))        (Vaswani et al. 2017, 3.1)
    none   x + f(x)              (lecture 000, section 5)

Without residuals the sum loses its x.
"""

from typing import Any, Literal

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from clearformer.model.attention import AttentionSpec
from clearformer.model.cache import LayerCache
from clearformer.model.feedforward import FeedForwardSpec
from clearformer.model.hooks import HookPoint
from clearformer.model.masks import Mask
from clearformer.model.norms import NoNorm, Norm
from clearformer.model.positions import Positions

Placement = Literal["pre", "post", "none"]


class Block(nn.Module):
    """Attention and feed-forward with their norms and residuals; [B T D] to [B T D]."""

    def __init__(
        self,
        d_model: int,
        attention: AttentionSpec,
        ffn: FeedForwardSpec,
        norm: Norm,
        placement: Placement,
        residual: bool,
        dropout: float,
    ) -> None:
        super().__init__()
        norm = NoNorm() if placement == "none" else norm
        self.placement, self.residual, self.dropout = placement, residual, dropout
        self.ln1, self.attn = norm.build(d_model), attention.build(d_model, dropout)
        self.mlp = ffn.build(d_model)
        self.ln2 = norm.build(d_model) if self.mlp is not None else None
        self.hook_resid_pre, self.hook_resid_mid, self.hook_resid_post = HookPoint(), HookPoint(), HookPoint()
        self.hook_attn_out, self.hook_mlp_out = HookPoint(), HookPoint()

    def new_cache(self) -> LayerCache:
        """An empty cache for this block's attention."""
        return self.attn.new_cache()

    def forward(
        self, x: Float[Tensor, "B T D"], mask: Mask, positions: Positions, cache: Any = None
    ) -> Float[Tensor, "B T D"]:
        x = self.hook_resid_pre(x)
        out = self.hook_attn_out(self.attn(self.before(self.ln1, x), mask, positions, cache))
        x = self.add(self.ln1, x, out)
        if self.mlp is not None and self.ln2 is not None:
            x = self.hook_resid_mid(x)
            out = self.hook_mlp_out(self.mlp(self.before(self.ln2, x)))
            x = self.add(self.ln2, x, out)
        return self.hook_resid_post(x)

    def before(self, norm: nn.Module, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """What a sub-layer reads from the residual stream."""
        return norm(x) if self.placement == "pre" else x

    def add(
        self, norm: nn.Module, x: Float[Tensor, "B T D"], out: Float[Tensor, "B T D"]
    ) -> Float[Tensor, "B T D"]:
        """The residual stream after a sub-layer wrote to it."""
        out = F.dropout(out, self.dropout, self.training)
        x = x + out if self.residual else out
        return norm(x) if self.placement == "post" else x
