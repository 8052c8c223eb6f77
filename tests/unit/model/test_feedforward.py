"""Each feed-forward network by its formula, and its sizes."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from clearformer.model.feedforward import GEGLU, GELU, NoFeedForward, ReLU, ReLU2, SiLU, SwiGLU

D, FF = 5, 11


def test_none_is_no_sub_layer() -> None:
    assert NoFeedForward().build(D) is None


def gelu(x: Tensor) -> Tensor:
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def gelu_tanh(x: Tensor) -> Tensor:
    return x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


@pytest.mark.parametrize(
    ("spec", "activation"),
    [
        (ReLU(d_ff=FF), lambda x: x.clamp_min(0)),
        (ReLU2(d_ff=FF), lambda x: x.clamp_min(0) ** 2),
        (GELU(d_ff=FF), gelu),
        (GELU(d_ff=FF, approximate="tanh"), gelu_tanh),
        (SiLU(d_ff=FF), silu),
    ],
)
@pytest.mark.parametrize("bias", [True, False])
def test_two_layers(spec: Any, activation: Any, bias: bool) -> None:
    mlp, x = spec.replace(bias=bias).build(D).double(), torch.randn(2, 3, D, dtype=torch.float64)
    hidden = x @ mlp.W_in.weight.T + (mlp.W_in.bias if bias else 0)
    expected = activation(hidden) @ mlp.W_out.weight.T + (mlp.W_out.bias if bias else 0)
    torch.testing.assert_close(mlp(x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("spec", [ReLU(d_ff=4096, dropout=0.25), SwiGLU(d_ff=4096, dropout=0.25)])
def test_dropout_between_the_matrices(spec: Any) -> None:
    """Lecture 002, section 6: in training alone, each hidden number is 0 or divided by 1 - p."""
    mlp, x = spec.build(D), torch.randn(1, 1, D)
    hidden: list[Tensor] = []
    mlp.W_out.register_forward_pre_hook(lambda _, inputs: hidden.append(inputs[0]))
    mlp.eval()(x)
    mlp.train()(x)
    kept = hidden[1] != 0
    torch.testing.assert_close(hidden[1][kept], hidden[0][kept] / 0.75)
    was_there = (hidden[0] != 0).sum()
    assert 1 - kept.sum() / was_there == pytest.approx(0.25, abs=0.05)


@pytest.mark.parametrize(
    ("spec", "activation"),
    [
        (SwiGLU(d_ff=FF), silu),
        (GEGLU(d_ff=FF), gelu_tanh),
        (GEGLU(d_ff=FF, approximate="none"), gelu),
    ],
)
@pytest.mark.parametrize("bias", [True, False])
def test_gated_layers(spec: Any, activation: Any, bias: bool) -> None:
    mlp, x = spec.replace(bias=bias).build(D).double(), torch.randn(2, 3, D, dtype=torch.float64)

    def matrix(name: str, x: Tensor) -> Tensor:
        layer = getattr(mlp, name)
        return x @ layer.weight.T + (layer.bias if bias else 0)

    expected = matrix("W_out", activation(matrix("W_gate", x)) * matrix("W_in", x))
    torch.testing.assert_close(mlp(x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", [ReLU, GELU, SiLU, ReLU2])
def test_two_layers_are_four_times_as_wide_and_have_biases(kind: Any) -> None:
    shapes = {name: tuple(p.shape) for name, p in kind().build(D).named_parameters()}
    assert shapes == {"W_in.weight": (20, 5), "W_in.bias": (20,), "W_out.weight": (5, 20), "W_out.bias": (5,)}


@pytest.mark.parametrize(
    ("d_model", "width"), [(3, 8), (6, 16), (7, 24), (128, 344), (256, 688), (384, 1024)]
)
@pytest.mark.parametrize("kind", [SwiGLU, GEGLU])
def test_gated_layers_are_two_thirds_as_wide_rounded_up_to_a_multiple_of_eight(
    kind: Any, d_model: int, width: int
) -> None:
    mlp = kind().build(d_model)
    assert {tuple(p.shape) for p in mlp.parameters()} == {(width, d_model), (d_model, width)}
    assert kind(d_ff=9).width(d_model) == 9
