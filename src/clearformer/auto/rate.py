"""The machine's usual rate of matrix products, remembered from run to run.

A machine that does other work too may be slow for just the second of a measurement, and a model chosen for that moment
is too small for the rest of the run.
"""

import json
import logging
import math
import statistics
from contextlib import suppress
from pathlib import Path

import torch

from clearformer.cost.rates import measured_rate
from clearformer.data.cache import cache_folder
from clearformer.device import processor_name
from clearformer.errors import DiskError, count
from clearformer.files import parse_json, write_file
from clearformer.resources import free_cores
from clearformer.threads import most_threads

KEPT = 5  # rates; a machine that stays slow is taken for slow after three of them
FAST = 0.1  # the quantile of the measured products' times that a rate is taken from
SLOWER = 0.8  # of the usual rate; less is worth a remark

logger = logging.getLogger(__name__)


def usual_rate(dtype: str, device: torch.device, seconds: float) -> float:
    """Measure the rate of large matrix products, and return the median of it and of the latest ones here, in FLOP/s.

    It takes about `seconds`.

    The rates are kept in the cache, by processor, threads and dtype. Each is that of the machine's fast moments: a
    model that is too large for a slow time loses less than one that is too small for the time after it (1.498 against
    1.525 nats after 60 s, one run each).
    """
    now = measured_rate(dtype, device, seconds, quantile=FAST).flops_per_second
    file, key = cache_folder() / "rates.json", key_of_machine(dtype, device)
    kept = read_rates(file)
    kept[key] = [*kept.get(key, []), now][-KEPT:]
    with suppress(DiskError):  # the rate is known all the same
        write_file(file, json.dumps(kept, indent=1).encode())
    usual = statistics.median_high(kept[key])
    if now < SLOWER * usual:
        logger.info(
            "auto: products run at %.0f GFLOP/s at the moment; %.0f are usual here, and assumed",
            now / 1e9,
            usual / 1e9,
        )
    return usual


def key_of_machine(dtype: str, device: torch.device) -> str:
    """Name what a rate depends on."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, {dtype}"
    threads = min(torch.get_num_threads(), most_threads(), free_cores().number())
    return f"{processor_name()}, {count(threads, 'thread')}, torch {torch.__version__}, {dtype}"


def read_rates(file: Path) -> dict[str, list[float]]:
    """Read the rates of earlier measurements; those that are no rates are left out."""
    try:
        document = parse_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(document, dict):
        return {}
    return {key: rates for key, rates in document.items() if is_of_rates(rates)}


def is_of_rates(rates: object) -> bool:
    """Whether a value of the file is a list of rates."""
    return isinstance(rates, list) and all(
        isinstance(rate, int | float) and math.isfinite(rate) and rate > 0 for rate in rates
    )
