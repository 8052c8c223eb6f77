"""x W^T + b, the same of one vector as sums, and of several matrices at once."""

from unittest.mock import patch

import pytest
import torch
import torch._dynamo  # it keeps the `is_compiling` that it finds: not the one that a test puts there
import torch.nn.functional as F

from clearformer.model.fast.products import Linear, joint_linear, linear, linear_each, matrix_vector


class Own(Linear):
    pass


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
    layer = Linear(I, O)
    x = torch.randn(1, 1, I)

    assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))
    assert torch.equal(linear(x, layer.weight), F.linear(x, layer.weight))


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (1, 3), (2, 3)])
def test_only_a_single_vector_compiled_is_multiplied_by_sums(shape: tuple[int, int], has_bias: bool) -> None:
    layer = Linear(I, O, bias=has_bias)
    x = torch.randn(*shape, I)
    module = "clearformer.model.fast.products"

    with patch(f"{module}.matrix_vector", side_effect=matrix_vector) as sums:
        expected = layer(x)
        assert sums.call_count == 0
        with patch("torch.compiler.is_compiling", return_value=True):
            found = layer(x)
            assert sums.call_count == (shape == (1, 1))
            assert Linear(I, O, device="meta")(x.to("meta")).shape == (*shape, O)  # which is no CPU

    assert sums.call_count == (shape == (1, 1))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("has_bias", [False, True])
def test_several_matrices_at_once_are_each_by_itself(has_bias: bool) -> None:
    layers = [Linear(I, n, bias=has_bias, dtype=torch.float64) for n in (O, 3, 5)]
    x = torch.randn(2, 4, I, dtype=torch.float64)

    for found, layer in zip(joint_linear(x, layers), layers, strict=True):
        torch.testing.assert_close(found, layer(x), rtol=0, atol=1e-14)


def test_matrices_are_joined_in_compiled_training_of_small_batches_alone() -> None:
    layers = [Linear(I, n) for n in (O, 3)]
    x = torch.randn(2, 4, I)
    module = "clearformer.model.fast.products"

    with patch(f"{module}.joint_linear", side_effect=joint_linear) as joint:
        apart = linear_each(x, *layers)
        with patch("torch.compiler.is_compiling", return_value=True):
            joined = linear_each(x, *layers)
            linear_each(x, layers[0], torch.nn.Identity())  # which is no matrix
            linear_each(x, layers[0], Own(I, 3))  # which may compute something else
            with torch.no_grad():  # writing a text, the joined matrix would be made anew for every token
                linear_each(x, *layers)
            with patch(f"{module}.SMALL_BATCH", x.numel() - 1):
                linear_each(x, *layers)

    assert joint.call_count == 1
    for one, other in zip(joined, apart, strict=True):
        torch.testing.assert_close(one, other)
