"""What mixes positions: last, mean, dot, shared, multihead (MHA, GQA, MQA, window, cross), linear.

    Attn(E) = softmax((Q K^T + M) / sqrt(d)) V     (Vaswani et al. 2017, 3.2.1; lecture 000, section 4.5)

Every kind but `last` and `linear` is this formula with its own Q, K and V: `mean` has equal scores, `dot`
takes the embeddings themselves, `shared` one matrix for queries and keys, `multihead` separate matrices and h
heads. While nobody looks at the scores or the pattern, a fused kernel computes the same without keeping them,
wherever it is the faster one; and a window over a long text is read block by block (model/window.py).

Shapes: B batch, T query positions, S key positions, D d_model, H heads, K key/value heads, Dh head size.
"""

from abc import ABC, abstractmethod
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from clearformer.config import Spec
from clearformer.errors import ConfigError
from clearformer.model.cache import KeyValueCache, LayerCache, LinearCache
from clearformer.model.dropout import dropout
from clearformer.model.hooks import HookPoint, shown
from clearformer.model.linear import LinearLayer, joint_linear
from clearformer.model.linear_attention import (
    causal_linear_attention,
    linear_attention,
    linear_pattern,
    positive,
)
from clearformer.model.masks import Mask
from clearformer.model.norms import NoNorm, Norm
from clearformer.model.positions import Positions
from clearformer.model.window import window_blocks, within_reach

SMALL_BATCH = 2**17  # numbers; between those of the two steps that `joins_products` tells of

Queries = Float[Tensor, "B T H Dh"]
KeysValues = tuple[Float[Tensor, "B S K Dh"], Float[Tensor, "B S K Dv"]]


# --- the formula ------------------------------------------------------------------------------------------


def attention_scores(
    q: Float[Tensor, "B H T Dh"],
    k: Float[Tensor, "B H S Dh"],
    scale: float,
    attend: Bool[Tensor, "#B 1 T S"] | None = None,
    bias: Float[Tensor, "*#B H T S"] | None = None,
) -> Float[Tensor, "B H T S"]:
    """Q K^T * scale + bias + M; `attend` is where M is 0 (None: everywhere)."""
    scores = query_key_products(q, k) * scale
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    return scores if attend is None else scores + mask_matrix(attend, scores.dtype)


def mask_matrix(attend: Bool[Tensor, "#B 1 T S"], dtype: torch.dtype) -> Float[Tensor, "#B 1 T S"]:
    """M: 0 where a query may read a key, and where not the lowest finite number, which swallows the score.

    Finite, so that a row that may read nothing (a padding token's) stays a number; its weight elsewhere is
    exactly 0 all the same, because exp underflows. Added and not filled in, because a compiler for CPUs takes longer
    over truth values than over the scores (a third of a softmax is left without them) and needs them backwards too.
    """
    return torch.zeros_like(attend, dtype=dtype).masked_fill(~attend, torch.finfo(dtype).min)


def query_key_products(
    q: Float[Tensor, "B H T Dh"], k: Float[Tensor, "B H S Dh"]
) -> Float[Tensor, "B H T S"]:
    """Q K^T."""
    return (q * k).sum(-1).unsqueeze(2) if takes_sums(q) else q @ k.transpose(-2, -1)


def pattern_value_product(
    pattern: Float[Tensor, "B H T S"], v: Float[Tensor, "B H S Dv"]
) -> Float[Tensor, "B H T Dv"]:
    """The values' sums by the pattern's weights."""
    return (pattern.mT * v).sum(2, keepdim=True) if takes_sums(pattern) else pattern @ v


def takes_sums(x: Float[Tensor, "B H T _"]) -> bool:
    """Whether products are written as sums: of a single new token, compiled for a CPU.

    The compiler reads keys and values for them where they lie in the cache. For its products it copies all of them at
    every token: of 16 texts that takes a quarter of minigpt's step.
    """
    return torch.compiler.is_compiling() and x.device.type == "cpu" and x.shape[2] == 1


def fused_attention(
    q: Float[Tensor, "B H T Dh"],
    k: Float[Tensor, "B K S Dh"],
    v: Float[Tensor, "B K S Dv"],
    scale: float,
    mask: Mask,
    window: int | None,
    bias: Float[Tensor, "*#B H T S"] | None,
    dropout: float,
) -> Float[Tensor, "B H T Dv"]:
    """softmax(scores) V in one kernel, which never holds the [T S] scores (Dao et al. 2022)."""
    attend = None
    everything = mask.reads_everything(window)
    causal = not everything and bias is None and mask.is_triangle(window)
    if not everything and not causal:
        attend = mask.attend(window)
    if bias is not None:
        floor = torch.finfo(q.dtype).min
        bias = bias.to(q.dtype)
        attend = bias if attend is None else bias.masked_fill(~attend, floor)
    return F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=attend,
        is_causal=causal,
        scale=scale,
        dropout_p=dropout,
        enable_gqa=q.shape[1] != k.shape[1],
    )


