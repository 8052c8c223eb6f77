"""Dropout; on a CPU from raw random bits."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

N_DRAWS = 2**16  # the values of 16 random bits


def dropout(x: Float[Tensor, "..."], p: float, training: bool = True) -> Float[Tensor, "..."]:
    """Set each number of x to 0 with probability p and divide the others by 1 - p (Srivastava et al. 2014)."""
    if not training or p == 0:
        return x
    if x.device.type == "cpu":
        # Not the operator where nothing is compiled: its first call imports the compiler, for a second or two.
        draw = opaque_factors if torch.compiler.is_compiling() else dropout_factors
        return x * draw(x.detach(), p)
    return F.dropout(x, p)


def dropout_factors(x: Tensor, p: float) -> Tensor:
    """Draw 0 or 1/(1 - p) for each number of x, four from each 64 random bits.

    p is rounded to a multiple of 2**-16 below 1. torch's own dropout draws one random number for each element.
    """
    n_dropped = n_dropped_of(p)
    bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)
    kept = bits[: x.numel()].view(x.shape) >= n_dropped - 2**15
    return kept.to(x.dtype).mul_(N_DRAWS / (N_DRAWS - n_dropped))


def n_dropped_of(p: float) -> int:
    """Return how many of the 2**16 values of 16 random bits drop a number: never all, so that some are kept."""
    return min(round(p * N_DRAWS), N_DRAWS - 1)


opaque_factors = torch.library.custom_op(
    "clearformer::dropout_factors",
    dropout_factors,
    mutates_args=(),
    tags=(torch.Tag.nondeterministic_seeded,),
)
"""The same as an operator that the compiler leaves alone, as compiled dropout is slower than torch's own."""


@opaque_factors.register_fake
def _like_its_numbers(x: Tensor, p: float) -> Tensor:  # noqa: ARG001  (the operator's arguments)
    return x.new_empty(x.shape)
