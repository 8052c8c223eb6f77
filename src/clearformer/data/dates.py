"""Dates, times, numbers and amounts of money in one language and in another: pairs with one right answer.

The words and formats are those of CLDR (through Babel), the spelled-out numbers those of num2words. A source text
says which format its translation has: the format of a date is that of its source, the day of the week is named
where the source names it. Where two formats of one thing read the same in the source's language (in French, the
long and the medium form of a day in March), the first of them is the translation; years of two digits lie between
1950 and 2049. So a translation is right if it is the target to the letter, and exact match is the measure.

Texts are written as they are typed: CLDR's no-break and thin spaces become spaces, its apostrophe (’) becomes '.
"""

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache, partial
from typing import Any, Literal

import numpy as np
from babel import Locale
from babel.dates import format_date, format_skeleton, format_time
from babel.lists import format_list
from babel.localedata import locale_identifiers
from babel.numbers import format_currency, format_decimal, format_percent
from babel.units import format_unit
from num2words import CONVERTER_CLASSES, num2words

from clearformer.data.batches import generator_at

SEED, STREAM = 0, 3

AS_TYPED = str.maketrans({"\u00a0": " ", "\u202f": " ", "\u2009": " ", "\u2019": "'"})
CURRENCIES = ("EUR", "USD", "GBP", "JPY", "CHF", "CAD", "SEK", "INR")
WITHOUT_CENTS = ("JPY",)
DURATIONS = (
    ("week", 20, "day", 7),
    ("day", 60, "hour", 24),
    ("hour", 100, "minute", 60),
    ("minute", 100, "second", 60),
)
N_PROBES = 20

Style = Callable[[Any, str], str]
"""How a value is written in a language."""


@dataclass(frozen=True)
class Kind:
    """One sort of thing that is translated, and the ways to write it."""

    draw: Callable[[np.random.Generator], Any]
    styles: Sequence[Style]
    weight: int = 1


def language_codes() -> list[str]:
    """The languages that both Babel and num2words know, as "fr" or "pt_BR"."""
    return sorted(set(CONVERTER_CLASSES) & set(locale_identifiers()))


def make_pairs(source: str, target: str, size: int) -> list[tuple[str, str]]:
    """That many pairs in the two languages, no source text twice; the same ones every time.

    A larger size begins with the pairs of a smaller one.
    """
    rng = generator_at(SEED, STREAM, 0)
    kinds = _kinds_in(source, target)
    weights = np.array([kind.weight for kind in kinds], float)
    translations: dict[str, str] = {}
    while len(translations) < size:
        for kind in rng.choice(len(kinds), size=1000, p=weights / weights.sum()).tolist():
            pair = _pair(kinds[kind], rng, source, target)
            if pair is not None:
                translations.setdefault(*pair)
    return list(translations.items())[:size]


def _kinds_in(source: str, target: str) -> list[Kind]:
    """The kinds with those of their styles that both languages have."""
    kinds = []
    for kind in KINDS:
        rng = generator_at(SEED, STREAM, 1)
        values = [kind.draw(rng) for _ in range(N_PROBES)]
        styles = [
            style
            for style in kind.styles
            if all(_written(style, value, language) for value in values for language in (source, target))
        ]
        if styles:
            kinds.append(Kind(kind.draw, styles, kind.weight))
    return kinds


def _pair(kind: Kind, rng: np.random.Generator, source: str, target: str) -> tuple[str, str] | None:
    value = kind.draw(rng)
    written = _written(kind.styles[int(rng.integers(len(kind.styles)))], value, source)
    style = next((style for style in kind.styles if _written(style, value, source) == written), None)
    translation = style and _written(style, value, target)
    return (written, translation) if written and translation else None


def _written(style: Style, value: Any, language: str) -> str | None:
    """A value in words of a language; None where the language's rules do not reach it."""
    try:
        return style(value, language).translate(AS_TYPED).strip()
    except (ArithmeticError, AttributeError, LookupError, NotImplementedError, TypeError, ValueError):
        return None  # num2words and Babel have no one way to say so


def _whole(rng: np.random.Generator, below: int) -> int:
    """A whole number from 1, whose length is about as often this as that: of one digit, of two, and so on."""
    return min(int(below ** rng.random()), below - 1)


