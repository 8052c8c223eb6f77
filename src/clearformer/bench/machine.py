"""A machine's limits, measured beside what runs on it: rates of matrix products, copying and reading."""

import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from clearformer.cost.rates import measured_rate, peak_rate
from clearformer.device import synchronize

COPIED_BYTES = 2**28  # far more than a processor's caches hold
COPIED_ON_A_GPU = 2**32  # so much that starting the kernel takes hardly a part of the time


@dataclass(frozen=True)
class Limits:
    """Rates that nothing on a device can pass.

    Attributes:
        float32: FLOP/s of large matrix products in float32.
        bfloat16: The same in bfloat16.
        copy: Bytes a second of copying a large tensor, each byte counted twice: read and written.
        read: Bytes a second of reading one (its sum).
        peak: FLOP/s in bfloat16 by the datasheet; None where the device is not in the table.
    """

    float32: float
    bfloat16: float
    copy: float
    read: float
    peak: float | None


def measure_limits(device: torch.device) -> Limits:
    """A device's limits, in about three seconds."""
    n_bytes = copied_bytes(device)
    large = torch.rand(n_bytes // 4, device=device)
    other = torch.empty_like(large)
    return Limits(
        measured_rate("float32", device).flops_per_second,
        measured_rate("bfloat16", device).flops_per_second,
        2 * n_bytes / _median_seconds(lambda: other.copy_(large), device),
        n_bytes / _median_seconds(lambda: large.sum(), device),
        peak_rate(device, "bfloat16"),
    )


def copied_bytes(device: torch.device) -> int:
    """How much is copied to measure the memory: a sixteenth of a GPU's at most, for it is held twice."""
    if device.type != "cuda":
        return COPIED_BYTES
    return min(COPIED_ON_A_GPU, torch.cuda.get_device_properties(device).total_memory // 16 // 4 * 4)


def _median_seconds(do: Callable[[], object], device: torch.device, repeats: int = 9) -> float:
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        do()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def describe(device: torch.device, limits: Limits) -> dict[str, Any]:
    """The machine, the versions and the limits, for a file of results."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        **describe_device(device),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "limits": asdict(limits),
    }


def describe_device(device: torch.device) -> dict[str, Any]:
    """Its name; of a GPU its memory, its driver and the CUDA that torch was built for as well."""
    if device.type != "cuda":
        return {"device": device.type}
    return {
        "device": torch.cuda.get_device_name(device),
        "device_bytes": torch.cuda.get_device_properties(device).total_memory,
        "driver": nvidia_driver(),
        "cuda": torch.version.cuda,
    }


def nvidia_driver() -> str | None:
    """The version of NVIDIA's driver, where its own program prints it."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(printed.split()), None)


def processor() -> str:
    """The processor's name, where the system has it."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
