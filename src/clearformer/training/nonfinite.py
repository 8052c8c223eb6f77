"""Values that are not finite, and where they first appear."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle


class NonFiniteValueError(Exception):
    """A value of training is not finite; the loop turns this into a message and ends the run.

    Attributes:
        what: The value's name in that message.
    """

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


def weights_are_finite(model: nn.Module) -> bool:
    """Whether all of a model's weights are finite."""
    return all(_finite(p) for p in model.parameters())


def first_nonfinite_module(model: nn.Module, compute_loss: Callable[[], Tensor]) -> str | None:
    """Name the first module, in the order of computation, whose weights, output or gradient are not finite.

    Computes the loss and its gradients with hooks on every module's output and every parameter's gradient, and clears
    the gradients of `model` at the end. Returns None if everything is finite.
    """
    places: list[str] = []

    def look_at_result(name: str) -> Callable[[nn.Module, tuple[object, ...], object], None]:
        def look(module: nn.Module, _: tuple[object, ...], result: object) -> None:
            if not all(_finite(p) for p in module.parameters(recurse=False)):
                places.append(f"the weights of {name}")
            elif isinstance(result, Tensor) and not _finite(result):
                places.append(f"the output of {name}")

        return look

    def look_at_gradient(name: str) -> Callable[[Tensor], None]:
        def look(gradient: Tensor) -> None:
            if not _finite(gradient):
                places.append(f"the gradient of {name}")

        return look

    handles: list[RemovableHandle] = [
        module.register_forward_hook(look_at_result(name or "the model"))
        for name, module in model.named_modules()
    ] + [p.register_hook(look_at_gradient(name)) for name, p in model.named_parameters()]
    try:
        compute_loss().backward()
    finally:
        for handle in handles:
            handle.remove()
        model.zero_grad()
    return places[0] if places else None


def _finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())
