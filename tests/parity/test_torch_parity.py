"""Attention, blocks and whole models against torch.nn's own, with the same weights."""

from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from clearformer.hooks import hooked
from clearformer.model import EncoderOutput, ModelConfig, build
from clearformer.model.attention import Attention, MultiHead
from clearformer.model.block import Block
from clearformer.model.feedforward import GELU, FeedForward, ReLU
from clearformer.model.masks import Mask
from clearformer.model.positions import NoPositions, Positions

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
    looks = {"hook_pattern": lambda pattern, _: patterns.append(pattern)} if look else {}

    with hooked(ours, looks):
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
    config = ModelConfig(
        d_model=D,
        attention=MultiHead(n_heads=H, qkv_bias=True, output_bias=True),
        ffn={"relu": ReLU, "gelu": GELU}[activation](d_ff=F),
        placement=placement,
    )
    ours = Block(config).to(dtype)
    copy_layer(theirs, ours)
    x = torch.randn(B, T, D, dtype=dtype)
    later = torch.full((T, T), -torch.inf, dtype=dtype).triu(1)

    result = ours(x, mask(T, T, causal=True), Positions())

    expected = theirs(x, src_mask=later, is_causal=True)
    torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("padded", PADDED)
def test_a_block_s_cross_attention_is_that_of_torch(padded: str) -> None:
    config = ModelConfig(
        d_model=D,
        attention=MultiHead(n_heads=H, qkv_bias=True, output_bias=True),
        ffn=ReLU(d_ff=F),
        placement="post",
    )
    ours = Block(config, cross=True).double()
    theirs = nn.MultiheadAttention(D, H, batch_first=True, dtype=torch.float64)
    perturb(theirs)
    assert isinstance(ours.cross_attn, Attention)
    copy_attention(theirs, ours.cross_attn)
    x, memory = torch.randn(B, T, D, dtype=torch.float64), torch.randn(B, S, D, dtype=torch.float64)
    real = padding_of(PADDED[padded], S)
    seen: dict[str, Tensor] = {}

    with hooked(
        ours,
        dict.fromkeys(["hook_resid_mid", "hook_cross_attn_out"], lambda x, at: seen.update({at.name: x})),
    ):
        ours(x, mask(T, T, causal=True), Positions(), memory=EncoderOutput(memory, real))

    expected, _ = theirs(seen["hook_resid_mid"], memory, memory, key_padding_mask=~real)
    torch.testing.assert_close(seen["hook_cross_attn_out"], expected, rtol=1e-12, atol=1e-12)


# --- whole models -----------------------------------------------------------------------------------------

N_ENCODER, N_DECODER, V = 2, 3, 13
WHOLE_TYPES = [(torch.float32, 1e-5), (torch.float64, 1e-10)]
whole_model = pytest.mark.parametrize(("dtype", "tolerance"), WHOLE_TYPES)
either_placement = pytest.mark.parametrize("placement", ["pre", "post"])
# torch's Transformer always has the two norms that only pre-norm stacks need; the paper's post-norm has none.
either_end = pytest.mark.parametrize("final_norm", [True, False])


def assert_close_for_their_size(found: Tensor, expected: Tensor, tolerance: float) -> None:
    """Sums are rounded in proportion to what is added: these embeddings make logits of about 50."""
    size = max(1.0, float(expected.std()))
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * size)


@whole_model
@either_placement
@either_end
@pytest.mark.parametrize("padded", PADDED)
@torch.no_grad()
def test_an_encoder_is_torchs_transformer_encoder(
    padded: str,
    final_norm: bool,
    placement: Literal["pre", "post"],
    dtype: torch.dtype,
    tolerance: float,
) -> None:
    theirs = torchs_transformer(placement, final_norm, dtype).encoder
    ours = build(whole_config("encoder", placement, final_norm)).to(dtype)
    ours.embed.weight.normal_()
    copy_stack(theirs, ours.blocks, ours.ln_final)
    tokens, real = torch.randint(V, (B, S)), padding_of(PADDED[padded], S)

    result = ours.encode(tokens, real)

    expected = theirs(ours.embed(tokens), src_key_padding_mask=~real)
    assert_close_for_their_size(result[real], expected[real], tolerance)


