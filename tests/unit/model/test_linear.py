"""x W^T + b, and the same of one vector as sums."""

import pytest
import torch
import torch.nn.functional as F

from clearformer.model.linear import LinearLayer, joint_linear, linear, matrix_vector

I, O = 7, 11  # noqa: E741  (inputs and outputs)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-14), (torch.float32, 1e-6), (torch.bfloat16, 2e-2)]
)
def test_sums_are_the_product(dtype: torch.dtype, tolerance: float, has_bias: bool) -> None:
    x, weight = torch.randn(1, 1, I, dtype=dtype), torch.randn(O, I, dtype=dtype)
    bias = torch.randn(O, dtype=dtype) if has_bias else None

    found = matrix_vector(x, weight, bias)

    assert found.dtype == dtype
    torch.testing.assert_close(found, F.linear(x, weight, bias), rtol=tolerance, atol=tolerance)


def test_a_bfloat16_sum_is_exact_to_its_last_digit() -> None:
    """Summed in bfloat16, 1 + 2^-9 + 2^-9 + ... would stay 1."""
    x = torch.ones(1, 1, 1 + 512, dtype=torch.bfloat16)
    weight = torch.full((1, 1 + 512), 2.0**-9, dtype=torch.bfloat16)
    weight[0, 0] = 1

    assert matrix_vector(x, weight).item() == 2


def test_uncompiled_it_is_torchs_own_to_the_bit() -> None:
    layer = LinearLayer(I, O)
    x = torch.randn(1, 1, I)

    assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))
    assert torch.equal(linear(x, layer.weight), F.linear(x, layer.weight))


@pytest.mark.parametrize("has_bias", [False, True])
def test_several_matrices_at_once_are_each_by_itself(has_bias: bool) -> None:
    layers = [LinearLayer(I, n, bias=has_bias, dtype=torch.float64) for n in (O, 3, 5)]
    x = torch.randn(2, 4, I, dtype=torch.float64)

    for found, layer in zip(joint_linear(x, layers), layers, strict=True):
        torch.testing.assert_close(found, layer(x), rtol=0, atol=1e-14)
