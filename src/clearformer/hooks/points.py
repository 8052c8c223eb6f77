"""Hook points: named places in a model where an activation can be read or replaced.

A hook point is an ordinary attribute of its module, so its full name is the module's path and the attribute's name
(`blocks.0.attn.hook_pattern`, as in TransformerLens). A module has only the points that its forward pass calls.
Without hook functions, a point returns its argument unchanged; `torch.compile` removes it, and compiles again for a
model that has some. (A compiled step of generation asks for hooks before each token instead.)

Hook functions are active inside a `with hooked(...)` block, and only in its thread or task. The model itself only
counts how many such blocks are open at each point.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from fnmatch import fnmatchcase
from threading import RLock
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from clearformer.errors import UserError, did_you_mean, shown
from clearformer.hooks.activations import ActivationCache


@dataclass(frozen=True)
class Hook:
    """The hook point at which a hook function is called.

    Attributes:
        name: The point's full name in the model that was passed to `hooked`.
    """

    name: str


HookFn = Callable[[Tensor, Hook], Tensor | None]
"""A hook function: returns a replacement for the activation, or None to leave it."""


class HookPoint:
    """One named place in a module."""

    def __init__(self) -> None:
        self.n_open = 0  # open `hooked` blocks with functions for it, in all threads

    @property
    def has_hooks(self) -> bool:
        """Whether this thread or task has a hook function here."""
        return self.n_open > 0 and any(self in hooks for hooks in _open.get())

    def __call__(self, activation: Tensor) -> Tensor:
        if self.n_open == 0:
            return activation
        for hooks in _open.get():
            for function, hook in hooks.get(self, ()):
                replacement = function(activation, hook)
                if replacement is not None:
                    _check_replacement(replacement, activation, hook)
                    activation = replacement
        return activation

    def __reduce__(self) -> tuple[type["HookPoint"], tuple[()]]:
        """Copy it, or pickle it, without hook functions: those of an open block are for the model given to it."""
        return HookPoint, ()


HookFns = dict[HookPoint, list[tuple[HookFn, Hook]]]
"""The functions of one `with` block, by hook point."""

_open: ContextVar[tuple[HookFns, ...]] = ContextVar("open blocks, the outermost first", default=())
_counting = RLock()  # where garbage is collected meanwhile, a generator's block may end


def hook_points(model: nn.Module) -> dict[str, HookPoint]:
    """Return every hook point of a model by its full name, in the order of its modules."""
    return {
        f"{path}.{name}" if path else name: value
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, HookPoint)
    }


def is_any_open() -> bool:
    """Whether this thread or task has an open `hooked` block, of any model."""
    return bool(_open.get())


def has_any_hooks(model: nn.Module) -> bool:
    """Whether this thread or task has a hook function at any point of the model."""
    return any(point.has_hooks for point in hook_points(model).values())


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """Return the names that match a pattern, in which `*` stands for any characters.

    Raises:
        UserError: no name matches; the message suggests the nearest.
    """
    if not isinstance(pattern, str):
        raise UserError(f"names of hook points are strings; got {shown(pattern)}")
    names = list(names)
    found = [name for name in names if fnmatchcase(name, pattern)]
    if not found:
        in_any_layer = list(dict.fromkeys(re.sub(r"\.\d+\.", ".*.", name) for name in names))
        candidates = in_any_layer if "*" in pattern else names
        hint = did_you_mean(pattern, candidates) or f"; it has {', '.join(in_any_layer)}"
        raise UserError(f"this model has no hook point {pattern!r}{hint}")
    return found


def patterns_of(names: Any) -> list[str]:
    """Return one name or pattern, or several, as a list.

    Raises:
        UserError: they are something else.
    """
    patterns = [names] if isinstance(names, str) else list(names) if isinstance(names, Iterable) else [names]
    if wrong := [each for each in patterns if not isinstance(each, str)]:
        raise UserError(f"names: must be names or patterns, such as 'blocks.0.*'; got {shown(wrong[0])}")
    return patterns


class HookedModule(nn.Module):
    """A module with named activations."""

    def hooked(self, hooks: Mapping[str, HookFn]) -> AbstractContextManager[None]:
        """Call functions at hook points in a `with` block; see `hooks.hooked`."""
        return hooked(self, hooks)

    def run_with_cache(
        self, *inputs: Any, names: str | Iterable[str] | Callable[[str], bool] | None = None
    ) -> tuple[Float[Tensor, "..."], ActivationCache]:
        """Return the result of `forward` and the activations at the named hook points (by default all).

        `names` are names or patterns (`blocks.*.attn.hook_z`), or a function that says whether a name is wanted.
        Functions of a `hooked` block around this call come first: what they replace is recorded as replaced. See
        `ActivationCache` for how to look activations up.

        Shapes follow TransformerLens: q, k, v and z are [B T H Dh], scores and patterns [B H T S], the scale of a norm
        [B T 1], the rest [B T D] (or F in the feed-forward network). With `n_kv_heads`, k and v have only these K
        heads: [B T K Dh]. Attention of kind `mean` has one head and no queries or keys: its q and k are zeros
        [B T 1 1].
        """
        points = hook_points(self)
        if names is None or callable(names):
            wanted = [name for name in points if names is None or names(name)]
        else:
            wanted = [name for pattern in patterns_of(names) for name in matching(pattern, points)]
        seen = ActivationCache()

        def keep(activation: Tensor, hook: Hook) -> None:
            seen[hook.name] = activation

        with self.hooked(dict.fromkeys(wanted, keep)):
            result = self(*inputs)
        return result, seen


@contextmanager
def hooked(model: nn.Module, hooks: Mapping[str, HookFn]) -> Iterator[None]:
    """Call hook functions at a model's hook points inside the `with` block.

    Args:
        hooks: Functions of (activation, hook), by a point's name or a pattern (`blocks.*.attn.hook_z`). Several at
            one point run one after another, each on the previous one's result: first those of outer blocks, then
            these in their order here.

    Raises:
        UserError: `hooks` is no mapping of names to functions, a name or pattern matches no hook point, a function
            takes other arguments; later, at a forward pass, a function returns a tensor of another shape or type.
    """
    if not isinstance(hooks, Mapping):
        raise UserError(
            "hooks: must map names of hook points to functions, such as "
            f'{{"blocks.0.attn.hook_z": function}}; got {shown(hooks)}'
        )
    points = hook_points(model)
    by_point: HookFns = {}
    checked: set[int] = set()  # one function often serves many points
    for pattern, function in hooks.items():
        if id(function) not in checked:
            _check_signature(pattern, function)
            checked.add(id(function))
        for name in [pattern] if pattern in points else matching(pattern, points):
            by_point.setdefault(points[name], []).append((function, Hook(name)))
    _count(by_point, 1)
    _open.set((*_open.get(), by_point))
    try:
        yield
    finally:
        # Not the previous state: a generator may close its block after a block that was opened later.
        _open.set(tuple(each for each in _open.get() if each is not by_point))
        _count(by_point, -1)


def _count(points: Iterable[HookPoint], change: int) -> None:
    with _counting:
        for point in points:
            point.n_open += change


def _check_replacement(replacement: Any, activation: Tensor, hook: Hook) -> None:
    like = isinstance(replacement, Tensor) and replacement.dtype == activation.dtype
    if not like or replacement.shape != activation.shape:
        raise UserError(
            f"the function at {hook.name} must return a tensor like its argument, {_looks(activation)}, or None; "
            f"it returned {_looks(replacement) if isinstance(replacement, Tensor) else type(replacement).__name__}"
        )


def _looks(x: Tensor) -> str:
    return f"{list(x.shape)} of {str(x.dtype).removeprefix('torch.')}"


def _check_signature(pattern: str, function: HookFn) -> None:
    if not callable(function):
        raise UserError(
            f"hooks: {pattern!r} must have a function of (activation, hook); got {shown(function)}"
        )
    try:
        signature = inspect.signature(function)
    except ValueError:  # functions written in C may have none
        return
    try:
        signature.bind(None, None)
    except TypeError:
        raise UserError(
            f"the function for {pattern!r} takes {signature}; it is called with (activation, hook)"
        ) from None
