"""Linear attention in chunks of any size is its formula, and goes on from what it remembers."""

from collections.abc import Sequence
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clearformer.model.cache import LinearCache
from clearformer.model.fast import linear_chunks as linear_chunks_module
from clearformer.model.fast.linear_chunks import linear_chunks
from clearformer.model.linear_attention import causal_linear_attention, positive


def linear_inputs(n: int) -> tuple[Tensor, Tensor, Tensor]:
    """phi of queries and of keys, and values of another size, in float64."""
    q, k = (positive(torch.randn(2, 3, n, 5, dtype=torch.float64)) for _ in "qk")
    v = torch.randn(2, 3, n, 7, dtype=torch.float64)
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_()


def linear_formula(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """sum_s phi(q_t)^T phi(k_s) v_s / sum_s phi(q_t)^T phi(k_s), over s up to t (Katharopoulos et al. 2020, 9)."""
    scores = (q @ k.transpose(-2, -1)).tril()
    return scores @ v / scores.sum(-1, keepdim=True)


def assert_equal_with_gradients(one: Tensor, other: Tensor, inputs: Sequence[Tensor]) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    weight = torch.randn_like(one)
    for a, b in zip(*(torch.autograd.grad(z, inputs, weight) for z in (one, other)), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@settings(max_examples=30)
@given(n=st.integers(1, 31), chunk=st.integers(1, 33))
def test_linear_attention_in_chunks_is_its_formula(n: int, chunk: int) -> None:
    inputs = linear_inputs(n)
    with patch.object(linear_chunks_module, "CHUNK", chunk):
        z = causal_linear_attention(*inputs)
    assert_equal_with_gradients(z, linear_formula(*inputs), inputs)


@pytest.mark.parametrize("n", [1, 63, 64, 65, 128, 131, 193])
def test_linear_attention_in_chunks_of_the_usual_size_is_its_formula(n: int) -> None:
    inputs = linear_inputs(n)
    assert_equal_with_gradients(causal_linear_attention(*inputs), linear_formula(*inputs), inputs)


@pytest.mark.parametrize("sizes", [[131], [130, 1], [1, 130], [64, 65, 1, 1], [1] * 67 + [64]])
def test_linear_attention_goes_on_from_what_it_remembers(sizes: list[int]) -> None:
    inputs, memory = linear_inputs(131), LinearCache()
    parts = zip(*(x.split(sizes, dim=2) for x in inputs), strict=True)

    z = torch.cat([causal_linear_attention(q, k, v, memory) for q, k, v in parts], dim=2)

    assert_equal_with_gradients(z, linear_formula(*inputs), inputs)
    _, k, v = inputs
    assert memory.outer is not None
    assert memory.keys is not None
    torch.testing.assert_close(memory.outer, k.transpose(-2, -1) @ v, rtol=0, atol=1e-11)
    torch.testing.assert_close(memory.keys, k.sum(2), rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    ("n", "chunks"), [(1, (1, 1)), (64, (1, 64)), (65, (2, 33)), (131, (3, 44)), (4096, (64, 64))]
)
def test_chunks_are_few_and_of_one_length(n: int, chunks: tuple[int, int]) -> None:
    assert linear_chunks(n) == chunks


def test_of_no_positions_there_is_no_result() -> None:
    assert causal_linear_attention(*linear_inputs(0)).shape == (2, 3, 0, 7)
    memory = LinearCache()
    q, k, v = linear_inputs(9)
    causal_linear_attention(q[:, :, :4], k[:, :, :4], v[:, :, :4], memory)
    causal_linear_attention(*linear_inputs(0), memory)
    rest = causal_linear_attention(q[:, :, 4:], k[:, :, 4:], v[:, :, 4:], memory)
    torch.testing.assert_close(rest, linear_formula(q, k, v)[:, :, 4:], rtol=0, atol=1e-12)
