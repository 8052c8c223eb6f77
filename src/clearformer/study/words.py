"""Names, units and numbers as readable text."""

import math

from clearformer.study.outcomes import Estimate
from clearformer.training.objectives import NATS_A_TOKEN

NAMES = {
    "train_loss": ("training loss", NATS_A_TOKEN),
    "val_loss": ("held-out loss", NATS_A_TOKEN),
    "train_perplexity": ("training perplexity", ""),
    "perplexity": ("held-out perplexity", ""),
    "loss": ("loss", NATS_A_TOKEN),
    "parameters": ("parameters", ""),
    "bits_per_token": ("bits a token", ""),
    "bits_per_char": ("bits a character", ""),
    "bits_per_byte": ("bits a byte", ""),
    "bits_per_byte_at_least": ("bits a byte, at least", ""),
    "bleu": ("BLEU", ""),
    "chrf": ("chrF", ""),
    "diverged_at": ("diverged at step", ""),
    "self_weight_first": ("weight on itself before training", ""),
    "self_weight": ("weight on itself after training", ""),
    "largest_weight": ("largest weight after training", ""),
    "equal_self_weight": ("weight on itself if all weights were equal", ""),
    "known_words": ("words that the training text has", "share"),
    "data_difference": ("difference in the text", "total variation"),
    "model_difference": ("difference in the model", "total variation"),
    "entropy_rate": ("entropy rate", "nats a symbol"),
    "source_loss": ("the source's own loss", "nats a symbol"),
    "excess": ("held-out loss minus the source's own", "nats a symbol"),
    "growth": ("last variance over the first", ""),
    "written": ("variance that a block adds", ""),
    "loss_whole": ("held-out loss of the whole model", NATS_A_TOKEN),
    "uniform_loss": ("loss of equal probabilities", NATS_A_TOKEN),
    **{f"increase_layer_{n}": (f"increase without layer {n}", NATS_A_TOKEN) for n in range(4)},
    **{
        f"loss_at_{n}x": (f"held-out loss at {n} times the training length", NATS_A_TOKEN)
        for n in range(2, 5)
    },
    "loss_at_1x": ("held-out loss within the training length", NATS_A_TOKEN),
    "gain_over_unigrams": ("gain over token frequencies", NATS_A_TOKEN),
    "last_over_first": ("last gradient over the first", ""),
    "largest_over_smallest": ("largest gradient over the smallest", ""),
    "cache_bytes": ("key-value cache of a sequence", "bytes"),
    "gigaflops_per_megabyte": ("training compute", "GFLOPs a megabyte of held-out text"),
    "megabytes": ("memory", "MiB"),
    **{
        f"megabytes_{form}": (f"memory, {form}", "MiB")
        for form in ("explicit", "fused", "windowed", "linear")
    },
    "greedy_repetition": ("repetition, greedy minus temperature 1", ""),
    "greedy_logprob": ("log-probability, greedy minus temperature 1", NATS_A_TOKEN),
    "loss_by_position": ("held-out loss", NATS_A_TOKEN),
    "gradient_by_layer": ("norm of the gradient", ""),
}
SIGNIFICANT, MOST_SIGNIFICANT = 4, 6
NONE, MINUS, TIMES = "\N{EN DASH}", "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}"
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def name_of(value: str) -> str:
    """Return the readable name of a measured value, without its unit."""
    return NAMES[value][0] if value in NAMES else value.replace("_", " ")


def unit_of(value: str) -> str:
    """Return the unit of a measured value; empty if it has none or the name implies it."""
    return NAMES[value][1] if value in NAMES else ""


def named(value: str, unit: str = "", *, loss_unit: str = NATS_A_TOKEN) -> str:
    """Return the name of a measured value with its unit: `training loss, nats a token`.

    Args:
        value: The value.
        unit: Its unit, where it is not the usual one.
        loss_unit: The unit of the study's losses.
    """
    unit = unit or unit_of(value)
    unit = loss_unit if unit == NATS_A_TOKEN else unit
    return f"{name_of(value)}, {unit}" if unit else name_of(value)


