"""The device of a run, the type of its matrix products, and compilation."""

import contextlib
import ctypes
import logging
import os
import platform
import re
import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from clearformer.errors import ConfigError, DeviceError, did_you_mean, shown
from clearformer.threads import ThreadsByLoad

logger = logging.getLogger(__name__)

# Of glibc's malloc.h, for mallopt(3).
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3

DEVICE_NAME = r"auto|cpu|mps|cuda(:\d+)?"
ALSO_CALLED = {"gpu": "cuda", "nvidia": "cuda", "metal": "mps", "apple": "mps"}

BFLOAT16_MUST_GAIN = 1.3  # a smaller gain does not justify its coarser numbers
SMALL, SMALL_REPEATS = 128, 20  # the size and number of the products that show a hopeless type
HOPELESS = 0.1  # if small products gain less, large ones are not tried
WARM_UP = 2  # first products whose time does not count
STEADY_SPREAD = 1.5  # the largest ratio of median to least time on a machine that counts as steady

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
REPEATABLE = (":4096:8", ":16:8")
"""The values of `WORKSPACE` with which cuBLAS's products are the same every time."""
ALLOW, WARN, RAISE = range(3)  # torch's modes for kernels that are not deterministic


def resolve_device(name: str | torch.device, key: str = "train.device") -> torch.device:
    """Return the device of a name; for `auto`, the first of `devices_here`.

    Args:
        name: `auto`, `cpu`, `cuda`, `mps`, or one GPU of several: `cuda:1`, in upper or lower case; or a torch.device.
        key: The setting or option that gave the name, for messages.

    Raises:
        ConfigError: there is no such device here.
    """
    available = devices_here()
    name = str(name) if isinstance(name, torch.device) else name
    if not isinstance(name, str):
        raise ConfigError(f"{key}: {shown(name)} is not a device; this machine has {', '.join(available)}")
    device = name.strip().lower()
    if device == "mps:0":  # as torch calls the only one
        device = "mps"
    if device == "auto":
        device = available[0]
    if device in available:
        if device.startswith("cuda"):
            # torch and cuBLAS read it at the process's first product, which may precede the run that needs it.
            os.environ.setdefault(WORKSPACE, REPEATABLE[0])
        return torch.device(device)
    if re.fullmatch(DEVICE_NAME, device):
        raise ConfigError(f"{key}: this machine has no {name}; it has {', '.join(available)}")
    raise ConfigError(
        f"{key}: {name!r} is not a device (this machine has {', '.join(available)}){device_hint(device)}"
    )


def device_name(device: str, key: str = "train.device") -> str:
    """Return a device's name in lower case; whether this machine has it is seen when it is used.

    Raises:
        ConfigError: it is not one; the message begins with `key`.
    """
    name = device.strip().lower()
    if not re.fullmatch(DEVICE_NAME, name):
        raise ConfigError(
            f"{key}: auto, cpu, mps, cuda or one GPU such as cuda:1; got {device!r}{device_hint(name)}"
        )
    return name


def device_hint(name: str) -> str:
    """Return `; did you mean X?` for a name that is no device, or an empty string."""
    return did_you_mean(ALSO_CALLED.get(name, name), ("auto", "cpu", "cuda", "mps"))


