"""The device of a run, the type of its matrix products, and compilation."""

import contextlib
import ctypes
import logging
import os
import re
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from clearformer.errors import ConfigError, DeviceError, did_you_mean, shown

logger = logging.getLogger(__name__)

# Of glibc's malloc.h, for mallopt(3).
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3

DEVICE_NAME = r"auto|cpu|mps|cuda(:\d+)?"
ALSO_CALLED = {"gpu": "cuda", "nvidia": "cuda", "metal": "mps", "apple": "mps"}

BFLOAT16_MUST_GAIN = 1.3  # below this, its coarser numbers are not worth it
SMALL, SMALL_REPEATS = 128, 20  # the size of products that tell a hopeless type, and how many
HOPELESS = 0.1  # a gain of small products below which large ones are not tried
WARM_UP = 2  # products whose time does not count
STEADY_SPREAD = 1.5  # the median over the least of some times, up to which a machine counts as steady

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
REPEATABLE = (":4096:8", ":16:8")
"""The values that `WORKSPACE` may have where cuBLAS's products are to be the same every time."""


def resolve_device(name: str | torch.device, key: str = "train.device") -> torch.device:
    """A device by its name, or the best there is for `auto`.

    Args:
        name: `auto`, `cpu`, `cuda`, `mps`, or one GPU of several: `cuda:1`, in upper or lower case; or torch's.
        key: The setting or the option that gave the name, for the message.

    Raises:
        ConfigError: there is no such device here.
    """
    available = devices_here()
    name = str(name) if isinstance(name, torch.device) else name
    if not isinstance(name, str):
        raise ConfigError(f"{key}: {shown(name)} is no device; this machine has {', '.join(available)}")
    device = name.strip().lower()
    if device == "auto":
        device = available[0]
    if device in available:
        if device.startswith("cuda"):
            # torch and cuBLAS read it at this process's first product, which may come before the run that needs it.
            os.environ.setdefault(WORKSPACE, REPEATABLE[0])
        return torch.device(device)
    if re.fullmatch(DEVICE_NAME, device):
        raise ConfigError(f"{key}: this machine has no {name}; it has {', '.join(available)}")
    raise ConfigError(
        f"{key}: {name!r} is no device (this machine has {', '.join(available)}){device_hint(device)}"
    )


def device_hint(name: str) -> str:
    """Which device was meant by a name that is none."""
    return did_you_mean(ALSO_CALLED.get(name, name), ("auto", "cpu", "cuda", "mps"))


def devices_here() -> list[str]:
    """The names of this machine's devices, the best first; each GPU of several has a name of its own too."""
    here = ["cpu"]
    if torch.backends.mps.is_available():
        here.insert(0, "mps")
    if torch.cuda.is_available():
        here[:0] = ["cuda", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    return here


def resolve_dtype(name: str, device: torch.device) -> str:
    """The type of the matrix products: the named one, or bfloat16 where it is measured to be faster."""
    if name != "auto":
        if name == "bfloat16" and lacks_bfloat16(device):
            logger.warning(
                "train.dtype=bfloat16: this processor has no units for it, and products take far longer than in float32"
            )
        return name
    if device.type == "cuda":
        chosen = "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
        logger.info(
            "matrix products in %s: this GPU %s bfloat16", chosen, "has" if chosen == "bfloat16" else "lacks"
        )
        return chosen
    gain = bfloat16_gain(device)
    chosen = "bfloat16" if gain.is_certain and gain.ratio >= BFLOAT16_MUST_GAIN else "float32"
    logger.info("%s: %s", gain, chosen)
    return chosen


@dataclass(frozen=True)
class Gain:
    """How much faster one of two measured things is than the other, and how steady the machine was meanwhile.

    Attributes:
        ratio: Of the least times: what slows a machine down makes times longer, never shorter.
        ratio_of_medians: The same of the medians; another one on an uneven machine.
        spread: The larger of the two medians over their least times; 1 on a steady machine.
    """

    ratio: float
    ratio_of_medians: float
    spread: float

    @property
    def is_certain(self) -> bool:
        """Whether the least times and the medians agree on what is worth it."""
        return (self.ratio >= BFLOAT16_MUST_GAIN) == (self.ratio_of_medians >= BFLOAT16_MUST_GAIN)

    def __str__(self) -> str:
        text = f"matrix products in bfloat16 run about {self.ratio:.2g} times as fast as in float32 here"
        if not self.is_certain:
            text += f", or {self.ratio_of_medians:.2g} times: the machine is too busy to tell"
        elif self.spread > STEADY_SPREAD:
            text += (
                f" (the machine was busy: the times of one product differed by a factor of {self.spread:.2g})"
            )
        return text


def bfloat16_gain(device: torch.device) -> Gain:
    """How much faster products are in bfloat16, measured.

    Small products tell a processor that has no units for it, where a large one takes a hundred times as long.
    """
    of_small = gain_of_products(device, SMALL, SMALL_REPEATS)
    return of_small if of_small.ratio < HOPELESS else gain_of_products(device, size=512, repeats=30)


@cache
def lacks_bfloat16(device: torch.device) -> bool:
    """Whether it is a processor without units for products in bfloat16, by the time that small ones take."""
    return device.type == "cpu" and gain_of_products(device, SMALL, SMALL_REPEATS).ratio < HOPELESS


def gain_of_products(device: torch.device, size: int, repeats: int) -> Gain:
    """How much faster bfloat16 is, by products of [size size] in the two types in turn."""
    products = [torch.rand(size, size, device=device).to(dtype) for dtype in (torch.float32, torch.bfloat16)]
    times = [[_product_seconds(a) for a in products] for _ in range(repeats + WARM_UP)][WARM_UP:]
    of_float32, of_bfloat16 = zip(*times, strict=True)
    medians = statistics.median(of_float32), statistics.median(of_bfloat16)
    least = min(of_float32), min(of_bfloat16)
    spread = max(median / shortest for median, shortest in zip(medians, least, strict=True))
    return Gain(least[0] / least[1], medians[0] / medians[1], spread)


def _product_seconds(a: torch.Tensor) -> float:
    start = time.perf_counter()
    float((a @ a)[0, 0])  # reading a number waits for the device
    return time.perf_counter() - start


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


def autocast(device: torch.device, dtype: torch.dtype | str | None) -> AbstractContextManager[object]:
    """Matrix products in `dtype` inside a `with` block; as they are around it, where that is None or float32."""
    product_dtype: torch.dtype | None = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    if product_dtype in (None, torch.float32):
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=product_dtype)


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all it was given (a CPU has)."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


