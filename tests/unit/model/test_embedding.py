"""Vectors for tokens, and the gradient of a small matrix of them by a product."""

import pytest
import torch
import torch.nn.functional as F

from clearformer.model.embedding import EmbeddingLayer, ProductLookup

N_ROWS, D = 7, 5


@pytest.mark.parametrize("shape", [(3,), (2, 4), (2, 3, 4)])
def test_the_product_gives_the_rows_and_the_gradient_of_torchs_lookup(shape: tuple[int, ...]) -> None:
    tokens = torch.randint(N_ROWS - 1, shape)  # the last row is named by none
    weight = torch.randn(N_ROWS, D, dtype=torch.float64, requires_grad=True)
    of_result = torch.randn(*shape, D, dtype=torch.float64)

    result = ProductLookup.apply(tokens, weight)
    expected = F.embedding(tokens, weight)

    assert torch.equal(result, expected)
    torch.testing.assert_close(
        torch.autograd.grad(result, weight, of_result), torch.autograd.grad(expected, weight, of_result)
    )


def test_uncompiled_it_is_torchs_own_to_the_bit() -> None:
    layer = EmbeddingLayer(N_ROWS, D)
    tokens = torch.randint(N_ROWS, (2, 4))

    result = layer(tokens)

    assert torch.equal(result, F.embedding(tokens, layer.weight))
    assert result.grad_fn is not None
    assert result.grad_fn.name() == "EmbeddingBackward0"
