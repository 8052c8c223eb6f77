"""A device that is not the CPU, computed by the CPU: what lies on one may not be mixed with what lies on the other.

    PYTHONPATH=src:tests/gpu python -m pytest -p other_device --confcutdir=tests/gpu tests/gpu

runs the tests that need a GPU on it. Its tensors are of device `other`, and each holds one of the CPU, in which
everything is computed. As on a GPU, an operation on tensors of both devices fails (but for numbers without dimensions),
numpy cannot read them, and what asks for a CPU (`x.device.type == "cpu"`) is answered no. So a whole run finds out what
is made on the wrong device, its numbers included, where there is no GPU.

For a process of its own, which imports this before the package: the device is made known to torch for good, and
`torch.inference_mode` is `torch.no_grad`, for torch makes no inference tensors of a tensor's subclass.
"""

from collections.abc import Callable, Iterator
from contextlib import ContextDecorator, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode


class Unchanged(nullcontext[None], ContextDecorator):
    """Nothing changed, in a `with` block or in a decorated function."""


def without_inference_tensors(mode: Any = True) -> Any:
    """Replace `torch.inference_mode`, which may be given a function or False, too."""
    if mode is False:
        return Unchanged()
    return torch.no_grad() if mode is True else torch.no_grad()(mode)


torch.inference_mode = without_inference_tensors  # type: ignore[assignment, misc]

NAME = "other"
aten: Any = torch.ops.aten
BETWEEN_DEVICES = (aten._to_copy.default, aten.copy_.default)


class OtherTensor(Tensor):
    """A tensor of the other device; `held` is what it stands for."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "OtherTensor":
        tensor = Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=int(held.storage_offset()),
            dtype=held.dtype,
            device=torch.device(NAME, 0),
        )
        tensor.held = held
        return tensor

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(func, args, kwargs or {})

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def tolist(self) -> Any:
        return self.held.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError(f"numpy cannot read a tensor on device {NAME}: copy it to the CPU first")

    def __array__(self, *_: Any, **__: Any) -> Any:
        return self.numpy()

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"{self.held!r} on {NAME}"


class OtherDevice(TorchDispatchMode):
    """While it is entered, tensors can be made on the other device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(func, args, kwargs or {})


def computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """What an operation gives: computed on the CPU, and on the device where its arguments are."""
    tensors: list[Tensor] = []
    mapped(lambda tensor: tensors.append(tensor), (args, kwargs))
    others = [tensor for tensor in tensors if isinstance(tensor, OtherTensor)]
    device = kwargs.get("device")
    is_other = bool(others) if device is None else torch.device(device).type == NAME
    if func is aten.copy_.default:
        is_other = isinstance(args[0], OtherTensor)
    if others and func not in BETWEEN_DEVICES:
        check_not_mixed(func, args, tensors)
    if device is not None:
        kwargs = kwargs | {"device": torch.device("cpu")}
    by_held = {id(tensor.held): tensor for tensor in others}

    def outer(result: Tensor) -> Tensor:
        if id(result) in by_held:  # what an operation in place gives back is what it was given
            return by_held[id(result)]
        return OtherTensor(result) if is_other else result

    return mapped(outer, func(*mapped(inner_of, args), **mapped(inner_of, kwargs)))


def mapped(function: Callable[[Tensor], Any], value: Any) -> Any:
    """A value with a function of each tensor in it; torch's pytrees take several times as long."""
    kind = type(value)
    if kind is tuple or kind is list:
        return kind([mapped(function, each) for each in value])
    if kind is dict:
        return {name: mapped(function, each) for name, each in value.items()}
    return function(value) if isinstance(value, Tensor) else value


def inner_of(value: Tensor) -> Tensor:
    return value.held if isinstance(value, OtherTensor) else value


def check_not_mixed(func: Any, args: Any, tensors: list[Tensor]) -> None:
    """As a GPU does: only a number without dimensions may lie on the CPU, and only where it is not written to.

    Raises:
        RuntimeError: there are tensors of both devices.
    """
    on_cpu = [tensor for tensor in tensors if not isinstance(tensor, OtherTensor)]
    written = args[0] if args and func._schema.is_mutable else None
    if any(tensor.dim() or tensor is written for tensor in on_cpu):
        shapes = ", ".join(f"{tuple(t.shape)} on {t.device}" for t in tensors)
        raise RuntimeError(f"{func}: tensors on two devices: {shapes}")


class _Module:
    """What torch asks of a device's module."""

    is_available = staticmethod(lambda: True)
    is_initialized = staticmethod(lambda: True)
    _is_in_bad_fork = staticmethod(lambda: False)
    manual_seed_all = staticmethod(lambda seed: None)
    device_count = staticmethod(lambda: 1)
    current_device = staticmethod(lambda: 0)
    get_amp_supported_dtype = staticmethod(lambda: [torch.bfloat16])


@contextmanager
def other_device() -> Iterator[torch.device]:
    """Torch with another device, called `other`; autocast to bfloat16 changes nothing on it."""
    backend_registration._setup_privateuseone_for_python_backend(NAME, _Module)  # type: ignore[attr-defined]
    autocast = torch.library.Library("_", "IMPL", "AutocastPrivateUse1")
    autocast.fallback(torch.library.fallthrough_kernel)
    torch._C._set_only_lift_cpu_tensors(True)  # type: ignore[attr-defined]  # torch.tensor makes it, then moves it
    with OtherDevice():
        yield torch.device(NAME)