@contextmanager
def memory_errors(way_out: str) -> Iterator[None]:
    """Turn torch's error of a device's full memory into one line that says what helps.

    Raises:
        DeviceError: it is full.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        what, requested, *_advice = [*str(error).split(". "), ""]
        reason = f"{what}. {requested}" if requested else what
        raise DeviceError(f"{reason}; {way_out}") from None


def keep_freed_memory(up_to: int = 1 << 30) -> None:
    """Let this process keep what memory it frees, for its next step to take up again; where glibc allocates.

    By default the pages of large tensors go back to the system, which clears them before it gives them out again at
    the next step: thousands of page faults a step. The price is that the process stays as large as it once was, and a
    higher peak.

    Args:
        up_to: The bytes of the largest tensors whose memory is kept; that of larger ones goes back.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # macOS, musl, Windows
        logger.info("freed memory goes back to the system: this machine's allocator is not glibc's")
        return
    if not mallopt(M_MMAP_THRESHOLD, up_to):
        mallopt(M_MMAP_THRESHOLD, 1 << 25)  # the most that an older one takes
    mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)


class FreedMemory:
    """Freed memory that a process keeps after `keep_freed_memory`, of which what is too much goes back.

    Args:
        most: The bytes that may be kept.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._least = resident_bytes()

    def bound(self) -> None:
        """Let freed memory go back to the system, where the process has grown by more than may be kept."""
        resident = resident_bytes()
        if resident > self._least + self.most:
            give_back_freed_memory()
            self._least = resident_bytes()
        else:
            self._least = min(self._least, resident)


def resident_bytes() -> int:
    """The process's own memory; 0 where the system does not tell."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def give_back_freed_memory() -> None:
    """Let all memory that this process has freed go back to the system; where glibc allocates."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def seed_kernels(device: torch.device, seed: int) -> None:
    """Seed what kernels on a device draw from, as torch.manual_seed does, without its look at all other devices."""
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


@contextmanager
def kept_random_state() -> Iterator[None]:
    """Leave torch's global generators as they were before the `with` block: the processor's and the devices' in use."""
    of_cpu = torch.get_rng_state()
    of_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    of_mps = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
    try:
        yield
    finally:
        torch.set_rng_state(of_cpu)
        if of_gpus is not None:
            torch.cuda.set_rng_state_all(of_gpus)
        if of_mps is not None:
            torch.mps.set_rng_state(of_mps)


@contextmanager
def deterministic_kernels(device: torch.device) -> Iterator[None]:
    """Use deterministic kernels only inside the `with` block.

    Raises:
        ConfigError: the environment keeps cuBLAS from it.
    """
    workspace = os.environ.setdefault(WORKSPACE, REPEATABLE[0])
    if device.type == "cuda" and workspace not in REPEATABLE:
        raise ConfigError(
            f"train.deterministic: {WORKSPACE}={workspace} lets products differ from run to run; unset it, or set it "
            f"to {REPEATABLE[0]}"
        )
    memory: Any = torch.utils.deterministic  # whose stubs lack its setting
    before, fills = torch.are_deterministic_algorithms_enabled(), memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=device.type == "mps")
    memory.fill_uninitialized_memory = False  # nothing reads memory that it has not written
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        memory.fill_uninitialized_memory = fills
