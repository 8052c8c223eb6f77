"""Keys and values kept between calls, so that a new token costs one step and not the whole sequence again.

Shapes: B batch, T new positions, S all positions so far, H heads, K key/value heads, Dh head size.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from clearformer.errors import UserError, count
from clearformer.model.shapes import Keys, Padding, Rows, SourcePadding, Values

MOST_ROOM = 256
"""The most positions by which a full buffer grows: doubling a large one would leave much of it empty."""

KeysValues = tuple[Float[Tensor, "B K _ Dh"], Float[Tensor, "B K _ Dv"]]


class LayerCache(ABC):
    """The cache of one layer."""

    def make_room(self, n_before: int, n: int) -> None:  # noqa: B027  (for most there is nothing to do)
        """Grow the buffers to hold `n` positions; the first `n_before` of them are kept."""

    def hold(self) -> None:
        """Record what the next call adds, so that `keep` can drop some of its positions.

        Raises:
            UserError: this kind of cache cannot drop any.
        """
        raise UserError(
            f"lookup: {type(self).__name__} cannot drop rejected tokens, for it has no `hold`; generate without lookup"
        )

    def keep(self, kept: Bool[Tensor, "B T"], length: int) -> None:  # noqa: B027
        """Drop those of the last call's T positions that are not kept; `length` positions in all remain.

        A cache that stores every position need not act: later positions overwrite those past `length`, and `Cache`
        marks the other dropped ones as padding.
        """

    @abstractmethod
    def select(self, rows: Rows) -> None:
        """Keep the given rows of the batch."""


class KeyValueCache(LayerCache):
    """Keys and values of every position so far, in buffers that grow by doubling, and by at most `MOST_ROOM`.

    The model's `Cache` counts the positions, for all layers at once.
    """

    def __init__(self) -> None:
        self.buffers: KeysValues | None = None  # all positions, and room for more

    def append(
        self, n_before: int, keys: Float[Tensor, "B K T Dh"], values: Float[Tensor, "B K T Dv"]
    ) -> tuple[Float[Tensor, "B K S Dh"], Float[Tensor, "B K S Dv"]]:
        """Add the keys and values of T new positions after the first `n_before`, and return those of all S."""
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

    def hold(self) -> None:
        """Every position is stored, so there is nothing to record."""

    def select(self, rows: Rows) -> None:
        if self.buffers is not None:
            keys, values = self.buffers
            self.buffers = keys.index_select(0, rows), values.index_select(0, rows)


def _buffer_like(x: Float[Tensor, "B K _ D"], capacity: int) -> Float[Tensor, "B K C D"]:
    """Return an uninitialised buffer for `capacity` positions."""
    return x.new_empty(*x.shape[:2], capacity, x.shape[3])


class LinearCache(LayerCache):
    """The cache of linear attention: sums over all keys so far."""

    def __init__(self) -> None:
        self.outer: Tensor | None = None  # [B H Dh Dv], sum of phi(k) v^T
        self.keys: Tensor | None = None  # [B H Dh], sum of phi(k)
        self._holds = False  # whether `keep` may drop some of the next call's positions
        self._held: tuple[Tensor, Tensor, Tensor, Tensor] | None = None  # sums before it, its keys and values
        self._seen, self._n_seen = KeyValueCache(), 0  # the keys and values themselves, for hooked scores

    def sums(
        self, keys: Float[Tensor, "B H T Dh"], values: Float[Tensor, "B H T Dv"]
    ) -> tuple[Float[Tensor, "B H Dh Dv"], Float[Tensor, "B H Dh"]]:
        """Return both sums so far, in at least float32: in bfloat16 they stop growing after a few hundred keys."""
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
        """Compute the sums again without the dropped positions."""
        assert self._held is not None, "`hold` comes before the call"
        outer, sum_of_keys, keys, values = self._held
        keys = keys * kept[:, None, :, None]
        self.outer, self.keys = outer + keys.transpose(-2, -1) @ values, sum_of_keys + keys.sum(2)
        self._holds, self._held = False, None
        self._n_seen = min(self._n_seen, length)

    def with_earlier(
        self, n_before: int, keys: Float[Tensor, "B H T Dh"], values: Float[Tensor, "B H T Dv"]
    ) -> tuple[Float[Tensor, "B H S Dh"], Float[Tensor, "B H S Dv"]]:
        """Return the keys and values of `n_before` earlier positions and T new ones.

        Raises:
            UserError: the earlier positions were not hooked, so that only their sums were kept.
        """
        if self._n_seen != n_before:
            raise UserError(
                f"linear attention keeps the {n_before - self._n_seen} earlier positions only as sums: to see its "
                "scores or pattern with a cache, hook from the first token on"
            )
        self._n_seen += keys.shape[2]
        return self._seen.append(n_before, keys, values)

    def select(self, rows: Rows) -> None:
        if self.outer is not None and self.keys is not None:
            self.outer, self.keys = self.outer[rows], self.keys[rows]
        self._seen.select(rows)


class MemoryCache(LayerCache):
    """Keys and values of the source, which cross-attention computes at the first step and reads at every step."""

    def __init__(self) -> None:
        self._keys_values: tuple[Keys, Values] | None = None

    def once(self, make: Callable[[], tuple[Keys, Values]]) -> tuple[Keys, Values]:
        """Call `make` the first time, and return its result every time."""
        if self._keys_values is None:
            self._keys_values = make()
        return self._keys_values

    def hold(self) -> None:
        """The source stays the same, so there is nothing to record."""

    def select(self, rows: Rows) -> None:
        if self._keys_values is not None:
            keys, values = self._keys_values
            self._keys_values = keys[rows], values[rows]


class BlockCache(NamedTuple):
    """The caches of one block: of its self-attention and, where it has one, its cross-attention."""

    attn: LayerCache
    cross: MemoryCache | None = None


class Cache:
    """A model's cache: those of its blocks, the number of positions, and which of these are padding."""

    def __init__(self, layers: list[BlockCache]) -> None:
        self.layers = layers
        self.all = [each for layer in layers for each in layer if each is not None]
        self.length = 0
        self.padding: SourcePadding = None
        self._n_rows: int | None = None  # of the batch, from the first call on
        self._is_whole = (
            True  # unless a call has failed halfway: some layers have its positions then, some have not
        )

    def check(self, n_rows: int) -> None:
        """Check that the next call may add to the cache.

        Raises:
            UserError: the batch has another number of rows than the cache, or the last call failed halfway.
        """
        if not self._is_whole:
            raise UserError("cache: its last call failed halfway; model.new_cache() begins anew")
        if self._n_rows is not None and self._n_rows != n_rows:
            raise UserError(
                f"tokens: a batch of {count(n_rows, 'row')}, but the cache holds {self._n_rows} "
                "(cache.select(rows) keeps some of them; model.new_cache() begins anew)"
            )

    def begin(self, n_rows: int) -> None:
        """Begin a call, which `extend` ends."""
        self._n_rows, self._is_whole = n_rows, False

    def joined_padding(self, n_new: int, padding: Padding) -> SourcePadding:
        """Return the padding of the positions so far and of T new ones, or None where neither has a padding mask."""
        known = self.padding if padding is None else padding
        if known is None:
            return None
        old = known.new_ones(len(known), self.length) if self.padding is None else self.padding
        new = known.new_ones(len(known), n_new) if padding is None else padding
        return torch.cat([old, new], dim=1)

    def make_room(self, n: int) -> None:
        """Make room for `n` positions in every layer; without this call, layers grow when they need to.

        Compiled steps call it beforehand: a step in which buffers grow would have to be compiled separately.
        """
        for each in self.all:
            each.make_room(self.length, n)

    def extend(self, n_new: int, padding: SourcePadding) -> None:
        """End a call: count its T new positions, and store the padding of all S."""
        self.length += n_new
        self.padding = padding
        self._is_whole = True

    def hold(self) -> None:
        """Record what the next call adds, so that `keep` can drop some of its positions."""
        for each in self.all:
            each.hold()

    def keep(self, kept: Bool[Tensor, "B T"]) -> None:
        """Drop those of the last call's T positions that are not kept, such as rejected drafts; call `hold` before.

        Positions at the end that no row keeps are cut off. The others become padding: no query reads them, and they
        do not count as positions.
        """
        n_new = kept.shape[1]
        columns = kept.any(0).nonzero()
        n_kept = int(columns.amax()) + 1 if len(columns) else 0  # up to the last column that some row keeps
        first, self.length = self.length - n_new, self.length - n_new + n_kept
        for each in self.all:
            each.keep(kept, self.length)
        if self.padding is None and bool(kept[:, :n_kept].all()):
            return
        real = kept.new_ones(len(kept), first + n_new) if self.padding is None else self.padding
        self.padding = torch.cat([real[:, :first], real[:, first:] & kept], dim=1)[:, : self.length]

    def select(self, rows: Rows) -> None:
        """Keep the given rows of the batch, in that order (repeats allowed)."""
        for each in self.all:
            each.select(rows)
        if self._n_rows is not None:
            self._n_rows = len(rows)
        if self.padding is not None:
            self.padding = self.padding[rows]
