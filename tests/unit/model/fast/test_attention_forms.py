"""The other forms of softmax(Q K^T scale + bias + M) V give what the formula gives, where they are taken."""

from unittest.mock import patch

import pytest
import torch
import torch._dynamo  # it keeps the `is_compiling` that it finds: not the one that a test puts there
import torch.nn.functional as F

from clearformer.model.attention import DotModule, MultiHead
from clearformer.model.fast.attention_forms import (
    formula_is_faster,
    fused_attention,
    one_token_attention,
    takes_sums,
)
from clearformer.model.masks import Mask

B, T = 2, 5


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("n_queries", [1, T])
def test_every_form_is_the_formula_with_its_gradients(
    window: int | None, padded: bool, biased: bool, n_queries: int
) -> None:
    torch.manual_seed(0)
    n_heads, d_head = 6, 3
    q = torch.randn(B, n_heads, n_queries, d_head, dtype=torch.float64, requires_grad=True)
    k, v = torch.randn(2, B, 2, T, d_head, dtype=torch.float64, requires_grad=True)
    real = torch.tensor([[True] * T, [False, False, True, True, True]]) if padded else None
    mask = Mask(torch.arange(T)[T - n_queries :], torch.arange(T), causal=True, padding=real)
    bias = torch.randn(n_heads, n_queries, T, dtype=torch.float64) if biased else None
    module = DotModule(0.7)
    module.window = window
    expected = module.formula(q, k, v, mask, bias)
    forms = [fused_attention, one_token_attention] if n_queries == 1 else [fused_attention]

    for form in forms:
        found = form(q, k, v, mask, bias, 0.7, window, 0.0)
        reads = slice(2 if padded and n_queries > 1 else 0, None)  # a padding token reads anything
        torch.testing.assert_close(found[:, :, reads], expected[:, :, reads], rtol=0, atol=1e-12)
        weight = torch.randn_like(expected[:, :, reads])
        gradients = (
            torch.autograd.grad(z[:, :, reads], (q, k, v), weight, retain_graph=True)
            for z in (found, expected)
        )
        for ours, theirs in zip(*gradients, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("dtype", "n_queries", "n_keys", "formula"),
    [
        (torch.bfloat16, 5, 5, True),
        (torch.bfloat16, 1, 5, False),  # a new token: there is no backward
        (torch.bfloat16, 5, 2000, False),  # the scores would fill much memory
        (torch.float32, 5, 5, False),
    ],
)
def test_the_plain_formula_is_taken_for_short_texts_in_bfloat16(
    dtype: torch.dtype, n_queries: int, n_keys: int, formula: bool
) -> None:
    q, k = torch.zeros(B, 3, n_queries, 4, dtype=dtype), torch.zeros(B, 3, n_keys, 4, dtype=dtype)
    assert formula_is_faster(q, k) == formula


def test_with_dropout_the_plain_formula_is_taken_on_a_cpu() -> None:
    q = torch.zeros(B, 3, 5, 4)
    assert formula_is_faster(q, q, p_dropout=0.1)


def test_on_another_device_the_fused_kernel_is_taken() -> None:
    q = torch.zeros(B, 3, 5, 4, dtype=torch.bfloat16, device="meta")
    assert formula_is_faster(q, q, p_dropout=0.1) is False


@pytest.mark.parametrize(
    ("n_queries", "causal", "window", "padded", "biased", "given"),
    [
        (T, True, None, False, False, "is_causal"),  # a plain triangle
        (T, True, T, False, False, "is_causal"),  # a window that holds all of it
        (1, True, None, False, False, "nothing"),  # a new token reads all there is
        (T, False, None, False, False, "nothing"),
        (T, True, None, False, True, "attn_mask"),
        (T, True, T - 1, False, False, "attn_mask"),
        (T, True, None, True, False, "attn_mask"),
        (2, True, None, False, False, "attn_mask"),  # new tokens after earlier ones
    ],
)
def test_a_matrix_is_made_only_where_the_kernel_cannot_mask_by_itself(
    n_queries: int, causal: bool, window: int | None, padded: bool, biased: bool, given: str
) -> None:
    q, k = torch.zeros(B, 3, n_queries, 4), torch.zeros(B, 3, T, 4)
    real = torch.arange(T).expand(B, T) > 0 if padded else None
    mask = Mask(torch.arange(T)[T - n_queries :], torch.arange(T), causal=causal, padding=real)
    bias = torch.zeros(3, n_queries, T) if biased else None

    with patch.object(F, "scaled_dot_product_attention", wraps=F.scaled_dot_product_attention) as kernel:
        fused_attention(q, k, k, mask, bias, 0.5, window, 0.0)

    [call] = kernel.call_args_list
    assert call.kwargs["is_causal"] is (given == "is_causal")
    assert (call.kwargs["attn_mask"] is not None) is (given == "attn_mask")


@pytest.mark.parametrize("padded", [False, True])
def test_a_new_token_s_products_as_sums_are_the_formula_s(padded: bool) -> None:
    torch.manual_seed(0)
    spec, n = MultiHead(n_heads=4, n_kv_heads=2), 7
    module = spec.build(8, 0.0).double()
    x, memory = torch.randn(3, 1, 8, dtype=torch.float64), torch.randn(3, n, 8, dtype=torch.float64)
    padding = torch.arange(n) >= torch.tensor([[0], [2], [5]]) if padded else None
    k, v = (part.transpose(1, 2) for part in module.keys_values(memory))
    q = module.queries(x).transpose(1, 2)
    mask = Mask(torch.tensor([n - 1]), torch.arange(n), causal=True, padding=padding)

    expected = module.mix(q, k, v, mask, None, None)
    with patch("torch.compiler.is_compiling", return_value=True):
        assert takes_sums(q)
        found = module.mix(q, k, v, mask, None, None)

    assert takes_sums(q) is False
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_a_query_that_may_read_nothing_stays_a_number() -> None:
    """As a padding token's does; in both forms, with a bias and without, forwards and backwards."""
    nothing = Mask(
        torch.arange(T), torch.arange(T), causal=False, padding=torch.zeros(B, T, dtype=torch.bool)
    )
    for bias in (None, torch.randn(3, T, T)):
        q, k, v = torch.randn(3, B, 3, T, 4, requires_grad=True)
        fused = fused_attention(q, k, v, nothing, bias, 0.5, None, 0.0)
        for result in (fused, DotModule(0.5).formula(q, k, v, nothing, bias)):
            gradients = torch.autograd.grad(result.sum(), (q, k, v), retain_graph=True)
            assert all(tensor.isfinite().all() for tensor in (result, *gradients))
