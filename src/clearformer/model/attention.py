"""Attention, by which positions read each other: last, mean, dot, shared, multihead (MHA, GQA, MQA, window).

    Attn(E) = softmax((Q K^T + M) / sqrt(d)) V     (Vaswani et al. 2017, 3.2.1; lectures 000, 4.5; 001; 004, 4.3)

Every kind but `last` is this formula with its own Q, K and V: `mean` has equal scores, `dot` takes the embeddings
themselves, `shared` one matrix for queries and keys, `multihead` separate matrices and h heads. Cross-attention uses
the same modules. Unless scores or pattern are hooked, `fast.attention` computes the formula in the quickest form.

Shapes: B batch, T query positions, S key positions, D d_model, H heads, K key/value heads, Dh head size.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

from jaxtyping import Float
from pydantic import PositiveInt
from torch import Tensor, nn

from clearformer.config import Spec
from clearformer.errors import ConfigError
from clearformer.hooks import HookPoint
from clearformer.model import fast
from clearformer.model.cache import KeyValueCache, LayerCache
from clearformer.model.fast import dropout
from clearformer.model.masks import Mask
from clearformer.model.norms import NoNorm, Norm
from clearformer.model.positions import Positions
from clearformer.model.shapes import Bias, K, Keys, Q, Queries, SourceVectors, V, Values, Vectors, Z

# --- the formula --------------------------------------------------------------------------------------------


class Attention(nn.Module, ABC):
    """The formula; each kind computes its own queries, keys and values."""

    def __init__(self, scale: float = 1.0, dropout: float = 0.0, window: int | None = None) -> None:
        super().__init__()
        self.scale, self.dropout, self.window = scale, dropout, window
        self.hook_q, self.hook_k, self.hook_v = HookPoint(), HookPoint(), HookPoint()
        self.hook_attn_scores, self.hook_pattern, self.hook_z = HookPoint(), HookPoint(), HookPoint()
        self.hook_rot_q: HookPoint | None = None
        self.hook_rot_k: HookPoint | None = None

    def formula(self, q: Q, k: K, v: V, mask: Mask, bias: Bias | None) -> Z:
        """softmax(Q K^T scale + bias + M) V."""
        k, v = share_heads(k, q.shape[1]), share_heads(v, q.shape[1])
        scores = q @ k.transpose(-2, -1) * self.scale  # [B H T S]
        if bias is not None:
            scores = scores + bias.to(scores.dtype)
        if not mask.reads_everything(self.window):
            scores = scores + mask.matrix(self.window, scores.dtype)
        pattern = self.hook_pattern(self.hook_attn_scores(scores).softmax(dim=-1))
        return dropout(pattern, self.p_dropout) @ v

    def forward(
        self,
        x: Vectors,
        mask: Mask,
        positions: Positions,
        cache: Any = None,
        memory: SourceVectors | None = None,
    ) -> Vectors:
        """Return each position's weighted sum of the values that it may read.

        Args:
            x: The vectors from which queries are made, and keys and values too unless `memory` is given.
            mask: The positions, and which keys each query may read.
            positions: The kind of positions, which changes queries, keys or scores.
            cache: The result of `new_cache`: holds earlier keys and values, and gains those of `x`. In
                cross-attention, a `MemoryCache`.
            memory: The vectors that cross-attention reads; positions have no part in it.
        """
        bias = None
        if memory is None:
            q, k, v = self.queries_keys_values(x)
            q, k, v = self.hook_q(q), self.hook_k(k), self.hook_v(v)
            q, k = positions.rotate(q, mask.q_pos), positions.rotate(k, mask.q_pos)
            if self.hook_rot_q is not None and self.hook_rot_k is not None:
                q, k = self.hook_rot_q(q), self.hook_rot_k(k)
            bias = positions.bias(mask.q_pos, mask.k_pos)
        else:
            q = self.hook_q(self.queries(x))
            k, v = self.keys_values(memory) if cache is None else cache.once(lambda: self.keys_values(memory))
            k, v, cache = self.hook_k(k), self.hook_v(v), None
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # [B H T Dh], [B K S Dh]
        z = self.hook_z(self.mix(q, k, v, mask, bias, cache).transpose(1, 2))  # [B T H Dh]
        return self.output(z.flatten(2))

    def mix(self, q: Q, k: K, v: V, mask: Mask, bias: Float[Tensor, "..."] | None, cache: Any) -> Z:
        """Apply `formula` if scores or pattern are hooked or it is a user's, and else the quickest equivalent."""
        if cache is not None:
            k, v = cache.append(mask.k_pos.shape[-1] - k.shape[2], k, v)
        if self.has_hooks or type(self).formula is not Attention.formula:
            return self.formula(q, k, v, mask, bias)
        return fast.attention(q, k, v, mask, bias, self.scale, self.window, self.p_dropout, self.formula)

    @property
    def p_dropout(self) -> float:
        """The probability of dropout on the pattern; 0 outside training."""
        return self.dropout if self.training else 0.0

    @property
    def has_hooks(self) -> bool:
        """Whether scores or pattern are hooked, which only `formula` computes."""
        return self.hook_attn_scores.has_hooks or self.hook_pattern.has_hooks

    @abstractmethod
    def queries(self, x: Vectors) -> Queries:
        """Return the queries of the vectors that read."""

    @abstractmethod
    def keys_values(self, x: SourceVectors) -> tuple[Keys, Values]:
        """Return the keys and values of the vectors that are read."""

    def queries_keys_values(self, x: Vectors) -> tuple[Queries, Keys, Values]:
        """Return queries, keys and values for self-attention."""
        return self.queries(x), *self.keys_values(x)

    def output(self, z: Float[Tensor, "B T HDh"]) -> Vectors:
        """Return the sub-layer's output, given the joined heads."""
        return z

    def add_rotation_hooks(self) -> None:
        """Add hook points after the rotation; for layers whose positions turn queries and keys."""
        self.hook_rot_q, self.hook_rot_k = HookPoint(), HookPoint()

    def new_cache(self) -> LayerCache:
        """Return an empty cache of the kind that this layer fills."""
        return KeyValueCache()


