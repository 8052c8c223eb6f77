"""What a machine can do at most, measured beside what is measured on it."""

import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from clearformer.train.device import synchronize
from clearformer.train.plan import measured_rate, peak_rate

COPIED_BYTES = 2**28  # far more than a processor's caches hold


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
    large = torch.rand(COPIED_BYTES // 4, device=device)
    other = torch.empty_like(large)
    return Limits(
        measured_rate("float32", device).flops_per_second,
        measured_rate("bfloat16", device).flops_per_second,
        2 * COPIED_BYTES / _median_seconds(lambda: other.copy_(large), device),
        COPIED_BYTES / _median_seconds(lambda: large.sum(), device),
        peak_rate(device, "bfloat16"),
    )


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
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "limits": asdict(limits),
    }


def processor() -> str:
    """The processor's name, where the system tells it."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