def number(value: float | None, decimals: int | None = None) -> str:
    """Format a number: whole ones in full, others with four significant digits, extreme ones as powers of ten."""
    if value is None or not math.isfinite(value):
        return NONE
    if decimals is not None:
        return minus(f"{value:,.{decimals}f}")
    if float(value).is_integer() and abs(value) < 1e15:
        return minus(f"{int(value):,}")
    size = abs(value)
    if size >= 1e7 or size < 1e-4:
        return power_of_ten(value)
    return minus(f"{value:,.{decimals_of(size, SIGNIFICANT)}f}")


def as_written(value: float) -> str:
    """Format a published number with the digits that the lecture gives."""
    if float(value).is_integer():
        return minus(f"{int(value):,}")
    return power_of_ten(value) if is_far(abs(value)) else minus(f"{value:,.10g}")


def estimate_text(estimate: Estimate | None) -> str:
    """Format a mean and half of its interval's width, with digits to match the interval: `1.632 ± 0.014`."""
    if estimate is None:
        return NONE
    half = estimate.half_width
    if not half or not math.isfinite(half):
        return number(estimate.mean)
    if is_far(size := max(abs(estimate.mean), half)):
        exponent = math.floor(math.log10(size))
        mean, half = estimate.mean / 10**exponent, half / 10**exponent
        decimals = min(decimals_of(half, 2), 3)
        return f"({number(mean, decimals)} ± {number(half, decimals)}) {times_ten(exponent)}"
    decimals = max(0, min(decimals_of(half, 2), most_decimals(abs(estimate.mean))))
    return f"{number(estimate.mean, decimals)} ± {number(half, decimals)}"


def interval_text(estimate: Estimate | None) -> str:
    """Format the ends of a 95% interval: `1.618 to 1.646`; a dash for a single seed.

    An end that is not 0 is not shown as 0, beside which a verdict would look wrong.
    """
    if estimate is None or estimate.low is None or estimate.high is None:
        return NONE
    if estimate.low == estimate.high:
        return "all equal"
    if is_far(max(abs(estimate.low), abs(estimate.high))):
        return f"{power_of_ten(estimate.low)} to {power_of_ten(estimate.high)}"
    largest = max(abs(estimate.low), abs(estimate.high))
    decimals = max(0, min(decimals_of((estimate.high - estimate.low) / 2, 2), most_decimals(largest)))
    ends = (
        power_of_ten(end) if end and not round(end, decimals) else number(end, decimals)
        for end in (estimate.low, estimate.high)
    )
    return " to ".join(ends)


def mean_text(estimate: Estimate | None) -> str:
    """Format a mean, with digits to match its interval."""
    if estimate is not None and is_far(max(abs(estimate.mean), estimate.half_width or 0.0)):
        return number(estimate.mean)  # alone it has no power of ten in common with its interval
    return estimate_text(estimate).split(" ± ")[0].lstrip("(")


def signed_text(estimate: Estimate | None) -> str:
    """Format a mean difference, with its sign."""
    text = mean_text(estimate)
    return f"+{text}" if estimate is not None and estimate.mean > 0 else text


def is_far(size: float) -> bool:
    """Whether a number is large or small enough to be written as a power of ten."""
    return size != 0 and (size >= 1e9 or size < 1e-4)


def decimals_of(size: float, significant: int) -> int:
    """Return the decimals that show a number of size `size` with so many significant digits."""
    if size == 0:
        return 0
    rounded = float(f"{size:.{significant - 1}e}")  # 0.0999 has the decimals of 0.10
    return max(0, significant - 1 - math.floor(math.log10(rounded)))


def most_decimals(size: float) -> int:
    """Return the decimals beyond which a number of size `size` is not shown, however narrow its interval is."""
    return min(9, decimals_of(size, MOST_SIGNIFICANT)) if size else 9


def power_of_ten(value: float) -> str:
    """Format a number as `1.2 × 10⁻⁹`."""
    if value == 0:
        return "0"
    mantissa, exponent = f"{value:.2e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    return f"{minus(mantissa)} {times_ten(int(exponent))}"


def times_ten(exponent: int) -> str:
    """Format a power as `× 10⁻⁹`."""
    return f"{TIMES} 10{str(exponent).translate(SUPERSCRIPTS)}"


def minus(text: str) -> str:
    """Replace hyphens in a number's text by minus signs, which are as wide as a plus."""
    return text.replace("-", MINUS)
