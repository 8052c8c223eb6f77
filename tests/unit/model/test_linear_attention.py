"""Linear attention by its formula: without order, with padding, and looked at while a cache grows."""

import math

import pytest
import torch
from torch import Tensor

from clearformer.hooks import hooked
from clearformer.model.linear_attention import Linear, linear_attention, linear_pattern, positive
from clearformer.model.masks import Mask
from clearformer.model.positions import Positions

B, T, D = 2, 7, 6


def text_mask(n: int, n_before: int = 0, causal: bool = True) -> Mask:
    return Mask.of(torch.zeros(B, n, dtype=torch.long), causal, n_before=n_before)


def test_phi_is_positive_and_x_plus_one_above_zero() -> None:
    x = torch.tensor([-3.0, -0.5, 0.0, 0.5, 2.0])
    expected = torch.where(x > 0, x + 1, x.exp())
    torch.testing.assert_close(positive(x), expected)


def test_the_weights_of_what_a_position_reads_sum_to_one() -> None:
    scores = torch.rand(B, 3, T, T, dtype=torch.float64).tril()
    pattern = linear_pattern(scores)

    torch.testing.assert_close(pattern.sum(-1), torch.ones(B, 3, T, dtype=torch.float64))
    torch.testing.assert_close(pattern[..., 1, 0] / pattern[..., 1, 1], scores[..., 1, 0] / scores[..., 1, 1])


def test_a_position_that_may_read_nothing_has_weights_of_0() -> None:
    assert torch.equal(linear_pattern(torch.zeros(1, 1, 1, T)), torch.zeros(1, 1, 1, T))


def test_without_order_everyone_reads_everyone() -> None:
    q, k = (positive(torch.randn(B, 3, n, 5, dtype=torch.float64)) for n in (T, 11))
    v = torch.randn(B, 3, 11, 4, dtype=torch.float64)

    expected = linear_pattern(q @ k.mT) @ v

    torch.testing.assert_close(linear_attention(q, k, v), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("n_kv_heads", [4, 2])
def test_who_looks_at_a_growing_text_sees_the_pattern_of_the_whole(n_kv_heads: int) -> None:
    """And nothing changes by it: with a cache and without, looked at and not."""
    attention = Linear(n_heads=4, n_kv_heads=n_kv_heads, d_head=3).build(D, dropout=0.0).double()
    x = torch.randn(B, T, D, dtype=torch.float64)
    whole: list[Tensor] = []
    with hooked(attention, {"hook_pattern": lambda pattern, _: whole.append(pattern)}):
        looked_at = attention(x, text_mask(T), Positions())
    plain = attention(x, text_mask(T), Positions())

    cache, rows, outputs = attention.new_cache(), list[Tensor](), list[Tensor]()
    with hooked(attention, {"hook_pattern": lambda pattern, _: rows.append(pattern)}):
        for start, end in ((0, 3), (3, 4), (4, T)):
            outputs.append(attention(x[:, start:end], text_mask(end - start, start), Positions(), cache))

    torch.testing.assert_close(looked_at, plain, rtol=0, atol=1e-12)
    torch.testing.assert_close(torch.cat(outputs, 1), plain, rtol=0, atol=1e-12)
    for row, (start, end) in zip(rows, ((0, 3), (3, 4), (4, T)), strict=True):
        torch.testing.assert_close(row, whole[0][:, :, start:end, :end], rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [True, False])
def test_padding_adds_nothing_to_any_sum(causal: bool) -> None:
    attention = Linear(n_heads=2).build(D, dropout=0.0).double()
    x = torch.randn(1, T, D, dtype=torch.float64)
    padding = torch.arange(T)[None] >= 3
    padded = Mask.of(torch.zeros(1, T, dtype=torch.long), causal, padding)
    alone = Mask.of(torch.zeros(1, T - 3, dtype=torch.long), causal)

    found = attention(x, padded, Positions())[:, 3:]

    torch.testing.assert_close(found, attention(x[:, 3:], alone, Positions()), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_small_scores_are_kept_and_weights_sum_to_one(dtype: torch.dtype) -> None:
    x = torch.tensor([-12.0, -7.0, -3.0, 0.0, 2.0])
    expected = torch.tensor([math.exp(-12), math.exp(-7), math.exp(-3), 1.0, 3.0])
    torch.testing.assert_close(positive(x.to(dtype)).float(), expected, rtol=1e-2, atol=0)
    q = k = torch.full((1, 1, 3, 4), -9.0, dtype=dtype)
    pattern = linear_pattern((positive(q) @ positive(k).mT).tril())
    torch.testing.assert_close(pattern.sum(-1).float(), torch.ones(1, 1, 3), rtol=2e-2, atol=0)


def test_phi_has_a_gradient_everywhere() -> None:
    x = torch.tensor([-200.0, -1.0, 0.0, 200.0], requires_grad=True)
    positive(x).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.tensor([0.0, math.exp(-1), 1.0, 1.0]))