def share_heads(x: Float[Tensor, "B K S Dh"], n_heads: int) -> Float[Tensor, "B H S Dh"]:
    """Repeat the key/value heads so that each query head has one."""
    return x if x.shape[1] == n_heads else x.repeat_interleave(n_heads // x.shape[1], dim=1)


def split_heads(x: Float[Tensor, "B T HDh"], n_heads: int) -> Float[Tensor, "B T H Dh"]:
    """Split the last dimension into `n_heads` heads."""
    return x.unflatten(-1, (n_heads, -1))


# --- the kinds ----------------------------------------------------------------------------------------------


class AttentionBase(Spec, ABC):
    """Base of the kinds of attention."""

    takes_rotation: ClassVar[bool] = True  # whether positions may turn its queries and keys
    takes_bias: ClassVar[bool] = True  # whether positions may add to its scores
    reads_another_text: ClassVar[bool] = True  # whether it works as cross-attention

    @abstractmethod
    def build(self, d_model: int, dropout: float) -> nn.Module:
        """Return the module."""

    def build_cross(self, d_model: int, dropout: float) -> nn.Module:
        """Return the module for cross-attention, the same formula (Vaswani et al. 2017, 3.2.3)."""
        return self.build(d_model, dropout)

    def heads(self, d_model: int) -> tuple[int, int]:
        """Return the number and size of heads; raises ConfigError where they do not fit d_model."""
        return 1, d_model


class Last(AttentionBase):
    """Nothing is mixed: e_final,t = e_t, a bigram model (lecture 000, section 4.1)."""

    kind: Literal["last"] = "last"
    takes_rotation: ClassVar[bool] = False
    takes_bias: ClassVar[bool] = False
    reads_another_text: ClassVar[bool] = False

    def build(self, d_model: int, dropout: float) -> "LastModule":
        return LastModule()


class LastModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hook_z = HookPoint()

    def new_cache(self) -> LayerCache:
        return KeyValueCache()

    def forward(self, x: Vectors, mask: Mask, positions: Positions, cache: Any = None) -> Vectors:
        return self.hook_z(x.unsqueeze(2)).squeeze(2)


class Mean(AttentionBase):
    """The mean of all that a position may read: equal scores (lecture 000, section 4.2)."""

    kind: Literal["mean"] = "mean"
    takes_rotation: ClassVar[bool] = False

    def build(self, d_model: int, dropout: float) -> "MeanModule":
        return MeanModule(dropout=dropout)


class MeanModule(Attention):
    def queries(self, x: Vectors) -> Queries:
        return x.new_zeros(*x.shape[:2], 1, 1)

    def keys_values(self, x: SourceVectors) -> tuple[Keys, Values]:
        return x.new_zeros(*x.shape[:2], 1, 1), x.unsqueeze(2)


class Dot(AttentionBase):
    """softmax(E e_t): the embeddings are queries, keys and values (lecture 000, section 4.3).

    After scaling, a token's product with itself is about sqrt(d) and others' about 1, so it reads mostly itself and
    earlier occurrences of the same token.
    """

    kind: Literal["dot"] = "dot"
    scale: bool = True

    def build(self, d_model: int, dropout: float) -> "DotModule":
        return DotModule(d_model**-0.5 if self.scale else 1.0, dropout)


class DotModule(Attention):
    def queries(self, x: Vectors) -> Queries:
        return x.unsqueeze(2)

    def keys_values(self, x: SourceVectors) -> tuple[Keys, Values]:
        return x.unsqueeze(2), x.unsqueeze(2)


class Shared(AttentionBase):
    """softmax((W E)(W e_t)): one matrix for queries and keys; embeddings as values (lecture 000, section 4.4)."""

    kind: Literal["shared"] = "shared"
    scale: bool = True

    def build(self, d_model: int, dropout: float) -> "SharedModule":
        return SharedModule(d_model, d_model**-0.5 if self.scale else 1.0, dropout)


class SharedModule(Attention):
    def __init__(self, d_model: int, scale: float, dropout: float) -> None:
        super().__init__(scale, dropout)
        self.W = fast.Linear(d_model, d_model, bias=False)

    def queries(self, x: Vectors) -> Queries:
        return self.W(x).unsqueeze(2)

    def keys_values(self, x: SourceVectors) -> tuple[Keys, Values]:
        return self.W(x).unsqueeze(2), x.unsqueeze(2)


class HeadsSpec(AttentionBase):
    """Base of the kinds whose heads have matrices of their own.

    Attributes:
        n_heads: H, the number of query heads.
        n_kv_heads: K, the number of key/value heads: H (MHA), fewer (GQA, Ainslie et al. 2023) or one (MQA).
        d_head: The size of a head; by default D / H.
        value: Whether there is a value matrix; without one, the values are the input itself.
        output: Whether there is an output matrix (lecture 000, section 6.1).
        qkv_bias: Whether the query, key and value matrices have biases.
        output_bias: Whether the output matrix has a bias.
        qk_norm: The norm of each head's queries and keys (Henry et al. 2020), before positions turn them.
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
        n_heads, n_kv_heads, d_head = self.n_heads, self.n_key_value_heads, self.head_size(d_model)
        joined, joined_kv = n_heads * d_head, n_kv_heads * d_head
        if self.d_head is None and d_model % n_heads:
            raise ConfigError(
                f"model.attention.n_heads: {n_heads} heads do not divide model.d_model={d_model}; "
                f"choose a divisor, or set model.attention.d_head"
            )
        if n_heads % n_kv_heads:
            raise ConfigError(
                f"model.attention.n_kv_heads: {n_kv_heads} key/value heads do not divide "
                f"model.attention.n_heads={n_heads}; each must serve the same number of query heads"
            )
        if not self.output and joined != d_model:
            raise ConfigError(
                f"model.attention.output: without an output matrix the heads together must have the width "
                f"model.d_model={d_model}; {n_heads} heads of {d_head} have {joined}"
            )
        if self.output_bias and not self.output:
            raise ConfigError(
                "model.attention.output_bias: without an output matrix there is no bias; set "
                "model.attention.output_bias=false or model.attention.output=true"
            )
        if not self.value and joined_kv != d_model:
            raise ConfigError(
                f"model.attention.value: without a value matrix the key/value heads together must have the width "
                f"model.d_model={d_model}; they have {joined_kv}"
            )
        return n_heads, d_head


class ProjectedHeads(Attention):
    """Attention in several heads: matrices for queries, keys and values, and one for the joined heads."""

    def __init__(
        self, spec: HeadsSpec, d_model: int, dropout: float, scale: float, window: int | None
    ) -> None:
        super().__init__(scale, dropout, window)
        d_head, self.n_heads, self.n_kv_heads = spec.head_size(d_model), spec.n_heads, spec.n_key_value_heads
        joined, joined_kv = self.n_heads * d_head, self.n_kv_heads * d_head
        self.W_Q = fast.Linear(d_model, joined, bias=spec.qkv_bias)
        self.W_K = fast.Linear(d_model, joined_kv, bias=spec.qkv_bias)
        self.W_V = fast.Linear(d_model, joined_kv, bias=spec.qkv_bias) if spec.value else nn.Identity()
        self.W_O = fast.Linear(joined, d_model, bias=spec.output_bias) if spec.output else nn.Identity()
        self.q_norm, self.k_norm = spec.qk_norm.build(d_head), spec.qk_norm.build(d_head)

    @property
    def projects_as_here(self) -> bool:
        """Whether queries, keys and values are made as in this class, and not by methods of a user's own."""
        of_user = type(self)
        return of_user.queries is ProjectedHeads.queries and of_user.keys_values is ProjectedHeads.keys_values

    def queries(self, x: Vectors) -> Queries:
        return self.q_norm(split_heads(self.W_Q(x), self.n_heads))

    def keys_values(self, x: SourceVectors) -> tuple[Keys, Values]:
        k, v = split_heads(self.W_K(x), self.n_kv_heads), split_heads(self.W_V(x), self.n_kv_heads)
        return self.k_norm(k), v

    def queries_keys_values(self, x: Vectors) -> tuple[Queries, Keys, Values]:
        if not self.projects_as_here:
            return super().queries_keys_values(x)
        q, k, v = fast.linear_each(x, self.W_Q, self.W_K, self.W_V)
        q, k = self.q_norm(split_heads(q, self.n_heads)), self.k_norm(split_heads(k, self.n_kv_heads))
        return q, k, split_heads(v, self.n_kv_heads)

    def output(self, z: Float[Tensor, "B T HDh"]) -> Vectors:
        return self.W_O(z)


class MultiHead(HeadsSpec):
    """Concat(head_1 ... head_h) W_O, each head with its own W_Q, W_K, W_V (Vaswani et al. 2017, 3.2.2).

    Lectures 000, 6.3; 001; 002, 5.1; 004, 4.4. With biases it equals torch.nn.MultiheadAttention.

    Attributes:
        window: The number of keys back that a query reads, its own included (sliding window, a sparse attention;
            Beltagy et al. 2020).
        scale: Whether scores are divided by sqrt(d_head).
    """

    kind: Literal["multihead"] = "multihead"
    window: PositiveInt | None = None
    scale: bool = True

    def build(self, d_model: int, dropout: float) -> "MultiHeadModule":
        scale = self.head_size(d_model) ** -0.5 if self.scale else 1.0
        return MultiHeadModule(self, d_model, dropout, scale, self.window)

    def build_cross(self, d_model: int, dropout: float) -> "MultiHeadModule":
        return self.replace(window=None).build(d_model, dropout)  # there is no distance between two sequences


class MultiHeadModule(ProjectedHeads):
    """The formula, for every head."""
