"""Normalisation of the residual stream: none, LayerNorm, RMSNorm."""

from typing import Annotated, Literal

import torch.nn.functional as F
from jaxtyping import Float
from pydantic import Field, PositiveFloat
from torch import Tensor, nn

from clearformer.config import Spec
from clearformer.model.hooks import HookPoint


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


class RMSNorm(Spec):
    """x / sqrt(mean(x²) + eps) * weight (Zhang and Sennrich 2019); `learned=false` leaves the weight out."""

    kind: Literal["rmsnorm"] = "rmsnorm"
    eps: PositiveFloat = 1e-6
    learned: bool = True

    def build(self, d: int) -> nn.Module:
        return RMSNormModule(d, eps=self.eps, elementwise_affine=self.learned)


Norm = Annotated[NoNorm | LayerNorm | RMSNorm, Field(discriminator="kind")]


class LayerNormModule(nn.LayerNorm):
    """`torch.nn.LayerNorm` whose result can be looked at."""

    def __init__(self, d: int, eps: float, bias: bool) -> None:
        super().__init__(d, eps=eps, bias=bias)
        self.hook_normalized = HookPoint()

    def forward(self, input: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:  # noqa: A002  (torch's name)
        return self.hook_normalized(super().forward(input))


class RMSNormModule(nn.RMSNorm):
    """`torch.nn.RMSNorm` whose result can be looked at."""

    def __init__(self, d: int, eps: float, elementwise_affine: bool) -> None:
        super().__init__(d, eps=eps, elementwise_affine=elementwise_affine)
        self.hook_normalized = HookPoint()

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        # Under autocast q and k are bfloat16 and the weight is float32, for which torch has no fused kernel.
        weight = None if self.weight is None else self.weight.to(x.dtype)
        return self.hook_normalized(F.rms_norm(x, self.normalized_shape, weight, self.eps))
