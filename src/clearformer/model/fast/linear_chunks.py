"""The causal sums of linear attention in chunks: quadratic within one, linear across them (Katharopoulos et al. 2020).

Shapes: B batch, T positions, H heads, Dh head size, Dv size of a head's values, N chunks of C positions.
"""

from itertools import accumulate

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from clearformer.model.cache import LinearCache

CHUNK = 64  # the most positions in a chunk


def causal_sums(
    q: Float[Tensor, "B H T Dh"],
    k: Float[Tensor, "B H T Dh"],
    v: Float[Tensor, "B H T Dv"],
    cache: LinearCache | None = None,
) -> tuple[Float[Tensor, "B H T Dv"], Float[Tensor, "B H T 1"]]:
    """Return the sums over s <= t of (q_t . k_s) v_s and of q_t . k_s; `cache` holds the sums of earlier calls.

    Chunks of one position give the paper's recurrent form, and one chunk of all T its parallel form; the results are
    equal. The products of all chunks are computed at once, and only their sums one after another.
    """
    n = q.shape[2]
    q_c, k_c, v_c = in_chunks(q), in_chunks(k), in_chunks(v)  # [B H N C Dh]
    scores = (q_c @ k_c.transpose(-2, -1)).tril()  # [B H N C C]
    z, total = scores @ v_c, scores.sum(-1, keepdim=True)
    if cache is not None or n > CHUNK:  # more than one chunk, here or in other calls
        cache = LinearCache() if cache is None else cache
        outer, keys = cache.sums(k, v)
        outer, cache.outer = running_sums(outer, k_c.transpose(-2, -1) @ v_c)  # [B H N Dh Dv]
        keys, cache.keys = running_sums(keys, k_c.sum(3))  # [B H N Dh]
        z, total = z + q_c @ outer.to(q.dtype), total + q_c @ keys.to(q.dtype).unsqueeze(-1)
    return z.flatten(2, 3)[:, :, :n], total.flatten(2, 3)[:, :, :n]


def in_chunks(x: Float[Tensor, "B H T Dh"]) -> Float[Tensor, "B H N C Dh"]:
    """Split x into as few chunks as CHUNK allows, all of one length; padded at the end with 0, which adds nothing."""
    n_chunks, chunk = linear_chunks(x.shape[2])
    n_missing = n_chunks * chunk - x.shape[2]
    filled = F.pad(x, (0, 0, 0, n_missing)) if n_missing else x
    return filled.unflatten(2, (n_chunks, chunk)).contiguous()  # copied once, for several products


def linear_chunks(n_positions: int) -> tuple[int, int]:
    """Return the number and length of a sequence's chunks."""
    n_chunks = max(1, -(-n_positions // CHUNK))
    return n_chunks, -(-n_positions // n_chunks)


def running_sums(
    first: Float[Tensor, "B H *D"], of_chunks: Float[Tensor, "B H N *D"]
) -> tuple[Float[Tensor, "B H N *D"], Float[Tensor, "B H *D"]]:
    """Return the running sum before each chunk and after the last, in the dtype of `first`."""
    *before, after = accumulate(of_chunks.unbind(2), initial=first)
    if len(before) == 1:  # no copy for the single new token of a cached sequence
        return first.unsqueeze(2), after
    return torch.stack(before, dim=2), after
