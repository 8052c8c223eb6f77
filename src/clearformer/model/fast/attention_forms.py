"""softmax(Q K^T scale + bias + M) V in the quickest form for the shapes and the device.

Shapes: B batch, T query positions, S key positions, H heads, K key/value heads, Dh head size.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from clearformer.model.fast.random_bits import dropout
from clearformer.model.fast.window import window_blocks, within_reach
from clearformer.model.masks import Mask, mask_value

SHORT = 512  # keys; for up to so many the formula beats the fused kernel in bfloat16 on a CPU


def attention(
    q: Float[Tensor, "B H T Dh"],
    k: Float[Tensor, "B K S Dh"],
    v: Float[Tensor, "B K S Dv"],
    mask: Mask,
    bias: Float[Tensor, "*#B H T S"] | None,
    scale: float,
    window: int | None,
    p_dropout: float,
    plain: Callable[..., Float[Tensor, "B H T Dv"]],
) -> Float[Tensor, "B H T Dv"]:
    """Return plain(q, k, v, mask, bias), or the same computed in another form."""
    if bias is None:
        k, v, mask = within_reach(k, v, mask, window)
        blocks = window_blocks(mask, window)
        if blocks is not None:  # a long sequence and a short window: each block becomes a batch row
            near = blocks.mask(len(q), mask.causal, q.device)
            parts = blocks.queries(q), blocks.keys(k), blocks.keys(v)
            return blocks.joined(attention(*parts, near, None, scale, window, p_dropout, plain))
    if takes_sums(q):
        return one_token_attention(q, k, v, mask, bias, scale, window, p_dropout)
    if formula_is_faster(q, k, p_dropout):
        return plain(q, k, v, mask, bias)
    return fused_attention(q, k, v, mask, bias, scale, window, p_dropout)


def fused_attention(
    q: Float[Tensor, "B H T Dh"],
    k: Float[Tensor, "B K S Dh"],
    v: Float[Tensor, "B K S Dv"],
    mask: Mask,
    bias: Float[Tensor, "*#B H T S"] | None,
    scale: float,
    window: int | None,
    p_dropout: float,
) -> Float[Tensor, "B H T Dv"]:
    """Compute the same in one kernel, which never stores the [T S] scores (FlashAttention, Dao et al. 2022)."""
    attend = None
    everything = mask.reads_everything(window)
    causal = not everything and bias is None and mask.is_triangle(window)
    if not everything and not causal:
        attend = mask.attend(window)
    if bias is not None:
        bias = bias.to(q.dtype)
        attend = bias if attend is None else bias.masked_fill(~attend, mask_value(q.dtype))
    return F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=attend,
        is_causal=causal,
        scale=scale,
        dropout_p=p_dropout,
        enable_gqa=q.shape[1] != k.shape[1],
    )


def one_token_attention(
    q: Float[Tensor, "B H 1 Dh"],
    k: Float[Tensor, "B K S Dh"],
    v: Float[Tensor, "B K S Dv"],
    mask: Mask,
    bias: Float[Tensor, "*#B H 1 S"] | None,
    scale: float,
    window: int | None,
    p_dropout: float,
) -> Float[Tensor, "B H 1 Dv"]:
    """Compute the same for a single new token, with the products written as sums.

    For sums, the compiler reads keys and values directly from the cache; for products it copies all of them at
    every token.
    """
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scores = (q * k).sum(-1).unsqueeze(2) * scale
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    if not mask.reads_everything(window):
        scores = scores + mask.matrix(window, scores.dtype)
    pattern = dropout(scores.softmax(dim=-1), p_dropout)
    return (pattern.mT * v).sum(2, keepdim=True)


def takes_sums(q: Float[Tensor, "B H T Dh"]) -> bool:
    """Whether products become sums: for a single new token, compiled for a CPU."""
    return torch.compiler.is_compiling() and q.device.type == "cpu" and q.shape[2] == 1


def formula_is_faster(
    q: Float[Tensor, "B H T Dh"], k: Float[Tensor, "B K S Dh"], p_dropout: float = 0.0
) -> bool:
    """Whether the plain formula beats the fused kernel: on a CPU, for short keys in bfloat16 or with any dropout.

    In bfloat16 the fused kernel's backward takes most of a step. With dropout torch has no fused kernel for CPUs: it
    falls back to the formula, with its slower dropout.
    """
    if q.device.type != "cpu":
        return False
    return p_dropout > 0 or (q.dtype == torch.bfloat16 and q.shape[2] > 1 and k.shape[2] <= SHORT)
