"""The name and layout of each of our tensors in a foreign file; one table serves both directions."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

SUFFIXES = (".weight", ".bias", "")


class Layout(Protocol):
    """The layout of our tensors in one of theirs. `unpack` inverts `pack` exactly."""

    def pack(self, parts: Sequence[Tensor]) -> Tensor:
        """Convert our tensors to theirs."""
        ...

    def unpack(self, tensor: Tensor) -> Sequence[Tensor]:
        """Convert their tensor to ours."""
        ...


class Same:
    """One unchanged tensor."""

    def pack(self, parts: Sequence[Tensor]) -> Tensor:
        [part] = parts
        return part

    def unpack(self, tensor: Tensor) -> Sequence[Tensor]:
        return [tensor]


@dataclass(frozen=True)
class Conv1D:
    """`n` matrices side by side, each [in out] where a linear layer of ours is [out in] (GPT-2)."""

    n: int = 1

    def pack(self, parts: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(parts)).t()  # for a bias, .t() is the bias itself

    def unpack(self, tensor: Tensor) -> Sequence[Tensor]:
        return tensor.t().chunk(self.n)


@dataclass(frozen=True)
class ByHead:
    """Rows of several matrices by head: q, k and v of the first head, then of the next (GPT-NeoX, Bloom)."""

    n_heads: int
    n: int = 3

    def pack(self, parts: Sequence[Tensor]) -> Tensor:
        heads = [part.unflatten(0, (self.n_heads, -1)) for part in parts]  # each [H Dh ...]
        return torch.stack(heads, dim=1).flatten(0, 2)

    def unpack(self, tensor: Tensor) -> Sequence[Tensor]:
        heads = tensor.unflatten(0, (self.n_heads, self.n, -1))
        return [heads[:, i].flatten(0, 1) for i in range(self.n)]


@dataclass(frozen=True)
class HalvesExchanged:
    """Rows of each head with the second half first, because RoPE rotates in the opposite direction (NanoChat)."""

    n_heads: int

    def pack(self, parts: Sequence[Tensor]) -> Tensor:
        [rows] = parts
        return rows.unflatten(0, (self.n_heads, 2, -1)).flip(1).flatten(0, 2)

    def unpack(self, tensor: Tensor) -> Sequence[Tensor]:
        return [self.pack([tensor])]


@dataclass(frozen=True)
class Below:
    """A table whose first `n_unused` rows belong to no position (BART's positions begin in row 2)."""

    n_unused: int

    def pack(self, parts: Sequence[Tensor]) -> Tensor:
        [table] = parts
        return torch.cat([table.new_zeros(self.n_unused, *table.shape[1:]), table])

    def unpack(self, tensor: Tensor) -> Sequence[Tensor]:
        return [tensor[self.n_unused :]]


class AsRow:
    """A vector that is stored as a matrix of one row."""

    def pack(self, parts: Sequence[Tensor]) -> Tensor:
        [vector] = parts
        return vector[None]

    def unpack(self, tensor: Tensor) -> Sequence[Tensor]:
        return [tensor[0]]


@dataclass(frozen=True)
class Rule:
    """A mapping from modules or tensors of ours to one of theirs; `*` is a layer's number.

    Attributes:
        ours: One name, or several whose tensors are stored in one of theirs.
        theirs: The name in their files.
        layout: The layout in their files.
        copies: Names under which a file may hold a copy.
        optional: Whether a file may lack it; it is then zeros.
    """

    ours: str | Sequence[str]
    theirs: str
    layout: Layout = field(default_factory=Same)
    copies: Sequence[str] = ()
    optional: bool = False


@dataclass(frozen=True)
class TensorMap:
    """A rule for one tensor of theirs."""

    ours: tuple[str, ...]
    theirs: str
    layout: Layout
    copies: tuple[str, ...]
    optional: bool


def tensor_maps(rules: Iterable[Rule], names: Iterable[str], n_layers: int) -> list[TensorMap]:
    """Return the place of each of our named tensors in their files.

    Raises:
        AssertionError: a tensor has no place, or two: the rules are not those of this model.
    """
    names = set(names)
    places = [place for rule in rules for place in _places(rule, names, n_layers)]
    placed = [name for place in places for name in place.ours]
    assert sorted(placed) == sorted(names), f"no place, or two, for {set(placed) ^ names or placed}"
    return places


def _places(rule: Rule, names: set[str], n_layers: int) -> Iterator[TensorMap]:
    modules = [rule.ours] if isinstance(rule.ours, str) else rule.ours
    for number in range(n_layers) if "*" in rule.theirs else (0,):
        for suffix in SUFFIXES:
            at = [text.replace("*", str(number)) + suffix for text in (rule.theirs, *rule.copies, *modules)]
            theirs, copies, ours = at[0], at[1 : -len(modules)], at[-len(modules) :]
            if names.issuperset(ours):
                yield TensorMap(tuple(ours), theirs, rule.layout, tuple(copies), rule.optional)


def shapes_of(places: Iterable[TensorMap], ours: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of tensors in a foreign file, from ours (which may be on the meta device)."""
    return {p.theirs: tuple(p.layout.pack([ours[name] for name in p.ours]).shape) for p in places}


def in_float32(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors in float32, in which they are rewritten and written whatever the model computes in."""
    return {name: tensor.to(torch.float32) for name, tensor in tensors.items()}


def to_theirs(places: Iterable[TensorMap], ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert our tensors to theirs."""
    return {p.theirs: p.layout.pack([ours[name] for name in p.ours]).contiguous() for p in places}


def to_ours(places: Iterable[TensorMap], theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert their tensors to ours."""
    return {
        name: part.contiguous()
        for place in places
        for name, part in zip(place.ours, place.layout.unpack(theirs[place.theirs]), strict=True)
    }