def devices_here() -> list[str]:
    """Return the names of this machine's devices, the best first, also `cuda:0` and so on for each GPU.

    `mps` comes last: it knows no float64, in which the lens and the measures compute, and no step is compiled there.
    """
    here = ["cpu", "mps"] if torch.backends.mps.is_available() else ["cpu"]
    if torch.cuda.is_available():
        here[:0] = ["cuda", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    return here


def resolve_dtype(name: str, device: torch.device) -> str:
    """Return the type of the matrix products; for `auto`, bfloat16 if it is fast here, else float32.

    `auto` measures once in a process, as two measurements may differ where the types are close.
    """
    if name != "auto":
        if name == "bfloat16" and lacks_bfloat16(device):
            logger.warning(
                "train.dtype=bfloat16: this processor lacks native support; products are far slower than in float32"
            )
        return name
    if device not in _of_auto:
        chosen, reason, is_certain = _faster_type(device)
        logger.info(reason)
        if not is_certain:
            return chosen
        _of_auto[device] = chosen
    return _of_auto[device]


_of_auto: dict[torch.device, str] = {}
"""The type that `auto` takes on each device, where it was measured with certainty."""


def _faster_type(device: torch.device) -> tuple[str, str, bool]:
    """Return the type, the reason in a line, and whether the machine was quiet enough to tell."""
    if device.type == "cuda":
        chosen = "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
        verb = "has" if chosen == "bfloat16" else "lacks"
        return chosen, f"matrix products in {chosen}: this GPU {verb} bfloat16", True
    gain = bfloat16_gain(device)
    chosen = "bfloat16" if gain.is_certain and gain.ratio >= BFLOAT16_MUST_GAIN else "float32"
    return chosen, f"{gain}: using {chosen}", gain.is_certain


@dataclass(frozen=True)
class Gain:
    """How much faster bfloat16 is than float32, and how steady the machine was while measuring.

    Attributes:
        ratio: The ratio of the least times, as other work on the machine only ever makes times longer.
        ratio_of_medians: The ratio of the medians, which differs on a busy machine.
        spread: The ratio of median to least time, the larger of the two types'; 1 on a steady machine.
    """

    ratio: float
    ratio_of_medians: float
    spread: float

    @property
    def is_certain(self) -> bool:
        """Whether the least times and the medians agree on which type to use."""
        return (self.ratio >= BFLOAT16_MUST_GAIN) == (self.ratio_of_medians >= BFLOAT16_MUST_GAIN)

    def __str__(self) -> str:
        text = f"bfloat16 matrix products are about {self.ratio:.2g} times as fast as float32 here"
        if not self.is_certain:
            text += f", or {self.ratio_of_medians:.2g} times; the machine is too busy to tell"
        elif self.spread > STEADY_SPREAD:
            text += f" (busy machine: timings varied by a factor of {self.spread:.2g})"
        return text


def bfloat16_gain(device: torch.device) -> Gain:
    """Measure how much faster matrix products are in bfloat16.

    Small products come first: on a processor without units for bfloat16 a large one takes a hundred times as long.
    """
    of_small = gain_of_products(device, SMALL, SMALL_REPEATS)
    return of_small if of_small.ratio < HOPELESS else gain_of_products(device, size=512, repeats=30)


@cache
def lacks_bfloat16(device: torch.device) -> bool:
    """Whether the device is a processor without units for bfloat16, judged by the time of small products."""
    return device.type == "cpu" and gain_of_products(device, SMALL, SMALL_REPEATS).ratio < HOPELESS


def gain_of_products(device: torch.device, size: int, repeats: int) -> Gain:
    """Time products of [size size] matrices in both types, alternately."""
    products = [torch.rand(size, size, device=device).to(dtype) for dtype in (torch.float32, torch.bfloat16)]
    with ThreadsByLoad():
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
    """Whether to compile: as the setting says, or for `auto` if there is a compiler and it `pays`.

    Raises:
        ConfigError: the setting is true, and there is no compiler.
    """
    compiler = _compiler_at_hand(device)
    if setting is True and not compiler:
        missing = "C++ compiler (g++ or clang++); install one"
        if device.type == "cuda":
            missing = "Triton, the compiler for this GPU; install it"
        raise ConfigError(f"train.compile: found no {missing} or set false")
    if setting != "auto":
        return bool(setting)
    if not compiler or device.type == "mps":
        logger.info("not compiling: no compiler for this device")
        return False
    if pays():
        return True
    logger.info("not compiling: the run is too short to benefit")
    return False


def _compiler_at_hand(device: torch.device) -> bool:
    if device.type == "cuda":
        from torch.utils._triton import has_triton  # torch does not import this module by itself

        return has_triton()
    return has_cpp_compiler()


@cache
def has_cpp_compiler() -> bool:
    """Whether torch finds a C++ compiler that works: macOS has names that only ask to install one."""
    if os.name == "nt":
        return shutil.which("cl") is not None
    return any(_says_its_version(name) for name in ("g++", "clang++"))


def _says_its_version(program: str) -> bool:
    try:
        return not subprocess.run([program, "--version"], capture_output=True, check=False).returncode
    except OSError:
        return False


def autocast(device: torch.device, dtype: torch.dtype | str | None) -> AbstractContextManager[object]:
    """Return a context whose matrix products are in `dtype`; None leaves them as the caller has them."""
    product_dtype: torch.dtype | None = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    if product_dtype is None or (
        product_dtype == torch.float32 and not torch.is_autocast_enabled(device.type)
    ):
        return contextlib.nullcontext()
    if product_dtype == torch.float32:
        return torch.autocast(device.type, enabled=False)
    return _autocast(device, product_dtype)


@contextmanager
def _autocast(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    try:
        with torch.autocast(device.type, dtype=dtype):
            yield
    finally:
        # torch keeps the weights that it has cast until the outermost block ends. In a caller's own block, later
        # computations would take them again although the weights have changed.
        torch.clear_autocast_cache()


def processor_name() -> str:
    """Return the processor's model, as the system names it."""
    return _of_processor("model name") or platform.processor() or platform.machine()


def instruction_sets() -> str:
    """Return what decides the code that a compiler makes for this processor: its model and its instruction sets."""
    sets = _of_processor("flags") or _of_processor("Features")
    return f"{processor_name()}; {torch.backends.cpu.get_cpu_capability()}; {sets}"


def _of_processor(field: str) -> str:
    """Return a field of the first processor in Linux's list; empty if there is none."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(field)), "")


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished its work; a CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


@contextmanager
def memory_errors(way_out: str) -> Iterator[None]:
    """Turn torch's out-of-memory error into one line that ends with `way_out`.

    Raises:
        DeviceError: the device's memory is full.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        what, requested, *_advice = [*str(error).split(". "), ""]
        reason = f"{what}. {requested}" if requested else what
        raise DeviceError(f"{reason}; {way_out}") from None


def keep_freed_memory(up_to: int = 1 << 30) -> None:
    """Keep freed memory in this process for the next step, instead of returning it to the system (glibc only).

    By default the pages of large tensors go back to the system, which clears them before it hands them out again at
    the next step: thousands of page faults a step. The price is a higher peak, and a process that does not shrink.

    Args:
        up_to: The largest tensor whose memory is kept, in bytes.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # macOS, musl, Windows
        logger.info("freed memory goes back to the system: this machine's allocator is not glibc's")
        return
    if not mallopt(M_MMAP_THRESHOLD, up_to):
        mallopt(M_MMAP_THRESHOLD, 1 << 25)  # the largest value that older versions accept
    mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)


class FreedMemory:
    """A bound on the freed memory that a process keeps after `keep_freed_memory`.

    Args:
        most: The most bytes to keep.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._least = resident_bytes()

    def bound(self) -> None:
        """Return freed memory to the system if the process has grown by more than the bound."""
        resident = resident_bytes()
        if resident > self._least + self.most:
            give_back_freed_memory()
            self._least = resident_bytes()
        else:
            self._least = min(self._least, resident)


def resident_bytes() -> int:
    """Return this process's resident memory in bytes; 0 if the system does not report it."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def give_back_freed_memory() -> None:
    """Return all memory that this process has freed to the system (glibc only)."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


RANDOM_NUMBERS = threading.RLock()
"""Held by a thread that seeds torch's global generators and draws from them: threads of one process share them."""


def seed_kernels(device: torch.device, seed: int) -> None:
    """Seed a device's random numbers like torch.manual_seed, which on a CPU would also query all other devices."""
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


@contextmanager
def kept_random_state() -> Iterator[None]:
    """Restore torch's global generators, of the CPU and of the devices in use, at the end of the `with` block."""
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


class _OfTheProcess:
    """A setting of the whole process that `with` blocks change, also those of several threads at once.

    Each block remembers what it found. One that ends before a later one leaves the setting to that one, which in the
    end sets what the first had found.
    """

    def __init__(self, get: Callable[[], Any], put: Callable[[Any], None]) -> None:
        self.get, self.put = get, put
        self.found: dict[object, Any] = {}  # by the open blocks, in the order in which they began
        self.lock = threading.Lock()

    @contextmanager
    def set_to(self, value: Any) -> Iterator[None]:
        """Change the setting inside the `with` block."""
        block = object()
        with self.lock:
            self.found[block] = self.get()
            self.put(value)
        try:
            yield
        finally:
            with self.lock:
                blocks = [*self.found]
                later = blocks[blocks.index(block) + 1 :]
                before = self.found.pop(block)
                if later:
                    self.found[later[0]] = before
                else:
                    self.put(before)


_default_dtype = _OfTheProcess(torch.get_default_dtype, torch.set_default_dtype)


@contextmanager
def torch_as_it_begins() -> Iterator[None]:
    """Make new tensors float32 on the CPU inside the `with` block, whatever defaults the caller of torch has set."""
    elsewhere = torch.get_default_device().type != "cpu"
    with _default_dtype.set_to(torch.float32), torch.device("cpu") if elsewhere else contextlib.nullcontext():
        yield


@contextmanager
def deterministic_kernels(device: torch.device, compiled: bool = False) -> Iterator[None]:
    """Use deterministic kernels inside the `with` block.

    Args:
        device: The device.
        compiled: Whether the block compiles kernels, which torch is then told too. That takes a second or two, as it
            imports the compiler.

    Raises:
        ConfigError: an environment variable keeps cuBLAS from being deterministic.
    """
    workspace = os.environ.setdefault(WORKSPACE, REPEATABLE[0])
    if device.type == "cuda" and workspace not in REPEATABLE:
        raise ConfigError(
            f"train.deterministic: {WORKSPACE}={workspace} lets products differ from run to run; unset it, or set it "
            f"to {REPEATABLE[0]}"
        )
    mode = WARN if device.type == "mps" else RAISE
    # No code here reads memory before writing it.
    with _determinism.set_to((mode, False)), _compiler_told() if compiled else contextlib.nullcontext():
        yield


@contextmanager
def _compiler_told() -> Iterator[None]:
    """Let kernels that this thread compiles inside the `with` block be deterministic too."""
    import torch._inductor.config as compiler

    before = compiler.deterministic
    compiler.deterministic = True
    try:
        yield
    finally:
        compiler.deterministic = before


def _determinism_now() -> tuple[int, bool]:
    """Return torch's mode for kernels that are not deterministic, and whether it fills memory before it is written."""
    memory: Any = torch.utils.deterministic  # whose stubs lack its setting
    return torch.get_deterministic_debug_mode(), memory.fill_uninitialized_memory


def _set_determinism(wanted: tuple[int, bool]) -> None:
    mode, fills = wanted
    memory: Any = torch.utils.deterministic
    torch.set_deterministic_debug_mode(mode)
    memory.fill_uninitialized_memory = fills


_determinism = _OfTheProcess(_determinism_now, _set_determinism)
