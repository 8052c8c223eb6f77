"""Linear attention: phi(q)^T phi(k) in place of exp(q^T k) (Katharopoulos et al. 2020; lecture 004, section 4.7).

The sums over all keys take the place of the keys themselves, so that time and memory grow with T and not with T².

Shapes: B batch, T positions, H heads, Dh head size, N chunks of C positions.
"""

from itertools import accumulate

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from clearformer.model.cache import LinearCache

TINY = 1e-6  # keeps the quotient of a position that may read nothing (padding) a number
CHUNK = 64  # positions whose pairs are formed at once: quadratic within, linear across


def positive(x: Tensor) -> Tensor:
    """phi(x) = elu(x) + 1 (Katharopoulos et al. 2020, equation 7)."""
    return F.elu(x) + 1


def linear_pattern(scores: Float[Tensor, "B H T S"]) -> Float[Tensor, "B H T S"]:
    """Each position's weights of those that it may read, where all pairs are formed: scores over their sum."""
    return scores / scores.sum(-1, keepdim=True).clamp_min(TINY)


def linear_attention(
    q: Float[Tensor, "B H T Dh"], k: Float[Tensor, "B H S Dh"], v: Float[Tensor, "B H S Dv"]
) -> Float[Tensor, "B H T Dv"]:
    """phi(Q) (phi(K)^T V) / phi(Q) sum(phi(K)): everyone reads everyone, without the [T S] scores."""
    total = q @ k.sum(2).unsqueeze(-1)  # [B H T 1]
    return q @ (k.transpose(-2, -1) @ v) / total.clamp_min(TINY)


def causal_linear_attention(
    q: Float[Tensor, "B H T Dh"],
    k: Float[Tensor, "B H T Dh"],
    v: Float[Tensor, "B H T Dv"],
    memory: LinearCache | None = None,
) -> Float[Tensor, "B H T Dv"]:
    """Linear attention in causal order, in chunks; `memory` holds the sums over all earlier positions.

    With a chunk of one position this is the recurrent form, with a chunk of all T the parallel one; the paper
    shows that they are equal. The products of all chunks are formed at once, and only their sums one after another.
    """
    n = q.shape[2]
    q_c, k_c, v_c = in_chunks(q), in_chunks(k), in_chunks(v)  # [B H N C Dh]
    scores = (q_c @ k_c.transpose(-2, -1)).tril()  # [B H N C C]
    z, total = scores @ v_c, scores.sum(-1, keepdim=True)
    if memory is not None or n > CHUNK:  # there is more than one chunk, here or in other calls
        memory = LinearCache() if memory is None else memory
        outer, keys = memory.sums(k, v)
        outer, memory.outer = running_sums(outer, k_c.transpose(-2, -1) @ v_c)  # [B H N Dh Dv]
        keys, memory.keys = running_sums(keys, k_c.sum(3))  # [B H N Dh]
        z, total = z + q_c @ outer.to(q.dtype), total + q_c @ keys.to(q.dtype).unsqueeze(-1)
    return (z / total.clamp_min(TINY)).flatten(2, 3)[:, :, :n]


def in_chunks(x: Float[Tensor, "B H T Dh"]) -> Float[Tensor, "B H N C Dh"]:
    """As few chunks as CHUNK allows, of one length: behind the last position is 0, which adds nothing to any sum."""
    n_chunks, chunk = linear_chunks(x.shape[2])
    n_missing = n_chunks * chunk - x.shape[2]
    filled = F.pad(x, (0, 0, 0, n_missing)) if n_missing else x
    return filled.unflatten(2, (n_chunks, chunk)).contiguous()  # laid out once, for several products


def linear_chunks(n_positions: int) -> tuple[int, int]:
    """Number and length of the chunks of a text."""
    n_chunks = -(-n_positions // CHUNK)
    return n_chunks, -(-n_positions // n_chunks)


def running_sums(
    first: Float[Tensor, "B H *D"], of_chunks: Float[Tensor, "B H N *D"]
) -> tuple[Float[Tensor, "B H N *D"], Float[Tensor, "B H *D"]]:
    """A sum before each chunk, and after the last; in the type of `first`."""
    *before, after = accumulate(of_chunks.unbind(2), initial=first)
    if len(before) == 1:  # as at every new token of a cached text, for which nothing is copied
        return first.unsqueeze(2), after
    return torch.stack(before, dim=2), after
