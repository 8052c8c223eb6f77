import pytest
import torch
from torch import Tensor, nn

from clearformer.training.nonfinite import first_nonfinite_module, weights_are_finite


class InfiniteGradient(torch.autograd.Function):
    """The identity, whose gradient is infinite."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> Tensor:
        return gradients[0] * float("inf")


class Steps(nn.Module):
    """Three layers, with a place between the first two that can spoil the gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Linear(3, 5), nn.Linear(5, 7), nn.Linear(7, 2)
        self.spoil_gradient = False

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x)
        if self.spoil_gradient:
            x = InfiniteGradient.apply(x)
        return self.three(self.two(x))


@pytest.fixture
def model() -> Steps:
    return Steps()


def find(model: Steps) -> str | None:
    return first_nonfinite_module(model, lambda: model(torch.ones(2, 3)).square().mean())


def test_where_all_is_finite_none_is_named(model: Steps) -> None:
    assert find(model) is None


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_spoilt_weight_is_named(model: Steps, bad: float) -> None:
    model.two.bias.data[3] = bad

    assert find(model) == "the weights of two"
    assert not weights_are_finite(model)


def test_the_first_module_whose_output_overflows_is_named(model: Steps) -> None:
    model.two.weight.data.fill_(3e38)
    model.one.bias.data.fill_(9.0)

    assert find(model) == "the output of two"
    assert weights_are_finite(model)


def test_a_gradient_that_overflows_alone_is_named_where_it_first_does(model: Steps) -> None:
    """Backward goes from the end to the beginning: `two` and `three` are still right, `one` is the first."""
    model.spoil_gradient = True

    assert find(model) in ("the gradient of one.weight", "the gradient of one.bias")


def test_the_first_in_backward_order_is_named(model: Steps) -> None:
    model.spoil_gradient = True
    model.three.weight.register_hook(lambda gradient: gradient * float("nan"))

    assert find(model) == "the gradient of three.weight"


def test_it_leaves_no_hooks_and_no_gradients(model: Steps) -> None:
    model.two.bias.data[3] = float("nan")

    find(model)

    assert all(p.grad is None for p in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())
    assert not any(p._backward_hooks for p in model.parameters())
