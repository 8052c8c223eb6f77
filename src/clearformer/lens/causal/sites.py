"""Where to intervene in a model: a hook point, and in it one head, one position, or all.

    Site("blocks.2.attn.hook_z", head=3, position=-1)
    heads_of(model), networks_of(model), embeddings_of(model)    what writes to the residual stream

Shapes: B batch, T query positions, S key positions, H heads, Dh head size.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from clearformer.decoding.arguments import check_whole
from clearformer.errors import UserError, count, shown
from clearformer.hooks import hook_points, matching
from clearformer.lens.activations import SQUARE
from clearformer.lens.inputs import check_model
from clearformer.model import Transformer


@dataclass(frozen=True)
class Site:
    """A part of an activation.

    Attributes:
        name: Its hook point, or a pattern for several (`blocks.*.attn.hook_z`).
        head: One head; None for all, or where there are none. In keys and values, a key/value head.
        position: One position, negative from the end; in scores and patterns the query's. None for all.
    """

    name: str
    head: int | None = None
    position: int | None = None

    def __str__(self) -> str:
        parts = [f"head {self.head}"] * (self.head is not None)
        parts += [f"position {self.position}"] * (self.position is not None)
        return f"{self.name} ({', '.join(parts)})" if parts else self.name

    @property
    def label(self) -> str:
        """The name, with the head after a colon: `blocks.0.attn.hook_z:3`."""
        return self.name if self.head is None else f"{self.name}:{self.head}"

    def index(self, name: str, activation: Tensor) -> tuple[slice, ...]:
        """Return the index of the site in the activation of a hook point; every axis is kept.

        Raises:
            UserError: the activation has no such head or position.
        """
        axes = axes_of(name, activation)
        index = [slice(None)] * activation.dim()
        for kind, axis, wanted in (
            ("head", axes.head, self.head),
            ("position", axes.position, self.position),
        ):
            if wanted is not None:
                if axis is None:
                    raise UserError(f"{name} has no {kind}s; omit {kind}={wanted}")
                index[axis] = _one(name, kind, wanted, activation.shape[axis])
        return tuple(index)


Where = str | Site
"""A site, or the name of a hook point for all of it."""


class Axes(NamedTuple):
    """The axes of an activation for heads and positions, if it has them."""

    head: int | None
    position: int | None


def axes_of(name: str, activation: Tensor) -> Axes:
    """Return the axes of the activation of a hook point."""
    if activation.dim() == 4:
        return Axes(1, 2) if name.endswith(SQUARE) else Axes(2, 1)
    return Axes(None, 1 if activation.dim() == 3 else None)


def site_of(where: Where) -> Site:
    """Return a site, or make one of a hook point's name."""
    if isinstance(where, str):
        return Site(where)
    if not isinstance(where, Site):
        raise UserError(f"a site is a hook point's name or a Site(name, head, position); got {where!r}")
    return where


def sites_of(model: Transformer, where: Where | Iterable[Where]) -> list[Site]:
    """Return sites with single hook points, with patterns expanded.

    Raises:
        UserError: a name or pattern matches no hook point of this model (the nearest is suggested), or this is no
            place.
    """
    names = list(hook_points(model))
    if not isinstance(where, str | Site | Iterable):
        raise UserError(
            f"a place is the name of a hook point, a Site, or a list of these; got {shown(where)}"
        )
    given = [where] if isinstance(where, str | Site) else where
    return [
        Site(name, site.head, site.position)
        for site in map(site_of, given)
        for name in matching(site.name, names)
    ]


# --- writers to the residual stream ---------------------------------------------------------------------------


def heads_of(model: Transformer) -> list[Site]:
    """Return every attention head, in the order of the layers: head h of `hook_z`."""
    names = [name for name in _points(model) if name.endswith("attn.hook_z")]
    n_heads, _ = model.config.attention.heads(model.config.d_model)
    return [Site(name, head) for name in names for head in range(n_heads)]


def networks_of(model: Transformer) -> list[Site]:
    """Return every feed-forward network: `hook_mlp_out`."""
    return [Site(name) for name in _points(model) if name.endswith("hook_mlp_out")]


def embeddings_of(model: Transformer) -> list[Site]:
    """Return the embeddings of tokens, and of positions if the model has them, before the first block of each stack."""
    return [Site(name) for name in _points(model) if "." not in name and name.endswith("embed")]


def residuals_of(model: Transformer) -> list[Site]:
    """Return the residual stream before each block: `hook_resid_pre`."""
    return [Site(name) for name in _points(model) if name.endswith("hook_resid_pre")]


def _points(model: Transformer) -> Iterable[str]:
    check_model(model)
    return hook_points(model)


def _one(name: str, kind: str, wanted: int, n: int) -> slice:
    check_whole(kind, wanted)
    if not -n <= wanted < n:
        raise UserError(f"{name} has {count(n, kind)}, 0 to {n - 1}; there is no {kind} {wanted}")
    at = int(wanted) % n
    return slice(at, at + 1)
