"""Where a number that is not finite came from."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


def first_nonfinite_module(model: nn.Module, compute_loss: Callable[[], Tensor]) -> str:
    """The first module, in the order of computation, whose weights, result or gradient is not finite.

    Runs the step again, uncompiled, with a look at every module's result; the gradients of `model` are
    replaced by those of this step.
    """
    found: list[str] = []

    def look(name: str) -> Callable[[nn.Module, tuple[object, ...], object], None]:
        def check(module: nn.Module, _: tuple[object, ...], result: object) -> None:
            if not all(torch.isfinite(p).all() for p in module.parameters(recurse=False)):
                found.append(f"the weights of {name}")
            elif (
                isinstance(result, Tensor) and result.is_floating_point() and not torch.isfinite(result).all()
            ):
                found.append(f"the output of {name}")

        return check

    handles = [m.register_forward_hook(look(name or "the model")) for name, m in model.named_modules()]
    try:
        model.zero_grad()
        loss = compute_loss()
    finally:
        for handle in handles:
            handle.remove()
    if found:
        return found[0]
    loss.backward()
    for name, parameter in reversed(list(model.named_parameters())):  # backward goes from the head down
        if parameter.grad is not None and not torch.isfinite(parameter.grad).all():
            return f"the gradient of {name}"
    return "the loss"
