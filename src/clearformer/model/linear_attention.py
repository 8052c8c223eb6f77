"""Linear attention: phi(q)^T phi(k) in place of exp(q^T k) (Katharopoulos et al. 2020; lecture 004, section 4.7).

Sums over the keys replace the keys themselves, so that time and memory grow with T and not with T².

Shapes: B batch, T query positions, S key positions, H heads, Dh head size.
"""

from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from clearformer.model import fast
from clearformer.model.attention import HeadsSpec, ProjectedHeads, share_heads
from clearformer.model.cache import LayerCache, LinearCache
from clearformer.model.masks import Mask
from clearformer.model.shapes import K, Q, V, Z


def positive(x: Tensor) -> Tensor:
    """phi(x) = elu(x) + 1 (Katharopoulos et al. 2020, equation 7): x + 1 above 0, else exp(x)."""
    # elu(x) itself is exp(x) - 1, and adding 1 to that leaves nothing of a small exp(x).
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


def never_0(total: Float[Tensor, "B H T 1"]) -> Float[Tensor, "B H T 1"]:
    """Return sums with 1 in place of 0, for a position that may read nothing: 0 / 1 and not 0 / 0."""
    return total + (total == 0)


def linear_pattern(scores: Float[Tensor, "B H T S"]) -> Float[Tensor, "B H T S"]:
    """Return each query's weights: its scores divided by their sum."""
    return scores / never_0(scores.sum(-1, keepdim=True))


def linear_attention(
    q: Float[Tensor, "B H T Dh"], k: Float[Tensor, "B H S Dh"], v: Float[Tensor, "B H S Dv"]
) -> Float[Tensor, "B H T Dv"]:
    """phi(Q) (phi(K)^T V) / phi(Q) sum(phi(K)): every query reads every key, without the [T S] scores."""
    total = q @ k.sum(2).unsqueeze(-1)  # [B H T 1]
    return q @ (k.transpose(-2, -1) @ v) / never_0(total)


def causal_linear_attention(
    q: Float[Tensor, "B H T Dh"],
    k: Float[Tensor, "B H T Dh"],
    v: Float[Tensor, "B H T Dv"],
    cache: LinearCache | None = None,
) -> Float[Tensor, "B H T Dv"]:
    """The same in causal order: a query's sums run over the keys up to its own; `cache` holds earlier calls' sums."""
    weighted, total = fast.causal_sums(q, k, v, cache)
    return weighted / never_0(total)


class Linear(HeadsSpec):
    """phi(q)^T phi(k) in place of exp(q^T k) (Katharopoulos et al. 2020; lecture 004, section 4.7).

    RoPE turns q and k before phi, so that a score depends on both positions and not on their distance alone.
    """

    kind: Literal["linear"] = "linear"
    takes_bias: ClassVar[bool] = False

    def build(self, d_model: int, dropout: float) -> "LinearModule":
        return LinearModule(self, d_model, dropout, scale=1.0, window=None)


class LinearModule(ProjectedHeads):
    def new_cache(self) -> LayerCache:
        return LinearCache()

    def mix(self, q: Q, k: K, v: V, mask: Mask, bias: Float[Tensor, "..."] | None, cache: Any) -> Z:
        q, k, v = positive(q), share_heads(positive(k), q.shape[1]), share_heads(v, q.shape[1])
        if mask.padding is not None:
            k = k * mask.padding[:, None, -k.shape[2] :, None]  # a padding token adds nothing to any sum
        if self.has_hooks:
            if cache is not None:
                all_of_them = cache.with_earlier(mask.k_pos.shape[-1] - k.shape[2], k, v)
                causal_linear_attention(q, k, v, cache)  # updates the sums that later calls read
                k, v = all_of_them
            attend = mask.attend(None)
            # Again behind the hook: whatever it writes there, no query reads ahead.
            scores = self.hook_attn_scores(q @ k.transpose(-2, -1) * attend) * attend
            return self.hook_pattern(linear_pattern(scores)) @ v
        return causal_linear_attention(q, k, v, cache) if mask.causal else linear_attention(q, k, v)
