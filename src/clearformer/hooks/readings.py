"""Readings that are kept: what a model makes of a text is computed once, for all lens functions that ask for it.

    with lens.Readings(megabytes=200).in_use():
        lens.ledger(run, text)
        lens.ledger(run, text, position=3)      reads nothing anew

Results are the same to the bit with and without. Off by default; in the `with` block it is on for its thread or task
alone. A model that changes is noticed: each of its modules, parameters and buffers must be the very one that it was,
and no operation of torch may have written to it since. What is written past torch's notice (`parameter.data`, views of
NumPy) and plain attributes of modules are not watched. Nothing is kept while a hook function looks at a model, under
autocast, or of a model whose weights were made in inference mode.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
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
LARGEST_SHARE = 4  # of the room that there is, what one value may take up: a quarter
SMALL_BYTES = 64  # of a number, or of the words around one


class Missing:
    """In place of a value that is not kept; None may be one."""


MISSING = Missing()


class Readings:
    """Values that were computed of models and texts, as many as there is room for; the oldest go first.

    Args:
        megabytes: The room.

    Raises:
        UserError: it is no number from 1 on.
    """

    def __init__(self, megabytes: float = MEGABYTES) -> None:
        if isinstance(megabytes, bool) or not isinstance(megabytes, int | float) or not megabytes >= 1:
            raise UserError(f"megabytes: a number from 1 on; got {shown(megabytes)}")
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
        """Lens functions that are called in the `with` block, by this thread or task, keep and use readings."""
        token = _in_use.set(self)
        try:
            yield self
        finally:
            _in_use.reset(token)

    def find(self, model: nn.Module, keys: Iterable[Hashable]) -> list[Any]:
        """The values that are kept of a model as it is now, MISSING where there is none; they are left as they are."""
        with self._lock:
            if not self._is_known(model):
                return [MISSING for _ in keys]
            return [self._value((id(model), key)) for key in keys]

    def keep(self, model: nn.Module, values: Mapping[Any, Any]) -> None:
        """Keep values by their keys, which were computed of a model as it is now; not those that are too large."""
        with self._lock:
            if not self._is_known(model) and not self._watch(model):
                return
            self._most_at_once = max(self._most_at_once, sum(map(bytes_of, values.values())))
            for key, value in values.items():
                self._add((id(model), key), value)

    def make_room(self) -> None:
        """Drop what would have to go for as much as was kept at once before, so that it is gone when that is made."""
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
        """Whether a model is as it was; what was kept of another state of it, or of one that is gone, is dropped."""
        watched = self._models.get(id(model))
        if watched is None:
            return False
        if not watched.is_same(model):
            self._forget(id(model))
            return False
        return True

    def _watch(self, model: nn.Module) -> bool:
        """Watch a model from now on, if its parts can be watched."""
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
    """The readings in use, where what is computed now may be kept."""
    readings = _in_use.get()
    if readings is None or is_any_open() or any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
        return None
    return readings


def once(model: nn.Module, key: Hashable, make: Callable[[], T]) -> T:
    """The value that `make` computes of a model and of what the key names, or the one that is kept.

    Whoever is given it leaves it as it is. `make` computes without gradients.
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
    """A model's modules, parameters and buffers, each with the number of times that torch has written to it."""

    def __init__(self, model: nn.Module) -> None:
        self.model = ref(model)
        parts = parts_of(model)
        self.parts, self.versions = [ref(part) for part in parts], versions_of(parts)

    @classmethod
    def of(cls, model: nn.Module) -> "_Watched | None":
        """A model that is watched; None where its weights do not tell when they change."""
        return (
            None
            if any(isinstance(each, Tensor) and each.is_inference() for each in parts_of(model))
            else cls(model)
        )

    @property
    def is_gone(self) -> bool:
        return self.model() is None

    def is_same(self, model: nn.Module) -> bool:
        """Whether this is the model, unchanged."""
        if self.model() is not model:
            return False
        parts = parts_of(model)
        return (
            len(parts) == len(self.parts)
            and all(watched() is part for watched, part in zip(self.parts, parts, strict=True))
            and self.versions == versions_of(parts)
        )


def parts_of(model: nn.Module) -> list[nn.Module | Tensor]:
    """A model's modules, parameters and buffers, in an order of their own."""
    # By torch's own dictionaries: its public walks are much slower, and each question of the readings walks once.
    modules = [model]
    for module in modules:  # which grows as it is walked
        modules += filter(None, module._modules.values())
    tensors = [
        each for module in modules for of in (module._parameters, module._buffers) for each in of.values()
    ]
    return [*modules, *(each for each in tensors if each is not None)]


def versions_of(parts: Iterable[nn.Module | Tensor]) -> list[tuple[int, int]]:
    """Where the numbers of each tensor lie, and how often torch has written to them."""
    return [(part.data_ptr(), part._version) for part in parts if isinstance(part, Tensor)]


def bytes_of(value: Any) -> int:
    """The memory that a value takes up, about."""
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
    return SMALL_BYTES
