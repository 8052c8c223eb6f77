"""Feed-forward networks, which transform each position by itself: none, ReLU, GELU, SiLU, squared ReLU, SwiGLU, GEGLU.

Shapes: B batch, T positions, D d_model, F d_ff.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal

import torch.nn.functional as F
from jaxtyping import Float
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from clearformer.config import Spec
from clearformer.model import fast
from clearformer.model.hooks import HookPoint

Activation = Callable[[Tensor], Tensor]


class NoFeedForward(Spec):
    """No feed-forward sub-layer (lecture 000, section 5.4.1: attention-only blocks)."""

    kind: Literal["none"] = "none"

    def build(self, d_model: int) -> None:
        return None


class _TwoLayers(Spec, ABC):
    """W_out f(W_in x), D -> F -> D; F is four times D where it is not given (the original paper's choice)."""

    d_ff: PositiveInt | None = None
    bias: bool = True

    def width(self, d_model: int) -> int:
        """F."""
        return self.d_ff or 4 * d_model

    @abstractmethod
    def activation(self) -> Activation:
        """f."""

    def build(self, d_model: int) -> nn.Module:
        return FeedForward(d_model, self.width(d_model), self.bias, self.activation())


class FeedForward(nn.Module):
    """See `_TwoLayers`."""

    def __init__(self, d_model: int, d_ff: int, bias: bool, activation: Activation) -> None:
        super().__init__()
        self.W_in = fast.Linear(d_model, d_ff, bias=bias)
        self.W_out = fast.Linear(d_ff, d_model, bias=bias)
        self.activation = activation
        self.hook_pre, self.hook_post = HookPoint(), HookPoint()

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        hidden = self.hook_pre(self.W_in(x))  # [B T F]
        return self.W_out(self.hook_post(self.activation(hidden)))


class ReLU(_TwoLayers):
    """max(0, x W_in) W_out (Vaswani et al. 2017, 3.3; lecture 000, section 5.2)."""

    kind: Literal["relu"] = "relu"

    def activation(self) -> Activation:
        return fast.relu


class GELU(_TwoLayers):
    """x Phi(x) between the matrices (Hendrycks and Gimpel 2016); `tanh` is GPT-2's approximation of Phi."""

    kind: Literal["gelu"] = "gelu"
    approximate: Literal["none", "tanh"] = "none"

    def activation(self) -> Activation:
        return partial(F.gelu, approximate=self.approximate)


class ReLU2(_TwoLayers):
    """max(0, x W_in)² W_out (So et al. 2021, Primer)."""

    kind: Literal["relu2"] = "relu2"

    def activation(self) -> Activation:
        return relu2


def relu2(x: Tensor) -> Tensor:
    """max(0, x)²."""
    return F.relu(x).square()


class SiLU(_TwoLayers):
    """silu(x W_in) W_out, silu(x) = x sigmoid(x) (Ramachandran et al. 2017, there called swish)."""

    kind: Literal["silu"] = "silu"

    def activation(self) -> Activation:
        return F.silu


class _Gated(Spec, ABC):
    """W_out (f(W_gate x) * W_in x) (Shazeer 2020; lecture 002, section 6).

    Three matrices instead of two: the default width is two thirds of 4D, rounded up to a multiple of 8, so that
    the parameters are those of the other kinds.
    """

    d_ff: PositiveInt | None = None
    bias: bool = False

    def width(self, d_model: int) -> int:
        """F."""
        return self.d_ff or -(-8 * d_model // 24) * 8

    @abstractmethod
    def activation(self) -> Activation:
        """f."""

    def build(self, d_model: int) -> nn.Module:
        return GatedFeedForward(d_model, self.width(d_model), self.bias, self.activation())


class GatedFeedForward(nn.Module):
    """See `_Gated`."""

    def __init__(self, d_model: int, d_ff: int, bias: bool, activation: Activation) -> None:
        super().__init__()
        self.W_gate = fast.Linear(d_model, d_ff, bias=bias)
        self.W_in = fast.Linear(d_model, d_ff, bias=bias)
        self.W_out = fast.Linear(d_ff, d_model, bias=bias)
        self.activation = activation
        self.hook_pre, self.hook_pre_linear, self.hook_post = HookPoint(), HookPoint(), HookPoint()

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        gate = self.activation(self.hook_pre(self.W_gate(x)))  # [B T F]
        return self.W_out(self.hook_post(gate * self.hook_pre_linear(self.W_in(x))))


class SwiGLU(_Gated):
    """(silu(x W_gate) * x W_in) W_out (Shazeer 2020; lecture 002, section 6)."""

    kind: Literal["swiglu"] = "swiglu"

    def activation(self) -> Activation:
        return F.silu


class GEGLU(_Gated):
    """(gelu(x W_gate) * x W_in) W_out (Shazeer 2020), as in T5 1.1; `approximate` is GELU's."""

    kind: Literal["geglu"] = "geglu"
    approximate: Literal["none", "tanh"] = "tanh"

    def activation(self) -> Activation:
        return partial(F.gelu, approximate=self.approximate)


FeedForwardSpec = Annotated[
    NoFeedForward | ReLU | GELU | SiLU | ReLU2 | SwiGLU | GEGLU, Field(discriminator="kind")
]
