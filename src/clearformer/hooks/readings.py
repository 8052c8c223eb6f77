"""A cache of what lens functions compute from a model and a text, shared between their calls.

    with lens.Readings(megabytes=200).in_use():
        lens.ledger(run, text)
        lens.ledger(run, text, position=3)      does not run the model again

Results are the same to the bit with and without it. It is off by default; the `with` block turns it on for its own
thread or task alone. When a model changes, its values are dropped: every module, parameter and buffer must be the same
object, and no torch operation may have written to it since. Writes that bypass torch (`parameter.data`, NumPy views)
and plain attributes of modules go unnoticed. Nothing is cached while a `hooked` block is open, under autocast, or for
a model whose weights were created in inference mode.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from math import inf
from numbers import Real
from threading import RLock
from typing import Any, TypeVar
from weakref import ref

import numpy as np
import torch
from torch import Tensor, nn

from clearformer.errors import UserError, shown
from clearformer.hooks.points import is_any_open

T = TypeVar("T")
MEGABYTES = 200
LARGEST_SHARE = 4  # one value may take a quarter of the memory
SMALL_BYTES = 64  # assumed size of a number, and overhead of each entry


class Missing:
    """The type of MISSING, which stands for a value that is not cached (None may be a value)."""


MISSING = Missing()


class Readings:
    """A cache of values computed from models and texts; the least recently used are dropped first.

    Args:
        megabytes: The most memory that the values may take.

    Raises:
        UserError: `megabytes` is not a finite number of at least 1.
    """

    def __init__(self, megabytes: float = MEGABYTES) -> None:
        if isinstance(megabytes, bool) or not isinstance(megabytes, Real) or not 1 <= megabytes < inf:
            raise UserError(f"megabytes: a finite number of at least 1; got {shown(megabytes)}")
        self.most_bytes = int(megabytes * 2**20)
        self.n_bytes = 0
        self._most_at_once = 0
        self._values: OrderedDict[tuple[int, Hashable], tuple[Any, int]] = OrderedDict()
        self._models: dict[int, _Watched] = {}
        self._lock = RLock()

    def __len__(self) -> int:
        return len(self._values)

    @contextmanager
    def in_use(self) -> Iterator["Readings"]:
        """Have lens functions that this thread or task calls in the `with` block use this cache."""
        token = _in_use.set(self)
        try:
            yield self
        finally:
            _in_use.reset(token)

    def find(self, model: nn.Module, keys: Iterable[Hashable]) -> list[Any]:
        """Return the values cached for the model in its present state, or MISSING; callers must not modify them."""
        with self._lock:
            if not self._is_known(model):
                return [MISSING for _ in keys]
            return [self._value((id(model), key)) for key in keys]

    def keep(self, model: nn.Module, values: Mapping[Any, Any]) -> None:
        """Cache values computed from the model in its present state, except those that are too large."""
        with self._lock:
            if not self._is_known(model) and not self._watch(model):
                return
            self._most_at_once = max(self._most_at_once, sum(map(bytes_of, values.values())))
            for key, value in values.items():
                self._add((id(model), key), value)

    def make_room(self) -> None:
        """Make room for the largest batch of values so far before the next is computed, to lower the peak memory."""
        with self._lock:
            while self._values and self.n_bytes + self._most_at_once > self.most_bytes:
                self._drop(next(iter(self._values)))

    def _value(self, key: tuple[int, Hashable]) -> Any:
        if key not in self._values:
            return MISSING
        self._values.move_to_end(key)
        return self._values[key][0]

    def _add(self, key: tuple[int, Hashable], value: Any) -> None:
        n_bytes = bytes_of(value) + SMALL_BYTES
        if n_bytes > self.most_bytes // LARGEST_SHARE:
            return
        self._drop(key)
        self._values[key] = value, n_bytes
        self.n_bytes += n_bytes
        while self.n_bytes > self.most_bytes:
            self._drop(next(iter(self._values)))

    def _is_known(self, model: nn.Module) -> bool:
        """Whether the model is known and unchanged; the values of an earlier state are dropped."""
        watched = self._models.get(id(model))
        if watched is None:
            return False
        if not watched.is_same(model):
            self._forget(id(model))
            return False
        return True

    def _watch(self, model: nn.Module) -> bool:
        """Watch a model from now on; returns whether its parts can be watched."""
        for number in [number for number, watched in self._models.items() if watched.is_gone]:
            self._forget(number)
        watched = _Watched.of(model)
        if watched is not None:
            self._models[id(model)] = watched
        return watched is not None

    def _forget(self, number: int) -> None:
        self._models.pop(number, None)
        for key in [key for key in self._values if key[0] == number]:
            self._drop(key)

    def _drop(self, key: tuple[int, Hashable]) -> None:
        if key in self._values:
            self.n_bytes -= self._values.pop(key)[1]


_in_use: ContextVar[Readings | None] = ContextVar("the readings that lens functions use", default=None)


def readings_in_use() -> Readings | None:
    """Return the readings in use; None where there are none, or results may not be cached now."""
    readings = _in_use.get()
    if torch.is_inference_mode_enabled():  # what it makes could have no gradient later
        return None
    if readings is None or is_any_open() or any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
        return None
    return readings


def once(model: nn.Module, key: Hashable, make: Callable[[], T]) -> T:
    """Return the cached value for the model and key, or call `make` and cache its result.

    Callers must not modify the value. `make` computes without gradients.
    """
    readings = readings_in_use()
    if readings is None:
        return make()
    [found] = readings.find(model, [key])
    if found is MISSING:
        found = make()
        readings.keep(model, {key: found})
    return found


class _Watched:
    """References to a model's modules, parameters and buffers, and the tensors' versions."""

    def __init__(self, model: nn.Module) -> None:
        self.model = ref(model)
        parts = parts_of(model)
        self.parts, self.versions = [ref(part) for part in parts], versions_of(parts)

    @classmethod
    def of(cls, model: nn.Module) -> "_Watched | None":
        """Watch a model; returns None where its tensors count no versions (made in inference mode)."""
        return (
            None
            if any(isinstance(each, Tensor) and each.is_inference() for each in parts_of(model))
            else cls(model)
        )

    @property
    def is_gone(self) -> bool:
        return self.model() is None

    def is_same(self, model: nn.Module) -> bool:
        """Whether `model` is the watched one, unchanged."""
        if self.model() is not model:
            return False
        parts = parts_of(model)
        return (
            len(parts) == len(self.parts)
            and all(watched() is part for watched, part in zip(self.parts, parts, strict=True))
            and self.versions == versions_of(parts)
        )


def parts_of(model: nn.Module) -> list[nn.Module | Tensor]:
    """Return a model's modules, parameters and buffers, in a fixed order."""
    # Through torch's private dictionaries: its public iterators are much slower, and every look-up calls this.
    modules = [model]
    for module in modules:  # grows during the loop
        modules += filter(None, module._modules.values())
    tensors = [
        each for module in modules for of in (module._parameters, module._buffers) for each in of.values()
    ]
    return [*modules, *(each for each in tensors if each is not None)]


def versions_of(parts: Iterable[nn.Module | Tensor]) -> list[tuple[int, int]]:
    """Return the address of each tensor, and how often torch has written to it."""
    return [(part.data_ptr(), part._version) for part in parts if isinstance(part, Tensor)]


def bytes_of(value: Any) -> int:
    """Estimate the memory that a value takes."""
    if isinstance(value, Tensor):
        return value.untyped_storage().nbytes()
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, str | bytes):
        return SMALL_BYTES + len(value)
    if isinstance(value, Mapping):
        return sum(bytes_of(each) for pair in value.items() for each in pair)
    if isinstance(value, list | tuple):
        return sum(map(bytes_of, value))
    if is_dataclass(value):
        return SMALL_BYTES + sum(bytes_of(getattr(value, field.name)) for field in fields(value))
    return SMALL_BYTES
