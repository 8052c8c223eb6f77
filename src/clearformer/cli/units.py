"""Formatting of sizes, rates and times in a fitting unit."""

import math


def readable_bytes(n_bytes: int) -> str:
    """Format bytes in the largest binary unit that leaves a number of at least 1."""
    size, units = float(n_bytes), ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.0f} B" if units[0] == "B" else f"{size:,.1f} {units[0]}"


def readable_rate(flops_per_second: float) -> str:
    """Format a rate in GFLOP/s or TFLOP/s."""
    if flops_per_second >= 1e12:
        return f"{flops_per_second / 1e12:,.1f} TFLOP/s"
    return f"{flops_per_second / 1e9:,.0f} GFLOP/s"


def readable_number(number: float) -> str:
    """Format a number with three digits, or from 1,000 on as a whole number with commas."""
    return f"{number:,.0f}" if abs(number) >= 999.5 else f"{number:.3g}"  # which rounds to 1,000


def readable_seconds(seconds: float) -> str:
    """Format a duration with two digits or more, in a fitting unit."""
    units = (
        ("ms", 1e-3, 1),
        ("s", 1, 120),
        ("min", 60, 7200),
        ("hours", 3600, 172_800),
        ("days", 86_400, math.inf),
    )
    size, unit = next((size, unit) for unit, size, limit in units if seconds < limit)
    number = seconds / size
    return f"{number:,.0f} {unit}" if number >= 10 else f"{number:.2g} {unit}"
