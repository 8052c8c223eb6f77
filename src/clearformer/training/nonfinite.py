"""Values that are not finite, and where they came from."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle


class NonFiniteValueError(Exception):
    """A value of training is not finite; the loop ends the run by it, with a message for people.

    Attributes:
        what: The value's name in that message.
    """

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


def weights_are_finite(model: nn.Module) -> bool:
    """Whether a model's weights are all numbers."""
    return all(_finite(p) for p in model.parameters())


def first_nonfinite_module(model: nn.Module, compute_loss: Callable[[], Tensor]) -> str | None:
    """The first module, in the order of computation, whose weights, result or gradient is not finite.

    Computes the loss and its gradients with a look at every module's result and every parameter's gradient; the
    gradients of `model` are gone afterwards. None where all of them are finite.
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
