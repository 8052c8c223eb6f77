"""The rate at which devices compute matrix products: from datasheets, and measured on this machine."""

import re
import time
from dataclasses import dataclass
from typing import Literal

import torch

from clearformer.device import STEADY_SPREAD, synchronize
from clearformer.errors import ConfigError
from clearformer.threads import ThreadsByLoad


@dataclass(frozen=True)
class Device:
    """A device of the table.

    Attributes:
        torch_name: A pattern of torch's whole name for the device (partitions of it and other devices do not match).
        peak: FLOP/s of matrix products by dtype, the fastest first: dense (no sparsity), accumulated in float32;
            float32 is without TF32, which torch leaves off.
    """

    torch_name: str
    peak: dict[str, float]


# From the makers' datasheets: NVIDIA H100, H200, A100, L4, T4 and V100 Tensor Core GPU datasheets; NVIDIA Ada GPU
# architecture whitepaper, appendix A (RTX 4090). Where a sheet gives only a figure with sparsity, half of it. T4
# and V100 have no bfloat16 units: their 65e12 and 125e12 are for float16, which no run here uses.
DEVICES = {
    "h200": Device(r"NVIDIA H200", {"bfloat16": 989.4e12, "float32": 66.9e12}),
    "h100-sxm": Device(r"NVIDIA H100 80GB HBM3", {"bfloat16": 989.4e12, "float32": 66.9e12}),
    "h100-pcie": Device(r"NVIDIA H100 PCIe", {"bfloat16": 756e12, "float32": 51.2e12}),
    "a100": Device(r"NVIDIA A100(-(SXM4|PCIE)-\d+GB| 80GB PCIe)", {"bfloat16": 312e12, "float32": 19.5e12}),
    "rtx4090": Device(r"NVIDIA GeForce RTX 4090", {"bfloat16": 165.2e12, "float32": 82.6e12}),
    "l4": Device(r"NVIDIA L4", {"bfloat16": 121e12, "float32": 30.3e12}),
    "t4": Device(r"Tesla T4", {"float32": 8.1e12}),
    "v100": Device(r"Tesla V100-SXM2-\d+GB", {"float32": 15.7e12}),
}

# The fraction of a rate that training is assumed to reach. Of a datasheet's peak, large models reach 0.2 to 0.46
# (Chowdhery et al. 2022, table 3) and small ones less, because their products are too small to fill the device. Of the
# measured rate of large products, small models reached 0.4 to 0.8 on a CPU.
DATASHEET_UTILISATION = 0.4
MEASURED_UTILISATION = 0.6
MEASURED_FOR = 1.0  # seconds


@dataclass(frozen=True)
class Rate:
    """A device's rate of matrix products, and the fraction of it that training is assumed to reach.

    Attributes:
        device: The device's name.
        dtype: The dtype of the products.
        flops_per_second: FLOP/s.
        source: Where the rate is from.
        utilisation: The fraction of the rate that training is assumed to reach.
        spread: The median time of the measured products divided by their 0.1 quantile; 1 on a steady machine.
    """

    device: str
    dtype: str
    flops_per_second: float
    source: Literal["datasheet", "measured"]
    utilisation: float
    spread: float = 1.0

    @property
    def is_uneven(self) -> bool:
        """Whether other work slowed the machine down during the measurement, so that the rate is unreliable."""
        return self.spread > STEADY_SPREAD


def named_rate(name: str, dtype: str) -> Rate:
    """Return the datasheet's rate of a device, in upper or lower case; for its fastest dtype if `dtype` is `auto`.

    Raises:
        ConfigError: the device is not in the table, or has no rate for the dtype.
    """
    given, name = name, name.lower()
    if name not in DEVICES:
        known = ", ".join(DEVICES)
        raise ConfigError(
            f"device: no rate is known for {given!r}; use measure (this machine) or one of {known}"
        )
    peak = DEVICES[name].peak
    if dtype == "auto":
        dtype = next(iter(peak))
    if dtype not in peak:
        raise ConfigError(f"train.dtype: {name} has no {dtype} units; set train.dtype={next(iter(peak))}")
    return Rate(name, dtype, peak[dtype], "datasheet", DATASHEET_UTILISATION)


def peak_rate(device: torch.device, dtype: str) -> float | None:
    """Return the datasheet's rate of this device, in FLOP/s; None if it is not in the table."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    known = (entry.peak.get(dtype) for entry in DEVICES.values() if re.fullmatch(entry.torch_name, name))
    return next(known, None)


def measured_rate(
    dtype: str, device: torch.device, seconds: float | None = None, quantile: float = 0.5
) -> Rate:
    """Measure the rate of products of large matrices on this machine, by the median time or another quantile.

    It takes about `seconds`, by default `MEASURED_FOR`, with as many threads as cores are free. The numbers are random,
    because a GPU multiplies zeros faster.
    """
    size = 8192 if device.type == "cuda" else 1024
    a, b = (torch.randn(size, size, device=device).to(getattr(torch, dtype)) for _ in range(2))
    with ThreadsByLoad():
        torch.mm(a, b)  # the first product also loads and chooses the kernel
        synchronize(device)
        times, end = [], time.perf_counter() + (MEASURED_FOR if seconds is None else seconds)
        while time.perf_counter() < end or not times:
            start = time.perf_counter()
            torch.mm(a, b)
            synchronize(device)
            times.append(time.perf_counter() - start)
    rate = 2 * size**3 / _quantile(times, quantile)
    spread = _quantile(times, 0.5) / _quantile(times, 0.1)
    return Rate(f"this machine's {device.type}", dtype, rate, "measured", MEASURED_UTILISATION, spread)


def _quantile(times: list[float], part: float) -> float:
    return sorted(times)[int(part * len(times))]


def mfu(flops_per_token: float, tokens_per_second: float, peak: float | None) -> float | None:
    """Return the model FLOPs utilisation (Chowdhery et al. 2022, appendix B); None if the peak is not known.

    It is the fraction of a device's peak spent on the model's own products, forward and backward.
    """
    return None if peak is None else flops_per_token * tokens_per_second / peak
