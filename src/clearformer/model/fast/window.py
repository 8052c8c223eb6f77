"""Sliding-window attention over long sequences in blocks of queries, each with only the keys that it may read.

    block n of C queries reads   blocks n - 2, n - 1 and n of C keys   (in an encoder n + 1 and n + 2 as well)

A window of at most 33 needs one block on either side.

Each block becomes a batch row of its own, so any form of attention can compute it, and the cost grows with T and not
with T².

Shapes: B batch, T positions, N blocks of C queries, S keys that each of these reads, H heads, Dh head size.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from clearformer.model.masks import Mask

LEAST_BLOCK = 32  # queries; products of smaller blocks are no faster


@dataclass(frozen=True)
class WindowBlocks:
    """How sequences are cut into blocks.

    Attributes:
        n_positions: T, the length of each sequence.
        size: C, the queries in a block.
        n_before: The blocks of keys before its own that a block of queries reads.
        n_after: The blocks of keys after its own that it reads.
    """

    n_positions: int
    size: int
    n_before: int
    n_after: int

    @classmethod
    def of(cls, n_positions: int, window: int | None, causal: bool) -> "WindowBlocks | None":
        """Return the blocks for sequences of T positions under this window; None where they would gain nothing.

        C is half a window, which makes S one and a half windows; with C a whole window it would be two. The blocks'
        keys are copies, which pay off where the blocks save half of the T x T scores or more.
        """
        if window is None:
            return None
        size = max(-(-window // 2), LEAST_BLOCK)
        n_before = -(-(window - 1) // size)
        blocks = cls(n_positions, size, n_before, n_after=0 if causal else n_before)
        return blocks if 2 * blocks.n_keys <= n_positions else None

    @property
    def n_blocks(self) -> int:
        """N; where C does not divide T, the last block is padded."""
        return -(-self.n_positions // self.size)

    @property
    def n_keys(self) -> int:
        """S."""
        return (self.n_before + 1 + self.n_after) * self.size

    @property
    def n_pairs(self) -> int:
        """N C S, the scores computed for a sequence, in place of T x T."""
        return self.n_blocks * self.size * self.n_keys

    def queries(self, x: Float[Tensor, "B H T Dh"]) -> Float[Tensor, "BN H C Dh"]:
        """Return the queries of every block."""
        return self._cut(x, 0, 0).flatten(0, 1)

    def keys(self, x: Float[Tensor, "B H T Dh"]) -> Float[Tensor, "BN H S Dh"]:
        """Return the keys (or values) that every block reads; 0 before the sequence's first and after its last."""
        cut = self._cut(x, self.n_before, self.n_after)
        beside = [cut[:, i : i + self.n_blocks] for i in range(self.n_before + 1 + self.n_after)]
        return torch.cat(beside, dim=3).flatten(0, 1)

    def mask(self, n_texts: int, causal: bool, device: torch.device) -> Mask:
        """Return the mask of every block, whose positions count from its first query."""
        first = torch.arange(self.n_blocks, device=device) * self.size
        k_pos = torch.arange(self.n_keys, device=device) - self.n_before * self.size
        places = first[:, None] + k_pos  # [N S], in the sequence
        exists = (places >= 0) & (places < self.n_positions)
        return Mask(torch.arange(self.size, device=device), k_pos, causal, exists.repeat(n_texts, 1))

    def joined(self, z: Float[Tensor, "BN H C Dh"]) -> Float[Tensor, "B H T Dh"]:
        """Join the blocks' vectors into sequences again."""
        z = z.unflatten(0, (-1, self.n_blocks)).transpose(1, 2).flatten(2, 3)  # [B H NC Dh]
        return z[:, :, : self.n_positions]

    def _cut(self, x: Float[Tensor, "B H T Dh"], n_before: int, n_after: int) -> Float[Tensor, "B _ H C Dh"]:
        """Cut x into blocks, with blocks of 0 before and after."""
        n_missing = -self.n_positions % self.size
        filler = (n_before * self.size, n_missing + n_after * self.size)
        return (F.pad(x, (0, 0, *filler)) if any(filler) else x).unflatten(2, (-1, self.size)).transpose(1, 2)


def window_blocks(mask: Mask, window: int | None) -> WindowBlocks | None:
    """Return the blocks for sequences under this mask; None where attention takes them whole.

    Judged from the shapes alone, which are not enough with padding or a cache: then None.
    """
    n_queries, n_keys = mask.q_pos.shape[-1], mask.k_pos.shape[-1]
    if window is None or mask.padding is not None or n_queries != n_keys:
        return None
    return WindowBlocks.of(n_keys, window, mask.causal)


def within_reach(
    k: Float[Tensor, "B K S Dh"], v: Float[Tensor, "B K S Dv"], mask: Mask, window: int | None
) -> tuple[Float[Tensor, "B K _ Dh"], Float[Tensor, "B K _ Dv"], Mask]:
    """Return keys, values and mask without the cached keys that are too far back for all queries.

    With padding all are kept, because the shapes do not say how far back a key is. Compiled, all are kept too:
    sequences beyond the window would need a second compiled step.
    """
    if window is None or mask.padding is not None or torch.compiler.is_compiling():
        return k, v, mask
    n_queries, n_keys = mask.q_pos.shape[-1], mask.k_pos.shape[-1]
    if n_keys < n_queries + window:
        return k, v, mask
    near = slice(1 - n_queries - window, None)
    return k[:, :, near], v[:, :, near], replace(mask, k_pos=mask.k_pos[..., near])