def formula_is_faster(
    q: Float[Tensor, "B H T Dh"], k: Float[Tensor, "B K S Dh"], p_dropout: float = 0.0
) -> bool:
    """Whether the plain formula beats the fused kernel: on a CPU, short texts in bfloat16, and with dropout all.

    In bfloat16 the fused kernel's backward takes most of a step (benchmarks/RESULTS.md has the figures by length),
    and with dropout torch has none for CPUs: it takes the formula too, with its slower dropout. Taken as sums, the
    formula becomes a part of the loops around it.
    """
    if q.device.type != "cpu":
        return False
    if takes_sums(q):
        return True
    return p_dropout > 0 or (q.dtype == torch.bfloat16 and q.shape[2] > 1 and k.shape[2] <= 512)


def joins_products(x: Float[Tensor, "B T D"]) -> bool:
    """Whether queries, keys and values are made by one product: in compiled training on a CPU, of small batches.

    Calling products so small costs as much as they do. A step of 768 tokens of width 128 takes 0.95 of the time so (4
    layers), but one of 8,192 of width 256 a tenth more, for the parts must be copied out of the whole.
    """
    small = x.device.type == "cpu" and x.numel() <= SMALL_BATCH
    return small and torch.compiler.is_compiling() and torch.is_grad_enabled()


