"""What transforms each position by itself: none, ReLU, GELU, SiLU, squared ReLU, SwiGLU, GEGLU.

Shapes: B batch, T positions, D d_model, F d_ff.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from clearformer.config import Spec
from clearformer.model.hooks import HookPoint
from clearformer.model.linear import LinearLayer


class NoFeedForward(Spec):
    """No feed-forward sub-layer (lecture 000, section 5.4.1: attention-only blocks)."""

    kind: Literal["none"] = "none"

    def build(self, d_model: int) -> None:
        return None


class _TwoLayers(Spec):
    """W_out f(W_in x), D -> F -> D."""

    d_ff: PositiveInt | None = None
    bias: bool = True

    def width(self, d_model: int) -> int:
        """F: what was set, or four times D (the original paper's choice)."""
        return self.d_ff or 4 * d_model


class ReLU(_TwoLayers):
    """max(0, x W_in) W_out (Vaswani et al. 2017, 3.3; lecture 000, section 5.2)."""

    kind: Literal["relu"] = "relu"

    def build(self, d_model: int) -> nn.Module:
        return FeedForward(d_model, self.width(d_model), self.bias, relu)


class GELU(_TwoLayers):
    """x Phi(x) between the matrices (Hendrycks and Gimpel 2016); `tanh` is GPT-2's approximation of Phi."""

    kind: Literal["gelu"] = "gelu"
    approximate: Literal["none", "tanh"] = "none"

    def build(self, d_model: int) -> nn.Module:
        return FeedForward(
            d_model, self.width(d_model), self.bias, partial(F.gelu, approximate=self.approximate)
        )


class ReLU2(_TwoLayers):
    """max(0, x W_in)² W_out (So et al. 2021, Primer)."""

    kind: Literal["relu2"] = "relu2"

    def build(self, d_model: int) -> nn.Module:
        return FeedForward(d_model, self.width(d_model), self.bias, relu2)


class SiLU(_TwoLayers):
    """silu(x W_in) W_out, silu(x) = x sigmoid(x) (Ramachandran et al. 2017, there called swish)."""

    kind: Literal["silu"] = "silu"

    def build(self, d_model: int) -> nn.Module:
        return FeedForward(d_model, self.width(d_model), self.bias, F.silu)


class _Gated(Spec):
    """(f(x W_gate) * x W_in) W_out (Shazeer 2020; lecture 002, section 6).

    Three matrices instead of two: the default width is two thirds of 4D, rounded up to a multiple of 8, so that
    the parameters are those of the other kinds.
    """

    d_ff: PositiveInt | None = None
    bias: bool = False

    def width(self, d_model: int) -> int:
        return self.d_ff or -(-8 * d_model // 24) * 8


class SwiGLU(_Gated):
    """(silu(x W_gate) * x W_in) W_out (Shazeer 2020; lecture 002, section 6)."""

    kind: Literal["swiglu"] = "swiglu"

    def build(self, d_model: int) -> nn.Module:
        return GatedFeedForward(d_model, self.width(d_model), self.bias, F.silu)


class GEGLU(_Gated):
    """(gelu(x W_gate) * x W_in) W_out (Shazeer 2020), as in T5 1.1; `approximate` is GELU's."""

    kind: Literal["geglu"] = "geglu"
    approximate: Literal["none", "tanh"] = "tanh"

    def build(self, d_model: int) -> nn.Module:
        activation = partial(F.gelu, approximate=self.approximate)
        return GatedFeedForward(d_model, self.width(d_model), self.bias, activation)


FeedForwardSpec = Annotated[
    NoFeedForward | ReLU | GELU | SiLU | ReLU2 | SwiGLU | GEGLU, Field(discriminator="kind")
]


def relu(x: Tensor) -> Tensor:
    """max(0, x)."""
    if torch.compiler.is_compiling() and x.device.type == "cpu" and torch.is_grad_enabled():
        return ReLUBySign.apply(x)  # type: ignore[return-value]
    return F.relu(x)


class ReLUBySign(torch.autograd.Function):
    """The same, its gradient by the sign of what it gave.

    The compiler keeps for torch's own a truth value of each number, which takes it ten times as long as the rest: of
    8,192 tokens through 4 layers of d_ff 1,024 in bfloat16 a step takes 233 ms this way, and that way 386.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        y = F.relu(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        (y,) = ctx.saved_tensors
        return grad * y.sign()


def relu2(x: Tensor) -> Tensor:
    """max(0, x)²."""
    return F.relu(x).square()


class FeedForward(nn.Module):
    """W_out f(W_in x)."""

    def __init__(self, d_model: int, d_ff: int, bias: bool, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.W_in = LinearLayer(d_model, d_ff, bias=bias)
        self.W_out = LinearLayer(d_ff, d_model, bias=bias)
        self.activation = activation
        self.hook_pre, self.hook_post = HookPoint(), HookPoint()

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        hidden = self.hook_pre(self.W_in(x))  # [B T F]
        return self.W_out(self.hook_post(self.activation(hidden)))


class GatedFeedForward(nn.Module):
    """W_out (f(W_gate x) * W_in x)."""

    def __init__(self, d_model: int, d_ff: int, bias: bool, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.W_gate = LinearLayer(d_model, d_ff, bias=bias)
        self.W_in = LinearLayer(d_model, d_ff, bias=bias)
        self.W_out = LinearLayer(d_ff, d_model, bias=bias)
        self.activation = activation
        self.hook_pre, self.hook_pre_linear, self.hook_post = HookPoint(), HookPoint(), HookPoint()

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        gate = self.activation(self.hook_pre(self.W_gate(x)))  # [B T F]
        return self.W_out(self.hook_post(gate * self.hook_pre_linear(self.W_in(x))))