@whole_model
@either_placement
@either_end
@pytest.mark.parametrize("padded", PADDED)
@torch.no_grad()
def test_an_encoder_decoder_is_torchs_transformer(
    padded: str,
    final_norm: bool,
    placement: Literal["pre", "post"],
    dtype: torch.dtype,
    tolerance: float,
) -> None:
    """Targets are padded on the right alone: torch gives a row that may read nothing no numbers."""
    theirs = torchs_transformer(placement, final_norm, dtype)
    ours = build(whole_config("encoder-decoder", placement, final_norm)).to(dtype)
    ours.embed.weight.normal_()
    copy_stack(theirs.encoder, ours.encoder_blocks, ours.encoder_ln_final)
    copy_stack(theirs.decoder, ours.decoder_blocks, ours.decoder_ln_final)
    source, tokens = torch.randint(V, (B, S)), torch.randint(V, (B, T))
    real_source, real = padding_of(PADDED[padded], S), padding_of([-2, 0], T)

    logits = ours(source, tokens, real_source, real)

    hidden = theirs(
        ours.embed(source),
        ours.embed(tokens),
        tgt_mask=~torch.ones(T, T, dtype=torch.bool).tril(),
        src_key_padding_mask=~real_source,
        tgt_key_padding_mask=~real,
        memory_key_padding_mask=~real_source,
    )
    expected = hidden @ ours.embed.weight.T
    assert_close_for_their_size(logits[real], expected[real], tolerance)


def whole_config(
    family: Literal["encoder", "encoder-decoder"], placement: Literal["pre", "post"], final_norm: bool
) -> ModelConfig:
    return ModelConfig(
        family=family,
        vocab_size=V,
        d_model=D,
        n_layers=N_ENCODER,
        n_decoder_layers=N_DECODER if family == "encoder-decoder" else None,
        attention=MultiHead(n_heads=H, qkv_bias=True, output_bias=True),
        position=NoPositions(),  # torch's model has none
        ffn=ReLU(d_ff=F),
        placement=placement,
        final_norm=final_norm,
    )


def torchs_transformer(placement: str, final_norm: bool, dtype: torch.dtype) -> nn.Transformer:
    layer = {"dropout": 0.0, "batch_first": True, "norm_first": placement == "pre", "dtype": dtype}
    norms = [nn.LayerNorm(D, dtype=dtype) if final_norm else None for _ in range(2)]
    encoder_layer, decoder_layer = (
        nn.TransformerEncoderLayer(D, H, F, **layer),
        nn.TransformerDecoderLayer(D, H, F, **layer),
    )
    encoder = nn.TransformerEncoder(encoder_layer, N_ENCODER, norms[0], enable_nested_tensor=False)
    decoder = nn.TransformerDecoder(decoder_layer, N_DECODER, norms[1])
    theirs = nn.Transformer(D, H, custom_encoder=encoder, custom_decoder=decoder, batch_first=True)
    perturb(theirs)
    return theirs


def copy_stack(
    theirs: nn.TransformerEncoder | nn.TransformerDecoder, blocks: nn.Module, ln_final: nn.Module
) -> None:
    for source, target in zip(theirs.layers, blocks.children(), strict=True):
        copy_layer(source, target)
    if theirs.norm is not None:
        ln_final.load_state_dict(theirs.norm.state_dict())


def copy_layer(theirs: Any, ours: nn.Module) -> None:
    """The weights of a layer of torch's, with cross-attention or without."""
    assert isinstance(ours, Block)
    assert isinstance(ours.attn, Attention)
    assert isinstance(ours.mlp, FeedForward)
    copy_attention(theirs.self_attn, ours.attn)
    pairs = [(theirs.norm1, ours.ln1), (theirs.linear1, ours.mlp.W_in), (theirs.linear2, ours.mlp.W_out)]
    if isinstance(ours.cross_attn, Attention):
        copy_attention(theirs.multihead_attn, ours.cross_attn)
        pairs += [(theirs.norm2, ours.ln_cross), (theirs.norm3, ours.ln2)]
    else:
        pairs += [(theirs.norm2, ours.ln2)]
    for source, target in pairs:
        target.load_state_dict(source.state_dict())


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
