"""Sizes, rates and times as text, in the unit that suits them."""

import math


def readable_bytes(n_bytes: int) -> str:
    """Bytes in the unit that leaves one to three digits before the point."""
    size, units = float(n_bytes), ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.0f} B" if units[0] == "B" else f"{size:,.1f} {units[0]}"


def readable_rate(flops_per_second: float) -> str:
    """A rate in GFLOP/s or TFLOP/s."""
    if flops_per_second >= 1e12:
        return f"{flops_per_second / 1e12:,.1f} TFLOP/s"
    return f"{flops_per_second / 1e9:,.0f} GFLOP/s"


def readable_number(number: float) -> str:
    """Three or four digits, with commas where there are many."""
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"


def readable_seconds(seconds: float) -> str:
    """A length of time to two digits or more, in the unit that suits it."""
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