def share_heads(x: Float[Tensor, "B K S Dh"], n_heads: int) -> Float[Tensor, "B H S Dh"]:
    """Key/value heads repeated so that each query head has one."""
    return x.repeat_interleave(n_heads // x.shape[1], dim=1)


def split_heads(x: Float[Tensor, "B T HDh"], n_heads: int) -> Float[Tensor, "B T H Dh"]:
    """The last dimension as `n_heads` heads."""
    return x.unflatten(-1, (n_heads, -1))


# --- modules ----------------------------------------------------------------------------------------------


class Attention(nn.Module, ABC):
    """The formula, for whatever queries, keys and values a kind makes."""

    def __init__(self, scale: float = 1.0, dropout: float = 0.0, window: int | None = None) -> None:
        super().__init__()
        self.scale = scale
        self.dropout = dropout
        self.window = window
        self.hook_q, self.hook_k, self.hook_v = HookPoint(), HookPoint(), HookPoint()
        self.hook_rot_q: HookPoint | None = None
        self.hook_rot_k: HookPoint | None = None
        self.hook_attn_scores, self.hook_pattern, self.hook_z = HookPoint(), HookPoint(), HookPoint()

    @abstractmethod
    def queries(self, x: Float[Tensor, "B T D"]) -> Queries:
        """Queries of what reads."""

    @abstractmethod
    def keys_values(self, x: Float[Tensor, "B S D"]) -> KeysValues:
        """Keys and values of what is read."""

    def of_itself(self, x: Float[Tensor, "B T D"]) -> tuple[Queries, KeysValues]:
        """Queries, keys and values of a text that reads itself."""
        return self.queries(x), self.keys_values(x)

    def output(self, z: Float[Tensor, "B T HDh"]) -> Float[Tensor, "B T D"]:
        """What is written to the residual stream: the joined heads, unless a kind has an output matrix."""
        return z

    def show_rotation(self) -> None:
        """Have hook points behind the rotation; for layers whose positions turn queries and keys."""
        self.hook_rot_q, self.hook_rot_k = HookPoint(), HookPoint()

    @property
    def has_hooks(self) -> bool:
        """Whether somebody looks at what only the formula in the open has: scores or pattern."""
        return self.hook_attn_scores.has_hooks or self.hook_pattern.has_hooks

    def new_cache(self) -> LayerCache:
        """An empty cache of the kind that this layer fills."""
        return KeyValueCache()

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        mask: Mask,
        positions: Positions,
        cache: Any = None,
        memory: Float[Tensor, "B S D"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """What each position gathers from those it may read.

        Args:
            x: What reads.
            mask: Who may read whom, and where everyone stands.
            positions: How order enters the scores.
            cache: What `new_cache` made, holding the earlier positions, to which those of `x` are added; of
                cross-attention, a `MemoryCache`.
            memory: What is read, where that is not `x` itself (cross-attention, in which order has no part).
        """
        if memory is None:
            q, (k, v) = self.of_itself(x)
            q, k, v = self.hook_q(q), self.hook_k(k), self.hook_v(v)
            q = shown(positions.rotate(q, mask.q_pos), self.hook_rot_q)
            k = shown(positions.rotate(k, mask.q_pos), self.hook_rot_k)
            bias = positions.bias(mask.q_pos, mask.k_pos)
        else:
            q = self.hook_q(self.queries(x))
            k, v = self.keys_values(memory) if cache is None else cache.once(lambda: self.keys_values(memory))
            k, v = self.hook_k(k), self.hook_v(v)
            bias, cache = None, None
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # [B H T Dh], [B K S Dh]
        z = self.hook_z(self.mix(q, k, v, mask, bias, cache).transpose(1, 2))  # [B T H Dh]
        return self.output(z.flatten(2))

    def mix(
        self,
        q: Float[Tensor, "B H T Dh"],
        k: Float[Tensor, "B K _ Dh"],
        v: Float[Tensor, "B K _ Dv"],
        mask: Mask,
        bias: Float[Tensor, "*#B H T S"] | None,
        cache: Any,
    ) -> Float[Tensor, "B H T Dv"]:
        """softmax(scores) V: in the open when somebody looks or it is faster so, else fused."""
        if cache is not None:
            k, v = cache.append(mask.k_pos.shape[-1] - k.shape[2], k, v)
        has_hooks = self.has_hooks
        if not has_hooks and bias is None:
            k, v, mask = within_reach(k, v, mask, self.window)
            blocks = window_blocks(mask, self.window)
            if blocks is not None:  # a long text and a short window: each block as a text of its own
                near = blocks.mask(len(q), mask.causal, q.device)
                z = self.mix(blocks.queries(q), blocks.keys(k), blocks.keys(v), near, None, None)
                return blocks.joined(z)
        p_dropout = self.dropout if self.training else 0.0
        if not has_hooks and not formula_is_faster(q, k, p_dropout):
            return fused_attention(q, k, v, self.scale, mask, self.window, bias, p_dropout)
        k, v = share_heads(k, q.shape[1]), share_heads(v, q.shape[1])
        attend = None if mask.reads_everything(self.window) else mask.attend(self.window)
        scores = attention_scores(q, k, self.scale, attend, bias)
        pattern = self.hook_pattern(self.hook_attn_scores(scores).softmax(dim=-1))
        return pattern_value_product(dropout(pattern, p_dropout), v)


class LastModule(nn.Module):
    """See `Last`."""

    def __init__(self) -> None:
        super().__init__()
        self.hook_z = HookPoint()

    def new_cache(self) -> LayerCache:
        return KeyValueCache()

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        mask: Mask,
        positions: Positions,
        cache: Any = None,
    ) -> Float[Tensor, "B T D"]:
        return self.hook_z(x.unsqueeze(2)).squeeze(2)


class MeanModule(Attention):
    """See `Mean`."""

    def queries(self, x: Float[Tensor, "B T D"]) -> Queries:
        return x.new_zeros(*x.shape[:2], 1, 1)

    def keys_values(self, x: Float[Tensor, "B S D"]) -> KeysValues:
        return x.new_zeros(*x.shape[:2], 1, 1), x.unsqueeze(2)


class DotModule(Attention):
    """See `Dot`."""

    def queries(self, x: Float[Tensor, "B T D"]) -> Queries:
        return x.unsqueeze(2)

    def keys_values(self, x: Float[Tensor, "B S D"]) -> KeysValues:
        return x.unsqueeze(2), x.unsqueeze(2)


class SharedModule(Attention):
    """See `Shared`."""

    def __init__(self, d_model: int, scale: float, dropout: float) -> None:
        super().__init__(scale, dropout)
        self.W = LinearLayer(d_model, d_model, bias=False)

    def queries(self, x: Float[Tensor, "B T D"]) -> Queries:
        return self.W(x).unsqueeze(2)

    def keys_values(self, x: Float[Tensor, "B S D"]) -> KeysValues:
        return self.W(x).unsqueeze(2), x.unsqueeze(2)


class ProjectedHeads(Attention):
    """Queries, keys and values of several heads, each by a matrix of its own; the joined heads by another."""

    def __init__(
        self, spec: "_HeadsSpec", d_model: int, dropout: float, scale: float, window: int | None
    ) -> None:
        super().__init__(scale, dropout, window)
        d_head = spec.head_size(d_model)
        self.n_heads, self.n_kv_heads = spec.n_heads, spec.n_key_value_heads
        self.W_Q = LinearLayer(d_model, self.n_heads * d_head, bias=spec.qkv_bias)
        self.W_K = LinearLayer(d_model, self.n_kv_heads * d_head, bias=spec.qkv_bias)
        self.W_V = (
            LinearLayer(d_model, self.n_kv_heads * d_head, bias=spec.qkv_bias)
            if spec.value
            else nn.Identity()
        )
        self.W_O = (
            LinearLayer(self.n_heads * d_head, d_model, bias=spec.output_bias)
            if spec.output
            else nn.Identity()
        )
        self.q_norm, self.k_norm = spec.qk_norm.build(d_head), spec.qk_norm.build(d_head)

    def queries(self, x: Float[Tensor, "B T D"]) -> Queries:
        return self.q_norm(split_heads(self.W_Q(x), self.n_heads))

    def keys_values(self, x: Float[Tensor, "B S D"]) -> KeysValues:
        k = self.k_norm(split_heads(self.W_K(x), self.n_kv_heads))
        return k, split_heads(self.W_V(x), self.n_kv_heads)

    def of_itself(self, x: Float[Tensor, "B T D"]) -> tuple[Queries, KeysValues]:
        if not joins_products(x) or not isinstance(self.W_V, LinearLayer):
            return super().of_itself(x)
        q, k, v = joint_linear(x, [self.W_Q, self.W_K, self.W_V])
        q, k = self.q_norm(split_heads(q, self.n_heads)), self.k_norm(split_heads(k, self.n_kv_heads))
        return q, (k, split_heads(v, self.n_kv_heads))

    def output(self, z: Float[Tensor, "B T HDh"]) -> Float[Tensor, "B T D"]:
        return self.W_O(z)


class MultiHeadModule(ProjectedHeads):
    """See `MultiHead`."""


class LinearModule(ProjectedHeads):
    """See `Linear`."""

    def new_cache(self) -> LayerCache:
        return LinearCache()

    def mix(
        self,
        q: Float[Tensor, "B H T Dh"],
        k: Float[Tensor, "B K S Dh"],
        v: Float[Tensor, "B K S Dv"],
        mask: Mask,
        bias: Tensor | None,
        cache: Any,
    ) -> Float[Tensor, "B H T Dv"]:
        q, k, v = positive(q), share_heads(positive(k), q.shape[1]), share_heads(v, q.shape[1])
        if mask.padding is not None:
            k = k * mask.padding[:, None, -k.shape[2] :, None]  # a padding token adds nothing to any sum
        if self.has_hooks:
            if cache is not None:
                all_of_them = cache.with_earlier(mask.k_pos.shape[-1] - k.shape[2], k, v)
                causal_linear_attention(q, k, v, cache)  # for the sums, with which other calls go on
                k, v = all_of_them
            scores = self.hook_attn_scores(q @ k.transpose(-2, -1) * mask.attend(None))
            return self.hook_pattern(linear_pattern(scores)) @ v
        if not mask.causal:
            return linear_attention(q, k, v)
        return causal_linear_attention(q, k, v, cache)


# --- the slot ---------------------------------------------------------------------------------------------


class _AttentionSpec(Spec, ABC):
    """What every kind of attention says of itself."""

    takes_rotation: ClassVar[bool] = True  # whether positions may turn its queries and keys
    takes_bias: ClassVar[bool] = True  # whether positions may add to its scores
    reads_another_text: ClassVar[bool] = True  # whether it can be cross-attention

    def heads(self, d_model: int) -> tuple[int, int]:
        """The number of heads and their size; raises ConfigError where they do not fit d_model."""
        return 1, d_model

    def build_cross(self, d_model: int, dropout: float) -> nn.Module:
        """The module that reads another text by the same formula (Vaswani et al. 2017, 3.2.3)."""
        return self.build(d_model, dropout)

    @abstractmethod
    def build(self, d_model: int, dropout: float) -> nn.Module:
        """The module."""


class Last(_AttentionSpec):
    """Nothing is mixed: e_final,t = e_t, a bigram model (lecture 000, section 4.1)."""

    kind: Literal["last"] = "last"
    takes_rotation: ClassVar[bool] = False
    takes_bias: ClassVar[bool] = False
    reads_another_text: ClassVar[bool] = False

    def build(self, d_model: int, dropout: float) -> LastModule:
        return LastModule()


class Mean(_AttentionSpec):
    """All that may be read, averaged: equal scores (lecture 000, section 4.2)."""

    kind: Literal["mean"] = "mean"
    takes_rotation: ClassVar[bool] = False

    def build(self, d_model: int, dropout: float) -> MeanModule:
        return MeanModule(dropout=dropout)


class Dot(_AttentionSpec):
    """softmax(E e_t): the embeddings are queries, keys and values (lecture 000, section 4.3).

    A token's product with itself is about sqrt(d) after scaling and others about 1, so it reads mostly itself.
    """

    kind: Literal["dot"] = "dot"
    scale: bool = True

    def build(self, d_model: int, dropout: float) -> DotModule:
        return DotModule(d_model**-0.5 if self.scale else 1.0, dropout)


class Shared(_AttentionSpec):
    """softmax((W E)(W e_t)): one matrix on both sides, values as they are (lecture 000, section 4.4)."""

    kind: Literal["shared"] = "shared"
    scale: bool = True

    def build(self, d_model: int, dropout: float) -> SharedModule:
        return SharedModule(d_model, d_model**-0.5 if self.scale else 1.0, dropout)


class _HeadsSpec(_AttentionSpec):
    """Heads with matrices of their own.

    Attributes:
        n_heads: H, the query heads.
        n_kv_heads: K, the key/value heads: H of them (MHA), fewer (GQA, Ainslie et al. 2023) or one (MQA).
        d_head: The size of a head; D / H where it is not given.
        value: Whether there is a value matrix; without one, what is mixed is the input itself.
        output: Whether there is an output matrix (lecture 000, section 6.1).
        qkv_bias: Whether the query, key and value matrices have biases.
        output_bias: Whether the output matrix has one.
        qk_norm: A norm on each head's queries and keys (Henry et al. 2020), before positions turn them.
    """

    n_heads: PositiveInt = 1
    n_kv_heads: PositiveInt | None = None
    d_head: PositiveInt | None = None
    value: bool = True
    output: bool = True
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: Norm = NoNorm()

    @property
    def n_key_value_heads(self) -> int:
        return self.n_kv_heads or self.n_heads

    def head_size(self, d_model: int) -> int:
        return self.d_head or d_model // self.n_heads

    def heads(self, d_model: int) -> tuple[int, int]:
        if self.d_head is None and d_model % self.n_heads:
            raise ConfigError(
                f"model.attention.n_heads: {self.n_heads} heads do not divide model.d_model={d_model}; "
                f"choose a divisor, or set model.attention.d_head"
            )
        if self.n_heads % self.n_key_value_heads:
            raise ConfigError(
                f"model.attention.n_kv_heads: {self.n_kv_heads} key/value heads do not divide "
                f"model.attention.n_heads={self.n_heads}; each must serve the same number of query heads"
            )
        joined = self.n_heads * self.head_size(d_model)
        if not self.output and joined != d_model:
            raise ConfigError(
                f"model.attention.output: without an output matrix the heads must join to model.d_model={d_model}, "
                f"and {self.n_heads} of {self.head_size(d_model)} make {joined}"
            )
        if not self.value and self.n_key_value_heads * self.head_size(d_model) != d_model:
            raise ConfigError(
                f"model.attention.value: without a value matrix the key/value heads must split "
                f"model.d_model={d_model} exactly; they hold {self.n_key_value_heads * self.head_size(d_model)}"
            )
        return self.n_heads, self.head_size(d_model)


class MultiHead(_HeadsSpec):
    """Concat(head_1 ... head_h) W_O, each head with its own W_Q, W_K, W_V (Vaswani et al. 2017, 3.2.2).

    Attributes:
        window: How many keys back a query reads, its own included (a sliding window, Beltagy et al. 2020).
        scale: Whether scores are divided by sqrt(d_head).
    """

    kind: Literal["multihead"] = "multihead"
    window: PositiveInt | None = None
    scale: bool = True

    def build(self, d_model: int, dropout: float) -> MultiHeadModule:
        scale = self.head_size(d_model) ** -0.5 if self.scale else 1.0
        return MultiHeadModule(self, d_model, dropout, scale, self.window)

    def build_cross(self, d_model: int, dropout: float) -> MultiHeadModule:
        return self.replace(window=None).build(d_model, dropout)  # the texts' positions have no distance


class Linear(_HeadsSpec):
    """phi(q)^T phi(k) in place of exp(q^T k), so that sums over the past take the place of the past itself.

    Time and memory grow with T and not with T² (Katharopoulos et al. 2020; lecture 004, section 4.7). RoPE turns
    q and k before phi, so that a score depends on where both stand and not on their distance alone.
    """

    kind: Literal["linear"] = "linear"
    takes_bias: ClassVar[bool] = False

    def build(self, d_model: int, dropout: float) -> LinearModule:
        return LinearModule(self, d_model, dropout, scale=1.0, window=None)


AttentionSpec = Annotated[Last | Mean | Dot | Shared | MultiHead | Linear, Field(discriminator="kind")]
