"""Measuring the bytes of the tensors that are alive at once."""

import weakref
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class LiveBytes(TorchDispatchMode):
    """Counts the live bytes of tensors created in a `with` block: `now`, and their maximum `peak`.

    Under `tensors_without_memory` the tensors have no memory, and the bytes are those of real ones. So a model of any
    size can be measured, including its gradients and the tensors that autograd keeps.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_iter(result):
            if isinstance(value, Tensor):
                self._follow(value.untyped_storage())
        return result

    def _follow(self, storage: torch.UntypedStorage) -> None:
        if storage in self._seen:
            return
        self._seen.add(storage)
        self._change(storage.nbytes())
        weakref.finalize(storage, self._change, -storage.nbytes())

    def _change(self, n_bytes: int) -> None:
        self.now += n_bytes
        self.peak = max(self.peak, self.now)


def tensors_without_memory() -> AbstractContextManager[Any]:
    """Return a context in which new tensors have shapes, dtypes and a device, but no memory.

    If torch no longer has this private mode, the tensors are real: the same bytes are counted, but also used. The
    public meta device will not do: torch chooses kernels by a tensor's device, and other kernels keep other bytes.
    """
    try:
        from torch._subclasses.fake_tensor import FakeTensorMode  # takes half a second to import
    except ImportError:
        return nullcontext()
    return FakeTensorMode()
