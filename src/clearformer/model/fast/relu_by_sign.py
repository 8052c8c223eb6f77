"""max(0, x), with its gradient from the sign of the result."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def relu(x: Tensor) -> Tensor:
    """Return max(0, x); in compiled training on a CPU by `ReLUBySign`."""
    if torch.compiler.is_compiling() and x.device.type == "cpu" and torch.is_grad_enabled():
        return ReLUBySign.apply(x)  # type: ignore[return-value]
    return F.relu(x)


class ReLUBySign(torch.autograd.Function):
    """max(0, x), whose backward multiplies the result's gradient by the result's sign.

    For torch's own backward, the compiler stores a boolean per number, which takes far longer than the rest.
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
