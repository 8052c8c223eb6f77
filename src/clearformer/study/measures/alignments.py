"""Cross-attention as an alignment of dates, compared with the true alignment.

A date in two languages has one true alignment: year with year, month with month, day with day, weekday with weekday,
and within years and days in digits, digit with digit. The generator writes English dates in one form, with year, month
and day. If the French date has the same three parts in a known order, the spans of both can be found. Pairs with other
parts (a time, a day in words) are left out.

Shapes: T positions of the output, S of the source, H heads.
"""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from clearformer.data.builtin.day_names import (
    ENGLISH_MONTHS,
    ENGLISH_WEEKDAYS,
    FRENCH_MONTHS,
    FRENCH_SHORT_MONTHS,
    FRENCH_WEEKDAYS,
)
from clearformer.lens.activations import kept
from clearformer.lens.inputs import Inputs, quiet, read
from clearformer.run import Run
from clearformer.study.measures.held_out import pair_split
from clearformer.study.study import Measure, Values
from clearformer.text import Tokenizer

Span = tuple[int, int]
"""The first byte of a span of text, and the one after its last."""

Parts = dict[str, Span]
"""The spans of `year`, `month`, `day` and `weekday` in a text; `year 1` is the last digit of the year, and so on."""

NUMERIC = re.compile(r"(?P<day>\d{1,2})(?P<sign>[-/. ])(?P<month>\d{1,2})(?P=sign)(?P<year>\d+)$")
ISO = re.compile(r"(?P<year>\d{4})-(?P<month>\d{2})-(?P<day>\d{2})$")
NAMED = re.compile(r"(?P<day>\d{1,2})(?:er)? (?P<month>[^\W\d]+)\.? (?P<year>\d+)$")
ENGLISH = re.compile(r"(?P<month>[A-Z][a-z]+) (?P<day>\d{1,2}), (?P<year>\d+)$")


@dataclass(frozen=True)
class Date:
    """A date of the built-in pairs."""

    year: int
    month: int
    day: int


@dataclass(frozen=True)
class DatePair:
    """A date in two languages, with the spans of its parts in each."""

    source: str
    target: str
    source_parts: Parts
    target_parts: Parts


def date_pair(source: str, target: str) -> DatePair | None:
    """Find the parts of a French and an English date; None if either is not recognised."""
    found = ENGLISH.search(target)
    if found is None or found["month"] not in ENGLISH_MONTHS:
        return None
    date = Date(int(found["year"]), ENGLISH_MONTHS.index(found["month"]) + 1, int(found["day"]))
    source_parts = french_parts(source, date)
    if source_parts is None:
        return None
    target_parts = parts_of(target, found) | weekday_part(target, ENGLISH_WEEKDAYS)
    if ("weekday" in source_parts) != ("weekday" in target_parts):
        return None
    return DatePair(source, target, source_parts, target_parts)


def french_parts(text: str, date: Date) -> Parts | None:
    """Find the parts of a French date in digits or with the month's name; None if it is not the given date."""
    for pattern in (ISO, NUMERIC, NAMED):
        found = pattern.search(text)
        if found is not None and says(found, date):
            return parts_of(text, found) | weekday_part(text[: found.start()], FRENCH_WEEKDAYS)
    return None


def says(found: re.Match[str], date: Date) -> bool:
    """Whether a match is a given date; in a date all in digits, two digits of the year are enough."""
    year, month = int(found["year"]), found["month"]
    in_short = len(found["year"]) == 2 and year == date.year % 100 and "sign" in found.groupdict()
    same_year = year == date.year or in_short
    same_month = int(month) == date.month if month.isdigit() else is_month(month, date.month)
    return same_year and same_month and int(found["day"]) == date.day


def is_month(word: str, number: int) -> bool:
    """Whether a word is the French name of a month, in full or short, with or without accents and capitals."""
    names = (FRENCH_MONTHS[number - 1], *FRENCH_SHORT_MONTHS[number - 1])
    return plain(word) in {plain(name).rstrip(".") for name in names}


def plain(word: str) -> str:
    """Return a word without accents and capitals."""
    apart = unicodedata.normalize("NFD", word.lower())
    return "".join(each for each in apart if not unicodedata.combining(each))


def parts_of(text: str, found: re.Match[str]) -> Parts:
    """Return the spans of a match's parts, and of the digits of its year and day, counted from the last."""
    parts = {name: byte_span(text, *found.span(name)) for name in ("year", "month", "day")}
    for name in ("year", "day"):
        start, stop = parts[name]
        parts |= {f"{name} {n + 1}": (stop - n - 1, stop - n) for n in range(stop - start)}
    return parts


def weekday_part(text: str, names: tuple[str, ...]) -> Parts:
    """Find the span of a weekday in a text, written in full or by its first three letters."""
    for name in names:
        if (found := re.search(rf"\b{name[:3]}\w*", text, re.IGNORECASE)) is not None:
            return {"weekday": byte_span(text, *found.span())}
    return {}


def byte_span(text: str, start: int, stop: int) -> Span:
    """Convert a span of characters to one of UTF-8 bytes."""
    first = len(text[:start].encode())
    return first, first + len(text[start:stop].encode())


# --- tokens -----------------------------------------------------------------------------------------------


def token_spans(tokenizer: Tokenizer, tokens: list[int]) -> list[Span]:
    """Return the span of bytes of each token; that of a special token is empty."""
    spans, place = [], 0
    for token in tokens:
        size = len(tokenizer.token_bytes(token))
        spans.append((place, place + size))
        place += size
    return spans


