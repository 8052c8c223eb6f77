"""Keys and values that attention keeps between calls, so that a new token costs one step and not the whole text again.

Shapes: B batch, T new positions, S all positions so far, H heads, K key/value heads, Dh head size.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from clearformer.errors import UserError
from clearformer.model.shapes import Keys, Padding, Rows, SourcePadding, Values

MOST_ROOM = (
    256  # positions that a full buffer grows by: of many long texts, twice as much would be mostly empty
)
KeysValues = tuple[Float[Tensor, "B K _ Dh"], Float[Tensor, "B K _ Dv"]]


class LayerCache(ABC):
    """The cache of one layer."""

    def make_room(self, n_before: int, n: int) -> None:  # noqa: B027  (for most there is nothing to do)
        """Let `n` positions fit beside each other, `n_before` of which are kept already."""

    def hold(self) -> None:  # noqa: B027
        """Be ready to forget some of the positions that the next call reads."""

    def keep(self, kept: Bool[Tensor, "B T"], length: int) -> None:  # noqa: B027
        """Forget those of the last call's T positions that are not kept; `length` of all so far remain.

        There is nothing to do where each position lies apart: what comes next is written over those that are cut off,
        and the others count as padding.
        """

    @abstractmethod
    def select(self, rows: Rows) -> None:
        """Keep the given rows of the batch."""


class KeyValueCache(LayerCache):
    """Keys and values of every position so far, in buffers that grow by doubling, and by at most `MOST_ROOM`.

    How many positions that is, the model's `Cache` counts for all layers at once.
    """

    def __init__(self) -> None:
        self.buffers: KeysValues | None = None  # of all positions, and room for more

    def append(
        self, n_before: int, keys: Float[Tensor, "B K T Dh"], values: Float[Tensor, "B K T Dv"]
    ) -> tuple[Float[Tensor, "B K S Dh"], Float[Tensor, "B K S Dv"]]:
        """Add the keys and values of T new positions to those of `n_before`; returns those of all S."""
        n = n_before + keys.shape[2]
        if self.buffers is None:
            self.buffers = _buffer_like(keys, n), _buffer_like(values, n)
        self.make_room(n_before, n)
        all_keys, all_values = self.buffers
        all_keys[:, :, n_before:n], all_values[:, :, n_before:n] = keys, values
        return all_keys[:, :, :n], all_values[:, :, :n]

    def make_room(self, n_before: int, n: int) -> None:
        if self.buffers is None or n <= self.buffers[0].shape[2]:
            return
        old, capacity = slice(n_before), max(n_before + min(n_before, MOST_ROOM), n)
        keys, values = (_buffer_like(buffer, capacity) for buffer in self.buffers)
        keys[:, :, old], values[:, :, old] = (buffer[:, :, old] for buffer in self.buffers)
        self.buffers = keys, values

    def select(self, rows: Rows) -> None:
        if self.buffers is not None:
            keys, values = self.buffers
            self.buffers = keys.index_select(0, rows), values.index_select(0, rows)


def _buffer_like(x: Float[Tensor, "B K _ D"], capacity: int) -> Float[Tensor, "B K C D"]:
    """Room for as many positions, with nothing in it yet."""
    return x.new_empty(*x.shape[:2], capacity, x.shape[3])


class LinearCache(LayerCache):
    """Linear attention's whole memory of the past: sums over the keys read so far."""

    def __init__(self) -> None:
        self.outer: Tensor | None = None  # [B H Dh Dv], sum of phi(k) v^T
        self.keys: Tensor | None = None  # [B H Dh], sum of phi(k)
        self._holds = (
            False  # whether the next call's keys and values are wanted, of which some may be forgotten
        )
        self._held: tuple[Tensor, Tensor, Tensor, Tensor] | None = None  # those, and the sums before them
        self._seen, self._n_seen = KeyValueCache(), 0  # the keys themselves, while somebody looks at scores

    def sums(
        self, keys: Float[Tensor, "B H T Dh"], values: Float[Tensor, "B H T Dv"]
    ) -> tuple[Float[Tensor, "B H Dh Dv"], Float[Tensor, "B H Dh"]]:
        """Both sums so far, zero at first.

        In float32 at least: a sum in bfloat16 stops growing after a few hundred keys.
        """
        if self.outer is None or self.keys is None:
            dtype = torch.promote_types(keys.dtype, torch.float32)
            keys_sum = keys.new_zeros(*keys.shape[:2], keys.shape[-1], dtype=dtype)
            sums = keys.new_zeros(*keys_sum.shape, values.shape[-1], dtype=dtype), keys_sum
        else:
            sums = self.outer, self.keys
        if self._holds:
            self._held = *sums, keys, values
        return sums

    def hold(self) -> None:
        self._holds = True

    def keep(self, kept: Bool[Tensor, "B T"], length: int) -> None:
        """Take the sums once more, without what is forgotten."""
        assert self._held is not None, "`hold` comes before the call"
        outer, sum_of_keys, keys, values = self._held
        keys = keys * kept[:, None, :, None]
        self.outer, self.keys = outer + keys.transpose(-2, -1) @ values, sum_of_keys + keys.sum(2)
        self._holds, self._held = False, None
        self._n_seen = min(self._n_seen, length)

    def with_earlier(
        self, n_before: int, keys: Float[Tensor, "B H T Dh"], values: Float[Tensor, "B H T Dv"]
    ) -> tuple[Float[Tensor, "B H S Dh"], Float[Tensor, "B H S Dv"]]:
        """Keys and values of T new positions after those of `n_before`.

        Raises:
            UserError: nobody looked at the earlier positions, so that nothing but their sums is left.
        """
        if self._n_seen != n_before:
            raise UserError(
                f"linear attention has kept {n_before - self._n_seen} earlier positions as sums alone: to see its "
                "scores or pattern with a cache, look from the first token on"
            )
        self._n_seen += keys.shape[2]
        return self._seen.append(n_before, keys, values)

    def select(self, rows: Rows) -> None:
        if self.outer is not None and self.keys is not None:
            self.outer, self.keys = self.outer[rows], self.keys[rows]
        self._seen.select(rows)


