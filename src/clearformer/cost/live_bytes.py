"""Bytes of tensors that are alive at once, as measured."""

import weakref
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class LiveBytes(TorchDispatchMode):
    """Follows, inside a `with` block, how many bytes of tensors made there are alive (`now`, and `peak` at most).

    Under `tensors_without_memory` the tensors have no memory, and the bytes are those that real ones would have: so a
    model of any size can be measured, its gradients and whatever autograd keeps included.
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
    """A block whose new tensors have sizes and types but no memory, on the device that they are asked for.

    Where torch has no such mode any more the tensors are real: the same bytes are counted, and used. The meta device,
    which is public, does not serve: kernels are chosen by a tensor's device, and other kernels keep other bytes.
    """
    try:
        from torch._subclasses.fake_tensor import FakeTensorMode  # takes half a second to import
    except ImportError:
        return nullcontext()
    return FakeTensorMode()
