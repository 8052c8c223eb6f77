"""Normalisation of the residual stream: none, LayerNorm, RMSNorm.

`hook_scale` sees the number that each vector is divided by, [... 1], and `hook_normalized` the result. The result
is torch's fused kernel's, unless a hook replaces the scale or needs its gradient.
"""

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from pydantic import Field, PositiveFloat
from torch import Tensor, nn

from clearformer.config import Spec
from clearformer.hooks import HookPoint


class NoNorm(Spec):
    """x itself (lecture 000, section 5: the blocks have no normalisation)."""

    kind: Literal["none"] = "none"

    def build(self, d: int) -> nn.Module:
        return nn.Identity()


class LayerNorm(Spec):
    """(x - mean(x)) / sqrt(var(x) + eps) * weight + bias (Ba et al. 2016; lecture 002, section 8)."""

    kind: Literal["layernorm"] = "layernorm"
    eps: PositiveFloat = 1e-5
    bias: bool = True

    def build(self, d: int) -> nn.Module:
        return LayerNormModule(d, eps=self.eps, bias=self.bias)


class LayerNormModule(nn.LayerNorm):
    def __init__(self, d: int, eps: float, bias: bool) -> None:
        super().__init__(d, eps=eps, bias=bias)
        self.hook_scale, self.hook_normalized = HookPoint(), HookPoint()

    def forward(self, input: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:  # noqa: A002  (torch's name)
        y = super().forward(input)
        if self.hook_scale.has_hooks:
            x = at_least_float32(input)
            x = x - x.mean(-1, keepdim=True)
            scale = (x.square().mean(-1, keepdim=True) + self.eps).sqrt()
            replaced, is_changed = hooked_scale(self.hook_scale, scale)
            if is_changed:
                x = x / replaced * self.weight
                y = (x if self.bias is None else x + self.bias).to(y.dtype)
        return self.hook_normalized(y)


class RMSNorm(Spec):
    """x / sqrt(mean(x²) + eps) * weight (Zhang and Sennrich 2019); `learned=false` leaves the weight out."""

    kind: Literal["rmsnorm"] = "rmsnorm"
    eps: PositiveFloat = 1e-6
    learned: bool = True

    def build(self, d: int) -> nn.Module:
        return RMSNormModule(d, eps=self.eps, elementwise_affine=self.learned)


class RMSNormModule(nn.RMSNorm):
    def __init__(self, d: int, eps: float, elementwise_affine: bool) -> None:
        super().__init__(d, eps=eps, elementwise_affine=elementwise_affine)
        self.hook_scale, self.hook_normalized = HookPoint(), HookPoint()

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        # Under autocast q and k are bfloat16 and the weight is float32, for which torch has no fused kernel.
        weight = None if self.weight is None else self.weight.to(x.dtype)
        y = F.rms_norm(x, self.normalized_shape, weight, self.eps)
        if self.hook_scale.has_hooks:
            wide = at_least_float32(x)
            scale = (wide.square().mean(-1, keepdim=True) + (self.eps or 0.0)).sqrt()
            replaced, is_changed = hooked_scale(self.hook_scale, scale)
            if is_changed:
                y = (wide / replaced * (1.0 if weight is None else weight)).to(y.dtype)
        return self.hook_normalized(y)


Norm = Annotated[NoNorm | LayerNorm | RMSNorm, Field(discriminator="kind")]


def hooked_scale(point: HookPoint, scale: Float[Tensor, "... 1"]) -> tuple[Float[Tensor, "... 1"], bool]:
    """Return what a point's functions make of a scale, and whether the result must be computed from it.

    It must where they replace the scale, also in place, or where its gradient may be needed.
    """
    before = scale.clone()
    replaced = point(scale)
    return replaced, replaced is not scale or scale.requires_grad or not torch.equal(scale, before)


def at_least_float32(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Return x in float32, in which torch's own kernels sum bfloat16 too; float64 stays."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
