"""What a run computes on, and how: the device, the type of its matrix products, compilation."""

import contextlib
import ctypes
import logging
import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from clearformer.errors import ConfigError, DeviceError

logger = logging.getLogger(__name__)

# Of glibc's malloc.h, for mallopt(3).
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3

BFLOAT16_MUST_GAIN = 1.3  # below this, its coarser numbers are not worth it

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
REPEATABLE = (":4096:8", ":16:8")
"""What `WORKSPACE` may be where cuBLAS's products are to be the same every time."""


def resolve_device(name: str) -> torch.device:
    """The device of a run: the named one, or the best there is.

    Raises:
        ConfigError: the named one is not there.
    """
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(device for device, there in available.items() if there)
    if not available[name]:
        here = ", ".join(device for device, there in available.items() if there)
        raise ConfigError(f"train.device: this machine has no {name}; it has {here}")
    if name == "cuda":
        # torch and cuBLAS read it at this process's first product, which may come before the run that needs it.
        os.environ.setdefault(WORKSPACE, REPEATABLE[0])
    return torch.device(name)


def resolve_dtype(name: str, device: torch.device) -> str:
    """The type of the matrix products: the named one, or bfloat16 where it is measured to be faster."""
    if name != "auto":
        return name
    if device.type == "cuda":
        chosen = "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
        logger.info(
            "matrix products in %s: this GPU %s bfloat16", chosen, "has" if chosen == "bfloat16" else "lacks"
        )
        return chosen
    gain = _product_seconds(torch.float32, device) / _product_seconds(torch.bfloat16, device)
    chosen = "bfloat16" if gain >= BFLOAT16_MUST_GAIN else "float32"
    logger.info("matrix products in bfloat16 run %.1f times as fast as in float32 here: %s", gain, chosen)
    return chosen


def _product_seconds(dtype: torch.dtype, device: torch.device, size: int = 512, repeats: int = 7) -> float:
    a = torch.rand(size, size, device=device).to(dtype)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        float((a @ a)[0, 0])  # reading a number waits for the device
        times.append(time.perf_counter() - start)
    return statistics.median(times[2:])


def resolve_compile(setting: str | bool, device: torch.device, pays: Callable[[], bool]) -> bool:
    """Whether to compile: as asked, or where there is a compiler and it `pays`.

    Raises:
        ConfigError: it was asked for, and there is no compiler.
    """
    compiler = _compiler_at_hand(device)
    if setting is True and not compiler:
        missing = "C++ compiler here (g++ or clang++); install one"
        if device.type == "cuda":
            missing = "Triton here, which compiles for this GPU; install it"
        raise ConfigError(f"train.compile: there is no {missing}, or set false")
    if setting != "auto":
        return bool(setting)
    if not compiler or device.type == "mps":
        logger.info("not compiling: no compiler for this device")
        return False
    if pays():
        return True
    logger.info("not compiling: the run is too short to gain by it")
    return False


def _compiler_at_hand(device: torch.device) -> bool:
    if device.type == "cuda":
        from torch.utils._triton import has_triton  # which torch does not import by itself

        return has_triton()
    return any(shutil.which(name) for name in ("g++", "clang++", "cl"))


def autocast(device: torch.device, dtype: str) -> AbstractContextManager[object]:
    """Matrix products in `dtype` inside a `with` block; weights and sums stay float32."""
    if dtype == "float32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=getattr(torch, dtype))


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all it was given (a CPU has)."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


@contextmanager
def memory_errors(way_out: str) -> Iterator[None]:
    """Tell in one line of a device's memory that is full, and what helps.

    Raises:
        DeviceError: it is full.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        what, wanted, *_advice = [*str(error).split(". "), ""]
        reason = f"{what}. {wanted}" if wanted else what
        raise DeviceError(f"{reason}; {way_out}") from None


def keep_freed_memory() -> None:
    """Let this process keep what memory it frees, for its next step to take up again; where glibc allocates.

    By default the pages of large tensors go back to the system, which clears them before it gives them out again at
    the next step: 1,800 page faults a step for 768 tokens through nanoGPT's small model, and a fifth of its time. The
    price is that the process stays as large as it once was, and a peak an eighth higher (5.0 for 4.5 GB with minigpt
    and 32 texts a step).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # macOS, musl, Windows
        logger.info("freed memory goes back to the system: this machine's allocator is not glibc's")
        return
    if not mallopt(M_MMAP_THRESHOLD, 1 << 30):
        mallopt(M_MMAP_THRESHOLD, 1 << 25)  # the most that an older one takes
    mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)


def seed_kernels(device: torch.device, seed: int) -> None:
    """Seed what kernels on a device draw from, as torch.manual_seed does, without its look at all other devices."""
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def make_deterministic(device: torch.device) -> Callable[[], None]:
    """Use deterministic kernels only; returns what undoes it.

    Raises:
        ConfigError: the environment keeps cuBLAS from it.
    """
    workspace = os.environ.setdefault(WORKSPACE, REPEATABLE[0])
    if device.type == "cuda" and workspace not in REPEATABLE:
        raise ConfigError(
            f"train.deterministic: {WORKSPACE}={workspace} lets products differ from run to run; unset it, or set it "
            f"to {REPEATABLE[0]}"
        )
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=device.type == "mps")
    return lambda: torch.use_deterministic_algorithms(before)
