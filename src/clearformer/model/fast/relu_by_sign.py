"""max(0, x), its gradient by the sign of its result."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def relu(x: Tensor) -> Tensor:
    """max(0, x); in compiled training on a CPU with the gradient of `ReLUBySign`."""
    if torch.compiler.is_compiling() and x.device.type == "cpu" and torch.is_grad_enabled():
        return ReLUBySign.apply(x)  # type: ignore[return-value]
    return F.relu(x)


class ReLUBySign(torch.autograd.Function):
    """max(0, x), whose gradient is that of its result times the result's sign.

    For torch's own the compiler keeps a truth value of each number, which takes it far longer than the rest.
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
