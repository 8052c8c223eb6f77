"""Each kind of attention by its formula, on few numbers; larger ones are in the parity tests."""

import math
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch._dynamo  # it keeps the `is_compiling` that it finds: not the one that a test puts there
from torch import Tensor

from clearformer.errors import ConfigError
from clearformer.hooks import hooked
from clearformer.model.attention import (
    Attention,
    Dot,
    DotModule,
    Last,
    Mean,
    MultiHead,
    MultiHeadModule,
    Shared,
    share_heads,
)
from clearformer.model.linear_attention import Linear
from clearformer.model.masks import Mask
from clearformer.model.norms import RMSNorm
from clearformer.model.positions import Positions

B, T, D = 2, 5, 7


def causal(n: int) -> Mask:
    return Mask(q_pos=torch.arange(n), k_pos=torch.arange(n), causal=True)


def mixed(spec: Any, x: Tensor) -> Tensor:
    return spec.build(x.shape[-1], dropout=0.0)(x, causal(x.shape[1]), Positions())


def test_last_is_what_stands_there() -> None:
    x = torch.randn(B, T, D)
    assert torch.equal(mixed(Last(), x), x)


def test_mean_is_the_average_so_far() -> None:
    x = torch.randn(B, T, D)
    expected = x.cumsum(1) / torch.arange(1, T + 1)[:, None]
    torch.testing.assert_close(mixed(Mean(), x), expected)


@pytest.mark.parametrize("scale", [True, False])
def test_dot_of_two_tokens_by_hand(scale: bool) -> None:
    """The second token's scores are 3 (with the first) and 4 (with itself), in two dimensions."""
    x = torch.tensor([[[1.0, 3.0], [0.0, 1.0]], [[2.0, 1.5], [0.0, 2.0]]])
    first, itself = torch.tensor([3.0, 3.0]), torch.tensor([1.0, 4.0])
    if scale:
        first, itself = first / math.sqrt(2), itself / math.sqrt(2)
    weight = first.exp() / (first.exp() + itself.exp())
    expected = weight[:, None] * x[:, 0] + (1 - weight)[:, None] * x[:, 1]

    result = mixed(Dot(scale=scale), x)

    torch.testing.assert_close(result[:, 1], expected)
    assert torch.equal(result[:, 0], x[:, 0])


def test_an_embedding_reads_mostly_itself() -> None:
    """Its product with itself is about sqrt(d) after scaling, others' about 1 (lecture 000, section 4.3)."""
    d = 256
    attention, weights = Dot().build(d, dropout=0.0), []
    with hooked(attention, {"hook_pattern": lambda pattern, _: weights.append(pattern)}):
        attention(torch.randn(1, 20, d), causal(20), Positions())
    assert weights[0].diagonal(dim1=-2, dim2=-1).min() > 0.99


@pytest.mark.parametrize("d_head", [16, 64])
def test_unscaled_scores_have_the_standard_deviation_sqrt_d(d_head: int) -> None:
    q, k = torch.randn(2, 1, 1, 300, d_head)
    everything = Mask(torch.arange(300), torch.arange(300), causal=False)
    for scale, expected in ((1.0, d_head**0.5), (d_head**-0.5, 1)):
        attention, scores = DotModule(scale), list[Tensor]()
        with hooked(attention, {"hook_attn_scores": lambda s, _, scores=scores: scores.append(s)}):
            attention.formula(q, k, k, everything, None)
        assert scores[0].std().item() == pytest.approx(expected, rel=0.05)


def test_shared_has_one_matrix_on_both_sides() -> None:
    attention = Shared().build(D, dropout=0.0)
    assert {name for name, _ in attention.named_parameters()} == {"W.weight"}
    scores: list[Tensor] = []
    with hooked(attention, {"hook_attn_scores": lambda s, _: scores.append(s)}):
        attention(torch.randn(B, T, D), Mask(torch.arange(T), torch.arange(T), causal=False), Positions())
    torch.testing.assert_close(scores[0], scores[0].transpose(-2, -1))


@pytest.mark.parametrize("scale", [True, False])
def test_shared_with_the_identity_as_its_matrix_is_dot(scale: bool) -> None:
    x = torch.randn(B, T, D)
    shared = Shared(scale=scale).build(D, dropout=0.0)
    torch.nn.init.eye_(shared.W.weight)

    torch.testing.assert_close(shared(x, causal(T), Positions()), mixed(Dot(scale=scale), x))


@pytest.mark.parametrize("kind", [MultiHead, Linear])
@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({}, {"W_Q.weight", "W_K.weight", "W_V.weight", "W_O.weight"}),
        ({"output_bias": True}, {"W_Q.weight", "W_K.weight", "W_V.weight", "W_O.weight", "W_O.bias"}),
        ({"value": False}, {"W_Q.weight", "W_K.weight", "W_O.weight"}),
        ({"output": False}, {"W_Q.weight", "W_K.weight", "W_V.weight"}),
        (
            {"value": False, "output": False, "qkv_bias": True},
            {"W_Q.weight", "W_Q.bias", "W_K.weight", "W_K.bias"},
        ),
        (
            {"qkv_bias": True, "output_bias": True},
            {f"W_{m}.{p}" for m in "QKVO" for p in ("weight", "bias")},
        ),
        (
            {"output": False, "qk_norm": {"kind": "rmsnorm"}},
            {"W_Q.weight", "W_K.weight", "W_V.weight", "q_norm.weight", "k_norm.weight"},
        ),
    ],
)
def test_matrices_are_those_asked_for(kind: Any, settings: dict[str, Any], names: set[str]) -> None:
    attention = kind(n_heads=1, **settings).build(D, dropout=0.0)
    assert {name for name, _ in attention.named_parameters()} == names


