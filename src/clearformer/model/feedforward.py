"""Feed-forward networks, applied to each position alone: none, ReLU, GELU, SiLU, squared ReLU, SwiGLU, GEGLU.

    W_out f(W_in x)                     two matrices (Vaswani et al. 2017, 3.3; lecture 000, section 5.2)
    W_out (f(W_gate x) * W_in x)        gated: three (Shazeer 2020; lecture 002, section 6)

Shapes: B batch, T positions, D d_model, F d_ff.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from clearformer.config import Spec
from clearformer.errors import ConfigError, shown
from clearformer.hooks import HookPoint
from clearformer.model import fast
from clearformer.model.fast import dropout
from clearformer.model.shapes import Vectors

Activation = Callable[[Tensor], Tensor]


class NoFeedForward(Spec):
    """No feed-forward sub-layer (lecture 000, section 5.4.1: attention-only blocks)."""

    kind: Literal["none"] = "none"

    def build(self, d_model: int) -> None:
        return None


class _FeedForwardSpec(Spec):
    """Base of the kinds of feed-forward networks, D -> F -> D.

    Attributes:
        d_ff: F. By default 4 D (the original paper's choice); for a gated kind two thirds of that, rounded up to a
            multiple of 8, so that its three matrices have as many parameters as the others' two.
        bias: Whether the matrices have biases.
        dropout: The probability of dropout between the matrices (lecture 002, section 6); that after them, as on every
            sub-layer, is `model.dropout`.
    """

    d_ff: PositiveInt | None = None
    bias: bool = True
    dropout: float = Field(default=0.0, ge=0, lt=1)
    gated: ClassVar[bool] = False
    f: ClassVar[Activation]

    def width(self, d_model: int) -> int:
        """F."""
        return self.d_ff or (-(-8 * d_model // 24) * 8 if self.gated else 4 * d_model)

    def activation(self) -> Activation:
        """Return f with the kind's settings."""
        return type(self).f

    def build(self, d_model: int) -> nn.Module:
        module = GatedFeedForward if self.gated else FeedForward
        return module(d_model, self.width(d_model), self.bias, self.activation(), self.dropout)


class FeedForward(nn.Module):
    """W_out f(W_in x)."""

    def __init__(
        self, d_model: int, d_ff: int, bias: bool, activation: Activation, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.W_in = fast.Linear(d_model, d_ff, bias=bias)
        self.W_out = fast.Linear(d_ff, d_model, bias=bias)
        self.activation, self.dropout = activation, dropout
        self.hook_pre, self.hook_post = HookPoint(), HookPoint()

    def forward(self, x: Vectors) -> Vectors:
        hidden = self.hook_pre(self.W_in(x))  # [B T F]
        hidden = self.hook_post(self.activation(hidden))
        return self.W_out(dropout(hidden, self.dropout, self.training))


class GatedFeedForward(nn.Module):
    """W_out (f(W_gate x) * W_in x)."""

    def __init__(
        self, d_model: int, d_ff: int, bias: bool, activation: Activation, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.W_gate = fast.Linear(d_model, d_ff, bias=bias)
        self.W_in = fast.Linear(d_model, d_ff, bias=bias)
        self.W_out = fast.Linear(d_ff, d_model, bias=bias)
        self.activation, self.dropout = activation, dropout
        self.hook_pre, self.hook_pre_linear, self.hook_post = HookPoint(), HookPoint(), HookPoint()

    def forward(self, x: Vectors) -> Vectors:
        gate = self.activation(self.hook_pre(self.W_gate(x)))  # [B T F]
        hidden = self.hook_post(gate * self.hook_pre_linear(self.W_in(x)))
        return self.W_out(dropout(hidden, self.dropout, self.training))


class ReLU(_FeedForwardSpec):
    """max(0, x W_in) W_out (Vaswani et al. 2017, 3.3; lecture 000, section 5.2)."""

    kind: Literal["relu"] = "relu"
    f: ClassVar[Activation] = staticmethod(fast.relu)


class GELU(_FeedForwardSpec):
    """x Phi(x) between the matrices (Hendrycks and Gimpel 2016); `tanh` is GPT-2's approximation of Phi."""

    kind: Literal["gelu"] = "gelu"
    approximate: Literal["none", "tanh"] = "none"

    def activation(self) -> Activation:
        return partial(F.gelu, approximate=self.approximate)


class SiLU(_FeedForwardSpec):
    """silu(x W_in) W_out, silu(x) = x sigmoid(x) (Ramachandran et al. 2017, there called swish)."""

    kind: Literal["silu"] = "silu"
    f: ClassVar[Activation] = staticmethod(F.silu)


def relu2(x: Tensor) -> Tensor:
    """max(0, x)²."""
    return F.relu(x).square()


class ReLU2(_FeedForwardSpec):
    """max(0, x W_in)² W_out (So et al. 2021, Primer)."""

    kind: Literal["relu2"] = "relu2"
    f: ClassVar[Activation] = staticmethod(relu2)


class SwiGLU(_FeedForwardSpec):
    """(silu(x W_gate) * x W_in) W_out (Shazeer 2020; lecture 002, section 6)."""

    kind: Literal["swiglu"] = "swiglu"
    bias: bool = False
    gated: ClassVar[bool] = True
    f: ClassVar[Activation] = staticmethod(F.silu)


class GEGLU(_FeedForwardSpec):
    """(gelu(x W_gate) * x W_in) W_out (Shazeer 2020), as in T5 1.1; `approximate` is GELU's."""

    kind: Literal["geglu"] = "geglu"
    bias: bool = False
    gated: ClassVar[bool] = True
    approximate: Literal["none", "tanh"] = "tanh"

    def activation(self) -> Activation:
        return partial(F.gelu, approximate=self.approximate)


FeedForwardSpec = Annotated[
    NoFeedForward | ReLU | GELU | SiLU | ReLU2 | SwiGLU | GEGLU, Field(discriminator="kind")
]


def build_feed_forward(spec: Any, d_model: int) -> nn.Module | None:
    """Build the feed-forward network; None for the kind `none` alone, since a user's `build` may lack its return.

    Raises:
        ConfigError: a user's `build` returns no module.
    """
    module = spec.build(d_model)
    if not isinstance(module, nn.Module) and not isinstance(spec, NoFeedForward):
        raise ConfigError(
            f"model.ffn.kind: {type(spec).__name__}.build must return a torch module; got {shown(module)}"
        )
    return module