def _decimal(rng: np.random.Generator, below: int, max_digits: int) -> Decimal:
    n_digits = int(rng.integers(max_digits + 1))
    return Decimal(_whole(rng, below * 10**n_digits)).scaleb(-n_digits)


def _day(rng: np.random.Generator, first_year: int, last_year: int) -> datetime.date:
    first, last = datetime.date(first_year, 1, 1).toordinal(), datetime.date(last_year, 12, 31).toordinal()
    return datetime.date.fromordinal(int(rng.integers(first, last + 1)))


def _moment(rng: np.random.Generator) -> datetime.datetime:
    seconds = int(rng.integers(24 * 3600))
    return datetime.datetime.combine(_day(rng, 1900, 2099), datetime.time()) + datetime.timedelta(
        seconds=seconds
    )


def _money(rng: np.random.Generator) -> tuple[Decimal, str]:
    currency = CURRENCIES[int(rng.integers(len(CURRENCIES)))]
    digits = 0 if currency in WITHOUT_CENTS or rng.random() < 0.5 else 2
    return Decimal(_whole(rng, 10**6 * 10**digits)).scaleb(-digits), currency


def _duration(rng: np.random.Generator) -> tuple[tuple[int, str], ...]:
    large, n_large, small, n_small = DURATIONS[int(rng.integers(len(DURATIONS)))]
    both = (int(rng.integers(1, n_large)), large), (int(rng.integers(1, n_small)), small)
    return both if rng.random() < 0.7 else both[:1]


def _as_date(form: str) -> Style:
    return lambda day, language: format_date(day, form, locale=language)


def _as_skeleton(skeleton: str) -> Style:
    return lambda moment, language: format_skeleton(skeleton, moment, locale=language)


def _as_time(form: str) -> Style:
    return lambda moment, language: format_time(moment.time(), form, locale=language)


def _as_date_and_time(form: str) -> Style:
    def written(moment: datetime.datetime, language: str) -> str:
        joined = str(_locale(language).datetime_formats[form]).replace("'", "")
        time = format_time(moment.time(), "short", locale=language)
        return joined.format(time, format_date(moment, form, locale=language))

    return written


def _as_money(form: Literal["standard", "name"]) -> Style:
    return lambda money, language: format_currency(*money, locale=language, format_type=form)


def _as_duration(length: Literal["long", "short"]) -> Style:
    def written(parts: tuple[tuple[int, str], ...], language: str) -> str:
        units = [format_unit(n, f"duration-{unit}", length=length, locale=language) for n, unit in parts]
        try:
            return format_list(units, "unit", locale=language)
        except KeyError:  # Babel has half of the pattern for some languages, Spanish among them
            return format_list(units, "standard", locale=language)

    return written


def _as_words(form: str) -> Style:
    return lambda number, language: num2words(number, lang=language, to=form)


@lru_cache
def _locale(language: str) -> Locale:
    return Locale.parse(language)


KINDS = (
    Kind(
        partial(_day, first_year=1900, last_year=2099), [*map(_as_date, ("full", "long", "medium"))], weight=3
    ),
    Kind(
        partial(_day, first_year=1950, last_year=2049),
        [*map(_as_date, ("full", "long", "medium", "short"))],
        weight=5,
    ),
    Kind(_moment, [_as_skeleton("MMMMd"), _as_skeleton("yMMMM"), _as_skeleton("yQQQQ")], weight=1),
    Kind(_moment, [_as_date_and_time("full"), _as_date_and_time("long")], weight=3),
    Kind(_moment, [_as_time("short"), _as_time("medium"), _as_skeleton("Bhm")], weight=2),
    Kind(
        partial(_decimal, below=10**6, max_digits=3),
        [lambda number, language: format_decimal(number, locale=language, decimal_quantization=False)],
        weight=2,
    ),
    Kind(
        partial(_decimal, below=100, max_digits=2),
        [lambda number, language: format_percent(number / 100, locale=language, decimal_quantization=False)],
        weight=1,
    ),
    Kind(partial(_whole, below=10**6), [_as_words("cardinal"), _as_words("ordinal")], weight=7),
    Kind(_money, [_as_money("standard"), _as_money("name")], weight=5),
    Kind(_duration, [_as_duration("long"), _as_duration("short")], weight=2),
)
