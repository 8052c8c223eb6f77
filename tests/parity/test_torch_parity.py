"""Attention and blocks against torch.nn's own, with the same weights."""

from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from clearformer.model.attention import Attention, MultiHead
from clearformer.model.block import Block
from clearformer.model.feedforward import GELU, FeedForward, ReLU
from clearformer.model.masks import Mask
from clearformer.model.norms import LayerNorm
from clearformer.model.positions import Positions

B, T, S, D, H, F = 2, 7, 11, 15, 3, 17

TYPES = [(torch.float32, 1e-6), (torch.float64, 1e-12)]
PADDED = {"no padding": [0, 0], "right": [0, -3], "left": [0, 3]}  # by row: + on the left, - on the right


@pytest.mark.parametrize(("dtype", "tolerance"), TYPES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_self_attention_is_that_of_torch(
    causal: bool, bias: bool, dtype: torch.dtype, tolerance: float
) -> None:
    ours, theirs = twins(bias, dtype)
    x = torch.randn(B, T, D, dtype=dtype)
    forbidden = ~torch.ones(T, T, dtype=torch.bool).tril() if causal else None

    result = ours(x, mask(T, T, causal), Positions())

    expected, _ = theirs(x, x, x, attn_mask=forbidden, need_weights=False)
    torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("padded", PADDED)
@pytest.mark.parametrize("causal", [True, False])
def test_self_attention_with_padded_keys_is_that_of_torch(causal: bool, padded: str) -> None:
    ours, theirs = twins(bias=True, dtype=torch.float64)
    x = torch.randn(B, T, D, dtype=torch.float64)
    real = padding_of(PADDED[padded], T)
    forbidden = ~torch.ones(T, T, dtype=torch.bool).tril() if causal else None

    result = ours(x, mask(T, T, causal, real), Positions())

    expected, _ = theirs(x, x, x, key_padding_mask=~real, attn_mask=forbidden, need_weights=False)
    torch.testing.assert_close(result[real], expected[real], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("padded", PADDED)
@pytest.mark.parametrize("look", [False, True])
def test_cross_attention_is_that_of_torch(padded: str, look: bool) -> None:
    ours, theirs = twins(bias=True, dtype=torch.float64)
    x, memory = torch.randn(B, T, D, dtype=torch.float64), torch.randn(B, S, D, dtype=torch.float64)
    real = padding_of(PADDED[padded], S)
    patterns: list[Tensor] = []
    if look:
        ours.hook_pattern.look = patterns.append

    result = ours(x, mask(T, S, causal=False, padding=real), Positions(), memory=memory)

    expected, weights = theirs(x, memory, memory, key_padding_mask=~real, average_attn_weights=False)
    torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)
    if look:
        torch.testing.assert_close(patterns[0], weights, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), TYPES)
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("placement", ["pre", "post"])
def test_block_is_torchs_encoder_layer(
    placement: Literal["pre", "post"], activation: str, dtype: torch.dtype, tolerance: float
) -> None:
    theirs = nn.TransformerEncoderLayer(
        D,
        H,
        F,
        dropout=0.0,
        activation=activation,
        batch_first=True,
        norm_first=placement == "pre",
        dtype=dtype,
    )
    perturb(theirs)
    ours = Block(
        D,
        MultiHead(n_heads=H, qkv_bias=True, output_bias=True),
        {"relu": ReLU, "gelu": GELU}[activation](d_ff=F),
        LayerNorm(),
        placement,
        residual=True,
        dropout=0.0,
    ).to(dtype)
    assert isinstance(ours.attn, Attention)
    assert isinstance(ours.mlp, FeedForward)
    copy_attention(theirs.self_attn, ours.attn)
    pairs = [(theirs.norm1, ours.ln1), (theirs.norm2, ours.ln2)]
    pairs += [(theirs.linear1, ours.mlp.W_in), (theirs.linear2, ours.mlp.W_out)]
    for source, target in pairs:
        target.load_state_dict(source.state_dict())
    x = torch.randn(B, T, D, dtype=dtype)
    later = torch.full((T, T), -torch.inf, dtype=dtype).triu(1)

    result = ours(x, mask(T, T, causal=True), Positions())

    expected = theirs(x, src_mask=later, is_causal=True)
    torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance)


def twins(bias: bool, dtype: torch.dtype) -> tuple[Attention, nn.MultiheadAttention]:
    """The same attention, ours and torch's."""
    theirs = nn.MultiheadAttention(D, H, bias=bias, batch_first=True, dtype=dtype)
    perturb(theirs)
    ours = MultiHead(n_heads=H, qkv_bias=bias, output_bias=bias).build(D, dropout=0.0).to(dtype)
    copy_attention(theirs, ours)
    return ours, theirs


def copy_attention(theirs: nn.MultiheadAttention, ours: nn.Module) -> None:
    weights = {"W_O.weight": theirs.out_proj.weight}
    for name, matrix in zip("QKV", theirs.in_proj_weight.chunk(3), strict=True):
        weights[f"W_{name}.weight"] = matrix
    if theirs.in_proj_bias is not None:
        weights["W_O.bias"] = theirs.out_proj.bias
        for name, vector in zip("QKV", theirs.in_proj_bias.chunk(3), strict=True):
            weights[f"W_{name}.bias"] = vector
    ours.load_state_dict(weights)


@torch.no_grad()
def perturb(module: nn.Module) -> None:
    """Move norms and biases away from 1 and 0, where they would hide."""
    for parameter in module.parameters():
        parameter.add_(0.3 * torch.randn_like(parameter))


def mask(n_queries: int, n_keys: int, causal: bool, padding: Tensor | None = None) -> Mask:
    return Mask(q_pos=torch.arange(n_queries), k_pos=torch.arange(n_keys), causal=causal, padding=padding)


def padding_of(by_row: list[int], length: int) -> Tensor:
    """True where a token is real: rows padded by so many on the left (+) or on the right (-)."""
    places = torch.arange(length)
    return torch.stack([(places >= max(n, 0)) & (places < length + min(n, 0)) for n in by_row])