class MemoryCache(LayerCache):
    """Keys and values of the text that cross-attention reads: made at the first step, read at every step."""

    def __init__(self) -> None:
        self._keys_values: tuple[Keys, Values] | None = None

    def once(self, make: Callable[[], tuple[Keys, Values]]) -> tuple[Keys, Values]:
        """The result of `make` when it was first called."""
        if self._keys_values is None:
            self._keys_values = make()
        return self._keys_values

    def select(self, rows: Rows) -> None:
        if self._keys_values is not None:
            keys, values = self._keys_values
            self._keys_values = keys[rows], values[rows]


class BlockCache(NamedTuple):
    """The caches of one block: of its own text, and of the text that it reads besides, where there is one."""

    attn: LayerCache
    cross: MemoryCache | None = None


class Cache:
    """A model's cache: those of its blocks, and which of the positions so far are padding."""

    def __init__(self, layers: list[BlockCache]) -> None:
        self.layers = layers
        self.all = [each for layer in layers for each in layer if each is not None]
        self.length = 0
        self.padding: SourcePadding = None

    def joined_padding(self, n_new: int, padding: Padding) -> SourcePadding:
        """The padding of the positions so far and of T new ones, or None where none is padding."""
        known = self.padding if padding is None else padding
        if known is None:
            return None
        old = known.new_ones(len(known), self.length) if self.padding is None else self.padding
        new = known.new_ones(len(known), n_new) if padding is None else padding
        return torch.cat([old, new], dim=1)

    def make_room(self, n: int) -> None:
        """Let `n` positions fit in every layer, which each sees to by itself where this was not called.

        For those who compile what reads the next ones: it would have to be compiled once more for the steps on which
        buffers grow.
        """
        for each in self.all:
            each.make_room(self.length, n)

    def extend(self, n_new: int, padding: SourcePadding) -> None:
        """Count T new positions in, with the padding of all S."""
        self.length += n_new
        self.padding = padding

    def hold(self) -> None:
        """Be ready to forget some of the positions that the next call reads; see `keep`."""
        for each in self.all:
            each.hold()

    def keep(self, kept: Bool[Tensor, "B T"]) -> None:
        """Forget those of the last call's T positions that are not kept, after `hold`: drafts that were wrong.

        What no row keeps at the end is cut off. A position that others keep becomes padding, which is read nowhere and
        counts for no place in the text.
        """
        n_new = kept.shape[1]
        n_kept = n_new - int(kept.any(0).flip(0).int().argmax())  # to the last column that some row keeps
        first, self.length = self.length - n_new, self.length - n_new + n_kept
        for each in self.all:
            each.keep(kept, self.length)
        if self.padding is None and bool(kept[:, :n_kept].all()):
            return
        real = kept.new_ones(len(kept), first + n_new) if self.padding is None else self.padding
        self.padding = torch.cat([real[:, :first], real[:, first:] & kept], dim=1)[:, : self.length]

    def select(self, rows: Rows) -> None:
        """Keep the given rows of the batch, in that order (repeats allowed): beams, finished samples."""
        for each in self.all:
            each.select(rows)
        if self.padding is not None:
            self.padding = self.padding[rows]
