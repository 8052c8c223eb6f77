"""x W^T + b; the same of several matrices at once, and of a single vector by a loop that the compiler writes.

Shapes: I inputs, O outputs.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


def linear(
    x: Float[Tensor, "*B I"], weight: Float[Tensor, "O I"], bias: Float[Tensor, " O"] | None = None
) -> Float[Tensor, "*B O"]:
    """x W^T + b."""
    if torch.compiler.is_compiling() and x.device.type == "cpu" and x.shape[:-1].numel() == 1:
        return matrix_vector(x, weight, bias)
    return F.linear(x, weight, bias)


def matrix_vector(
    x: Float[Tensor, "*B I"], weight: Float[Tensor, "O I"], bias: Float[Tensor, " O"] | None = None
) -> Float[Tensor, "*B O"]:
    """x W^T + b of one vector (all of B are 1) as sums: compiled, one pass over the weights at the memory's speed.

    A product with one vector does little but read its matrix, and torch's reads it at a third to two thirds of that
    speed (benchmarks/RESULTS.md has the tokens a second gained). Sums are in float32 at least.
    """
    dtype = torch.promote_types(x.dtype, torch.float32)
    y = (weight.to(dtype) * x.reshape(-1).to(dtype)).sum(-1)
    if bias is not None:
        y = y + bias.to(dtype)
    return y.to(x.dtype).view(*x.shape[:-1], -1)


class LinearLayer(nn.Linear):
    """`torch.nn.Linear` by `linear`."""

    def forward(self, input: Float[Tensor, "*B I"]) -> Float[Tensor, "*B O"]:  # noqa: A002  (torch's name)
        return linear(input, self.weight, self.bias)


def joint_linear(
    x: Float[Tensor, "*B I"], layers: Sequence[LinearLayer]
) -> tuple[Float[Tensor, "*B _"], ...]:
    """What each of some layers, all with a bias or all without, makes of x: by one product with their joined matrix."""
    weight = torch.cat(tuple(layer.weight for layer in layers))
    biases = tuple(layer.bias for layer in layers if layer.bias is not None)
    y = linear(x, weight, torch.cat(biases) if biases else None)
    return y.split([layer.out_features for layer in layers], dim=-1)