@pytest.mark.parametrize(
    ("n_heads", "n_kv_heads", "sizes"), [(6, None, (24, 24)), (6, 3, (24, 12)), (6, 1, (24, 4))]
)
def test_key_value_heads_may_be_fewer(n_heads: int, n_kv_heads: int | None, sizes: tuple[int, int]) -> None:
    attention = MultiHead(n_heads=n_heads, n_kv_heads=n_kv_heads, d_head=4).build(D, dropout=0.0)
    assert (attention.W_Q.weight.shape[0], attention.W_K.weight.shape[0]) == sizes
    assert attention.W_O.weight.shape == (D, 24)


@pytest.mark.parametrize("kind", [MultiHead, Linear])
@pytest.mark.parametrize(
    "settings",
    [{}, {"n_kv_heads": 2, "qkv_bias": True}, {"value": False}, {"qk_norm": RMSNorm(), "d_head": 5}],
)
def test_queries_keys_and_values_by_one_product_are_those_by_three(
    kind: Any, settings: dict[str, Any]
) -> None:
    module = kind(n_heads=4, **settings).build(12, 0.0).double()
    x = torch.randn(2, 5, 12, dtype=torch.float64)

    expected = module.queries_keys_values(x)
    with patch("torch.compiler.is_compiling", return_value=True):
        found = module.queries_keys_values(x)

    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-13)


class ZeroQueries(MultiHeadModule):
    def queries(self, x: Tensor) -> Tensor:
        return torch.zeros_like(super().queries(x))


class SameKeys(MultiHeadModule):
    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = super().keys_values(x)
        return keys[:, :1].expand_as(keys), values


@pytest.mark.parametrize("module_type", [ZeroQueries, SameKeys])
def test_queries_or_keys_of_a_user_s_own_are_those_that_are_used(module_type: Any) -> None:
    """Each of the two makes all scores of a query equal, so that it reads the mean."""
    module = module_type(MultiHead(n_heads=2), 6, 0.0, 1.0, None)
    with hooked(module, {"hook_pattern": lambda pattern, hook: seen.append(pattern)}):
        seen: list[Tensor] = []
        module(torch.randn(B, T, 6), causal(T), Positions())
    expected = torch.ones(T, T).tril() / torch.arange(1, T + 1)[:, None]
    torch.testing.assert_close(seen[0], expected.expand(B, 2, T, T))


def test_neighbouring_query_heads_share_a_key_value_head() -> None:
    x = torch.arange(3)[None, :, None, None].expand(B, 3, T, 2).float()
    assert share_heads(x, 6)[0, :, 0, 0].tolist() == [0, 0, 1, 1, 2, 2]


def test_cross_attention_reads_its_memory_and_no_order() -> None:
    attention = MultiHead(n_heads=1).build(D, dropout=0.0)
    x, memory = torch.randn(B, T, D), torch.randn(B, 3, D)
    order = torch.tensor([2, 0, 1])
    mask = Mask(q_pos=torch.arange(T), k_pos=torch.arange(3), causal=False)

    result = attention(x, mask, Positions(), memory=memory)

    assert result.shape == x.shape
    torch.testing.assert_close(attention(x, mask, Positions(), memory=memory[:, order]), result)
    torch.testing.assert_close(attention(x[:, [1]], mask, Positions(), memory=memory), result[:, [1]])


@pytest.mark.parametrize("kind", [MultiHead, Linear])
def test_linear_and_softmax_attention_read_padded_memory_alike(kind: Any) -> None:
    attention = kind(n_heads=1).build(D, dropout=0.0)
    x, memory = torch.randn(B, T, D), torch.randn(B, 3, D)
    real = torch.tensor([[True, True, True], [True, True, False]])
    mask = Mask(q_pos=torch.arange(T), k_pos=torch.arange(3), causal=False, padding=real)
    shorter = Mask(q_pos=torch.arange(T), k_pos=torch.arange(2), causal=False)

    result = attention(x, mask, Positions(), memory=memory)

    expected = attention(x[1:], shorter, Positions(), memory=memory[1:, :2])
    torch.testing.assert_close(result[1:], expected)


@pytest.mark.parametrize(
    ("spec", "key"),
    [
        (MultiHead(n_heads=5), "n_heads"),
        (MultiHead(n_heads=4, n_kv_heads=3), "n_kv_heads"),
        (MultiHead(n_heads=2, n_kv_heads=4), "n_kv_heads"),
        (MultiHead(n_heads=4, d_head=5, output=False), "output"),
        (MultiHead(n_heads=4, n_kv_heads=2, value=False), "value"),
        (Linear(n_heads=5), "n_heads"),
    ],
)
def test_heads_that_do_not_fit_are_refused(spec: MultiHead | Linear, key: str) -> None:
    with pytest.raises(ConfigError, match=rf"^model\.attention\.{key}: "):
        spec.heads(24)


@pytest.mark.parametrize(
    ("spec", "heads"),
    [
        (Dot(), (1, 24)),
        (MultiHead(n_heads=3), (3, 8)),
        (MultiHead(n_heads=5, d_head=7), (5, 7)),
        (MultiHead(n_heads=4, n_kv_heads=2, d_head=12, value=False), (4, 12)),
    ],
)
def test_heads_and_their_size(spec: Dot | MultiHead, heads: tuple[int, int]) -> None:
    assert spec.heads(24) == heads


def test_every_kind_that_forms_weights_is_one_formula() -> None:
    for spec in (Mean(), Dot(), Shared(), MultiHead(), Linear()):
        assert isinstance(spec.build(D, dropout=0.0), Attention)
