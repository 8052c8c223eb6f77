"""x W^T + b: for one vector as sums that the compiler turns into a loop, for several by oneDNN, for several W at once.

Shapes: I inputs, O outputs.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Num
from torch import Tensor, nn

from clearformer.model.fast.packed import is_worth_it, packed_linear

SMALL_BATCH = 2**17  # elements; between the sizes of the two steps on which `joins_products` was measured


class Linear(nn.Linear):
    """`torch.nn.Linear`, computed by `linear`."""

    def forward(self, input: Float[Tensor, "*B I"]) -> Float[Tensor, "*B O"]:  # noqa: A002  (torch's name)
        return linear(input, self.weight, self.bias)


def linear(
    x: Float[Tensor, "*B I"], weight: Float[Tensor, "O I"], bias: Float[Tensor, " O"] | None = None
) -> Float[Tensor, "*B O"]:
    """Return x W^T + b; compiled for a CPU, by `matrix_vector` or, for several vectors, `packed_linear`."""
    if torch.compiler.is_compiling() and x.device.type == "cpu":
        n_vectors = x.shape[:-1].numel()
        if n_vectors == 1:
            return matrix_vector(x, weight, bias)
        of_one_type = (
            x.dtype == weight.dtype
        )  # autocast, which this does without, may have made x another one
        if of_one_type and not torch.is_grad_enabled() and is_worth_it(weight, n_vectors):
            return packed_linear(x, weight, bias)
    return F.linear(x, weight, bias)


def matrix_vector(
    x: Float[Tensor, "*B I"], weight: Num[Tensor, "O I"], bias: Float[Tensor, " O"] | None = None
) -> Float[Tensor, "*B O"]:
    """Return x W^T + b of one vector (all of B are 1) as sums, in at least float32.

    Compiled, this is one pass over the weights at the speed of memory, which torch's product does not reach.
    """
    dtype = torch.promote_types(x.dtype, torch.float32)
    y = (weight.to(dtype) * x.reshape(-1).to(dtype)).sum(-1)
    if bias is not None:
        y = y + bias.to(dtype)
    return y.to(x.dtype).view(*x.shape[:-1], -1)


def linear_each(x: Float[Tensor, "*B I"], *layers: nn.Module) -> tuple[Float[Tensor, "*B _"], ...]:
    """Return each layer's result for x; where `joins_products` says so, by one product with their joined matrix."""
    # Of a class of the user's own, the weights alone are not what it computes.
    matrices = [layer for layer in layers if type(layer) is Linear]
    if joins_products(x) and len(matrices) == len(layers):
        return joint_linear(x, matrices)
    return tuple([layer(x) for layer in layers])


def joint_linear(x: Float[Tensor, "*B I"], layers: list[Linear]) -> tuple[Float[Tensor, "*B _"], ...]:
    """Return the layers' results by one product with their joined matrix; all have a bias or none has."""
    weight = torch.cat(tuple(layer.weight for layer in layers))
    biases = tuple(layer.bias for layer in layers if layer.bias is not None)
    y = linear(x, weight, torch.cat(biases) if biases else None)
    return y.split([layer.out_features for layer in layers], dim=-1)


def joins_products(x: Float[Tensor, "*B I"]) -> bool:
    """Whether several products of x are computed as one: in compiled training on a CPU, for small batches.

    For such small products the calls cost as much as the arithmetic; for larger ones, copying the parts costs more.
    """
    small = x.device.type == "cpu" and x.numel() <= SMALL_BATCH
    return small and torch.compiler.is_compiling() and torch.is_grad_enabled()
