"""A machine's measured limits, to relate benchmarks to: rates of matrix products, copying and reading."""

import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from clearformer.cost.rates import measured_rate, peak_rate
from clearformer.device import processor_name, synchronize
from clearformer.threads import FixedThreads

COPIED_BYTES = 2**28  # far more than a processor's caches hold
COPIED_ON_A_GPU = 2**32  # so much that starting the kernel takes a negligible part of the time
REPEATS = 9  # of a measurement, after one that is not counted


@dataclass(frozen=True)
class Limits:
    """A device's highest rates, as upper limits for anything that runs on it.

    Attributes:
        float32: FLOP/s of large matrix products in float32.
        bfloat16: The same in bfloat16.
        copy: Bytes per second of copying a large tensor, each byte counted twice: read and written.
        read: Bytes per second of reading one (its sum).
        peak: FLOP/s in bfloat16 by the datasheet; None if the device is not in the table.
        peak_float32: The same in float32.
    """

    float32: float
    bfloat16: float
    copy: float
    read: float
    peak: float | None
    peak_float32: float | None = None


def measure_limits(device: torch.device) -> Limits:
    """Measure a device's limits, in about three seconds."""
    n_bytes = copied_bytes(device)
    large = torch.rand(n_bytes // 4, device=device)
    other = torch.empty_like(large)
    with FixedThreads():
        return Limits(
            measured_rate("float32", device).flops_per_second,
            measured_rate("bfloat16", device).flops_per_second,
            2 * n_bytes / _median_seconds(lambda: other.copy_(large), device),
            n_bytes / _median_seconds(lambda: large.sum(), device),
            peak_rate(device, "bfloat16"),
            peak_rate(device, "float32"),
        )


def copied_bytes(device: torch.device) -> int:
    """Return the bytes to copy for the measurement: at most a sixteenth of a GPU's memory, which holds them twice."""
    if device.type != "cuda":
        return COPIED_BYTES
    return min(COPIED_ON_A_GPU, torch.cuda.get_device_properties(device).total_memory // 16 // 4 * 4)


def _median_seconds(do: Callable[[], object], device: torch.device) -> float:
    times = []
    for _ in range(REPEATS + 1):
        start = time.perf_counter()
        do()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def describe(device: torch.device, limits: Limits) -> dict[str, Any]:
    """Describe the machine, the versions and the limits for a file of results."""
    return {
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        **describe_device(device),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "limits": asdict(limits),
    }


def describe_device(device: torch.device) -> dict[str, Any]:
    """Describe a device by its name; for a GPU also by its memory, its driver and torch's version of CUDA."""
    if device.type != "cuda":
        return {"device": device.type}
    return {
        "device": torch.cuda.get_device_name(device),
        "device_bytes": torch.cuda.get_device_properties(device).total_memory,
        "driver": nvidia_driver(),
        "cuda": torch.version.cuda,
    }


def nvidia_driver() -> str | None:
    """Return the version of NVIDIA's driver as nvidia-smi prints it, or None."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(printed.split()), None)