def overlap(one: Span, other: Span) -> bool:
    """Whether two spans share a byte."""
    return max(one[0], other[0]) < min(one[1], other[1])


def truth(pair: DatePair, written: list[Span], read_: list[Span], digits: bool) -> Bool[np.ndarray, "T S"]:
    """Return which source tokens each output token is aligned with; rows without an alignment are all False.

    Args:
        pair: The date.
        written: The spans of the output's tokens.
        read_: The spans of the source's tokens.
        digits: Whether to align single digits of year and day, instead of whole parts.
    """
    true = np.zeros((len(written), len(read_)), dtype=bool)
    for name in pair.target_parts.keys() & pair.source_parts.keys():
        if (" " in name) == digits:
            rows = [overlap(span, pair.target_parts[name]) for span in written]
            columns = [overlap(span, pair.source_parts[name]) for span in read_]
            true |= np.outer(rows, columns)
    return true


@dataclass(frozen=True)
class Aligned:
    """The cross-attention weights of all heads on a date, and its true alignment.

    Attributes:
        weights: The weights of every head of every layer, [LH T S].
        parts: Which source tokens each output token is aligned with, by parts of the date.
        digits: The same for single digits.
    """

    weights: Float[np.ndarray, "LH T S"]
    parts: Bool[np.ndarray, "T S"]
    digits: Bool[np.ndarray, "T S"]


def aligned(run: Run, pair: DatePair) -> Aligned:
    """Return a run's cross-attention on a pair, given both texts, and the true alignment."""
    inputs = read(run, pair.source, pair.target)
    assert inputs.source is not None
    read_ = token_spans(run.tokenizer, inputs.source[0].tolist())
    written = token_spans(run.tokenizer, [token for token in inputs.predicted if token is not None])
    parts, digits = (truth(pair, written, read_, single) for single in (False, True))
    return Aligned(cross_attention(inputs)[:, : len(written)], parts, digits)


def cross_attention(inputs: Inputs) -> Float[np.ndarray, "LH T S"]:
    """Return the cross-attention weights of all heads, layer by layer."""
    with quiet(inputs.model):
        found = kept(inputs, lambda name: name.endswith("cross_attn.hook_pattern"))
        return np.concatenate([found[name][0].float().cpu().numpy() for name in found])


def hits(weights: Float[np.ndarray, "LH T S"], true: Bool[np.ndarray, "T S"]) -> Float[np.ndarray, "LH R"]:
    """Return 1 where a head's largest weight is on a true token, for each row that has a true alignment."""
    rows = true.any(1)
    most = weights[:, rows].argmax(-1)  # [LH R]
    return true[rows][np.arange(rows.sum()), most].astype(float)


# --- the measure ------------------------------------------------------------------------------------------


def date_alignment(run: Run, dates: int = 300) -> Values:
    """Measure how often the largest cross-attention weight is on an aligned source token, on held-out dates.

    The best head is selected on every second date and measured on the others, as is the mean of all heads. The model
    is given the true outputs, so that translation errors do not count as errors of alignment.

    Returns:
        n_dates: The number of measured dates.
        aligned_by_best_head: The share of tokens of weekday, day, month and year whose own part the best head reads.
        aligned_by_mean: The same for the mean of all heads of all layers.
        aligned_by_chance: The same for a source token chosen at random.
        digits_by_best_head: The share of digits of day and year whose own digit the best head reads.
        digits_by_chance: The same for a source token chosen at random.
        best_head: The layer and head, counted from 0.
        aligned_by_head: The share for every head, layer by layer, on the dates used for selection.
    """
    found = [aligned(run, pair) for pair in held_out_dates(run, dates)]
    choose, measured = found[::2], found[1::2]
    by_head = np.concatenate([hits(each.weights, each.parts) for each in choose], axis=1).mean(1)
    best = int(by_head.argmax())
    n_heads = len(by_head) // run.model.config.decoder_layers
    return {
        "n_dates": len(measured),
        "aligned_by_best_head": share(measured, lambda each: hits(each.weights[[best]], each.parts)),
        "aligned_by_mean": share(
            measured, lambda each: hits(each.weights.mean(0, keepdims=True), each.parts)
        ),
        "aligned_by_chance": share(measured, lambda each: chance(each.parts)),
        "digits_by_best_head": share(measured, lambda each: hits(each.weights[[best]], each.digits)),
        "digits_by_chance": share(measured, lambda each: chance(each.digits)),
        "best_head": list(divmod(best, n_heads)),
        "aligned_by_head": by_head.reshape(-1, n_heads).round(4).tolist(),
    }


def held_out_dates(run: Run, n: int) -> list[DatePair]:
    """Return the first n held-out pairs that are dates with a known alignment."""
    split = pair_split(run)
    pairs = map(date_pair, split.source_texts, split.target_texts)
    return [pair for pair in pairs if pair is not None][:n]


def share(measured: list[Aligned], of: Callable[[Aligned], Float[np.ndarray, "*any"]]) -> float | None:
    """Return the mean over all rows of all dates; None if there are none."""
    values = np.concatenate([of(each).ravel() for each in measured]) if measured else np.empty(0)
    return float(values.mean()) if len(values) else None


def chance(true: Bool[np.ndarray, "T S"]) -> Float[np.ndarray, " R"]:
    """Return the share of source tokens that are true, for each row that has a true alignment."""
    return true[true.any(1)].mean(1)


DATE_ALIGNMENT = Measure(date_alignment)
