"""Dates, times, numbers and amounts as values, independent of any language.

A quantity holds exactly what its text states: a day with or without its weekday, a time with or without seconds. It
therefore has one translation, which states as much. Its `values` decide whether it is held out: a day has the same
value with and without its weekday, and a number the same in digits and in words.
"""

import datetime
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from random import Random
from typing import ClassVar, Literal, Self, TypeVar

FIRST_YEAR, LAST_YEAR = 1, 2999
LONGEST_MONTHS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
FROM_TWO_DIGITS = range(1950, 2050)
"""The years that a numeric date may name by their last two digits."""

Currency = Literal["EUR", "USD", "GBP", "JPY", "CHF", "CAD", "FRF"]
CURRENCIES: tuple[Currency, ...] = ("EUR", "USD", "GBP", "JPY", "CHF", "CAD", "FRF")
CURRENCY_WEIGHTS = (12, 5, 2, 1, 2, 1, 2)
CURRENCIES_IN_WORDS: tuple[Currency, ...] = ("EUR", "EUR", "EUR", "USD", "USD", "CHF", "FRF")
WITH_CENTS_IN_WORDS = ("EUR", "USD", "FRF")

Period = Literal["morning", "afternoon", "evening"]
HOURS_OF_PERIOD: dict[Period, range] = {
    "morning": range(1, 12),
    "afternoon": range(1, 6),
    "evening": range(6, 12),
}
NOON, MIDNIGHT = 12, 0

Unit = Literal["year", "month", "week", "day", "hour", "minute", "second"]
LARGEST: dict[Unit, int] = {
    "year": 100,
    "month": 48,
    "week": 52,
    "day": 365,
    "hour": 100,
    "minute": 120,
    "second": 120,
}
SMALLER: dict[Unit, tuple[Unit, int]] = {
    "year": ("month", 12),
    "month": ("day", 31),
    "week": ("day", 7),
    "day": ("hour", 24),
    "hour": ("minute", 60),
    "minute": ("second", 60),
}

T = TypeVar("T")


# --- drawing ----------------------------------------------------------------------------------------------
# Of the methods of `Random`, only `random` gives the same numbers in every version of Python.


def below(rng: Random, n: int) -> int:
    """Draw a whole number from 0 to n - 1."""
    return int(rng.random() * n)


def pick(rng: Random, among: Sequence[T]) -> T:
    """Draw one of several values."""
    return among[below(rng, len(among))]


def chance(rng: Random, share: float) -> bool:
    """Return True with this probability."""
    return rng.random() < share


def weighted(rng: Random, among: Sequence[T], weights: Sequence[float]) -> T:
    """Draw one of several values with probabilities proportional to the weights."""
    left = rng.random() * sum(weights)
    for each, weight in zip(among, weights, strict=True):
        left -= weight
        if left < 0:
            return each
    return among[-1]


def whole(rng: Random, limit: int) -> int:
    """Draw a whole number from 1 to `limit` - 1, with about equal probability for each number of digits."""
    return min(int(limit ** rng.random()), limit - 1)


def decimal(rng: Random, limit: int, n_digits: int) -> Decimal:
    """Draw a number below `limit` with `n_digits` decimal places."""
    return Decimal(whole(rng, limit * 10**n_digits)).scaleb(-n_digits)


def year(rng: Random) -> int:
    """Draw a year, more often from recent centuries, otherwise any from `FIRST_YEAR` to `LAST_YEAR`."""
    first, last = weighted(rng, ((1900, 2099), (1000, LAST_YEAR), (FIRST_YEAR, 999)), (35, 45, 20))
    return first + below(rng, last - first + 1)


def plain(number: Decimal) -> str:
    """Write a number without trailing zeros, as `Quantity.values` has it."""
    return f"{number.normalize():f}"


# --- quantities -------------------------------------------------------------------------------------------


class Quantity(ABC):
    """A date, time, number or amount as a text states it."""

    weight: ClassVar[float]
    """The frequency of the kind, relative to the other kinds."""
    value: ClassVar[str]
    """The format, over its fields, of the one value that decides whether it is held out."""

    @classmethod
    @abstractmethod
    def draw(cls, rng: Random) -> Self:
        """Draw a quantity of this kind."""

    @property
    def values(self) -> tuple[str, ...]:
        """The values that decide whether it is held out, however it is written."""
        return (self.value.format_map(vars(self)),)


@dataclass(frozen=True)
class Day(Quantity):
    """A day of a year, with or without the name of its weekday."""

    year: int
    month: int
    day: int
    names_weekday: bool = False
    weight: ClassVar[float] = 26
    value: ClassVar[str] = "day {year:04}-{month:02}-{day:02}"

    @classmethod
    def draw(cls, rng: Random) -> Self:
        of_year = year(rng)
        ordinal = datetime.date(of_year, 1, 1).toordinal()
        date = datetime.date.fromordinal(
            ordinal + below(rng, datetime.date(of_year, 12, 31).toordinal() - ordinal + 1)
        )
        return cls(date.year, date.month, date.day, chance(rng, 0.25))

    @property
    def date(self) -> datetime.date:
        return datetime.date(self.year, self.month, self.day)

    @property
    def weekday(self) -> int | None:
        """The weekday, 0 for Monday; None if it is not named."""
        return self.date.weekday() if self.names_weekday else None


@dataclass(frozen=True)
class MonthDay(Quantity):
    """A day of a named month without a year, with or without a weekday."""

    month: int
    day: int
    weekday: int | None = None
    weight: ClassVar[float] = 7
    value: ClassVar[str] = "month day {month:02}-{day:02}"

    @classmethod
    def draw(cls, rng: Random) -> Self:
        month = below(rng, 12) + 1
        day = below(rng, LONGEST_MONTHS[month - 1]) + 1
        return cls(month, day, below(rng, 7) if chance(rng, 0.4) else None)


@dataclass(frozen=True)
class DayOfMonth(Quantity):
    """A day of an unnamed month, by its number, with or without a weekday."""

    day: int
    weekday: int | None = None
    weight: ClassVar[float] = 1
    value: ClassVar[str] = "day of a month {day}"

    @classmethod
    def draw(cls, rng: Random) -> Self:
        return cls(below(rng, 31) + 1, below(rng, 7) if chance(rng, 0.7) else None)


@dataclass(frozen=True)
class Month(Quantity):
    """A month with or without a year, by itself or as "in July"; years up to 31 would read as days ("April 13")."""

    month: int
    year: int | None = None
    inside: bool = False
    weight: ClassVar[float] = 4

    @classmethod
    def draw(cls, rng: Random) -> Self:
        of_year = year(rng)
        of_year += 100 if of_year <= max(LONGEST_MONTHS) else 0
        return cls(below(rng, 12) + 1, None if chance(rng, 0.05) else of_year, chance(rng, 0.2))

    @property
    def values(self) -> tuple[str, ...]:
        return (f"month {self.month:02}" if self.year is None else f"month {self.year:04}-{self.month:02}",)


@dataclass(frozen=True)
class Weekday(Quantity):
    """A day of the week; 0 is Monday."""

    weekday: int
    weight: ClassVar[float] = 0.1
    value: ClassVar[str] = "weekday {weekday}"

    @classmethod
    def draw(cls, rng: Random) -> Self:
        return cls(below(rng, 7))


@dataclass(frozen=True)
class Year(Quantity):
    """A year, as "the year 800" or "in 1789"."""

    year: int
    inside: bool = False
    weight: ClassVar[float] = 3
    value: ClassVar[str] = "year {year}"

    @classmethod
    def draw(cls, rng: Random) -> Self:
        return cls(year(rng), chance(rng, 0.6))


@dataclass(frozen=True)
class Decade(Quantity):
    """A decade, by its first year."""

    year: int
    weight: ClassVar[float] = 0.5
    value: ClassVar[str] = "decade {year}"

    @classmethod
    def draw(cls, rng: Random) -> Self:
        return cls(1500 + 10 * below(rng, 60) if chance(rng, 0.5) else 1920 + 10 * below(rng, 8))


@dataclass(frozen=True)
class Century(Quantity):
    """A century, as "19th century", "the 19th century" or "in the 19th century"."""

    number: int
    article: Literal["none", "the", "in"] = "none"
    weight: ClassVar[float] = 2
    value: ClassVar[str] = "century {number}"

    @classmethod
    def draw(cls, rng: Random) -> Self:
        return cls(below(rng, 30) + 1, pick(rng, ("none", "the", "in")))


@dataclass(frozen=True)
class Time(Quantity):
    """A time of the day on the 24-hour clock, by itself or with "at"."""

    hour: int
    minute: int = 0
    second: int | None = None
    at: bool = False
    weight: ClassVar[float] = 11

    @classmethod
    def draw(cls, rng: Random) -> Self:
        minute = pick(rng, (0, 0, 15, 30, 30, 45)) if chance(rng, 0.4) else below(rng, 60)
        second = below(rng, 60) if chance(rng, 0.08) else None
        return cls(below(rng, 24), minute, second, chance(rng, 0.2))

    @property
    def values(self) -> tuple[str, ...]:
        seconds = "" if self.second is None else f":{self.second:02}"
        return (f"time {self.hour:02}:{self.minute:02}{seconds}",)


@dataclass(frozen=True)
class SpokenTime(Quantity):
    """A time as people say it: minutes past or to an hour of the clock face, noon or midnight.

    Attributes:
        hour: The hour that is named: from 1 to 11, or `NOON` or `MIDNIGHT`, which have names of their own.
        past: minutes, a multiple of five from -25 to 30.
        period: The part of the day, if it is named.
        at: Whether it is written with "at".
    """

    hour: int
    past: int = 0
    period: Period | None = None
    at: bool = False
    weight: ClassVar[float] = 7

    @classmethod
    def draw(cls, rng: Random) -> Self:
        past = weighted(rng, (0, 15, 30, -15, 5 * below(rng, 12) - 25), (2, 2, 2, 2, 3))
        hour = below(rng, 12) if chance(rng, 0.8) else pick(rng, (NOON, MIDNIGHT))
        period: Period | None = None
        if 0 < hour < NOON and chance(rng, 0.4):
            period = pick(rng, [name for name, hours in HOURS_OF_PERIOD.items() if hour in hours])
        return cls(hour, past, period, chance(rng, 0.25))

    @property
    def values(self) -> tuple[str, ...]:
        on_face = 0 < self.hour < NOON and self.period is None
        hour = self.hour + 12 if self.period in ("afternoon", "evening") else self.hour
        minutes = (60 * hour + self.past) % (12 * 60 if on_face else 24 * 60)
        return (f"{'face' if on_face else 'time'} {minutes // 60:02}:{minutes % 60:02}",)


@dataclass(frozen=True)
class Moment(Quantity):
    """A time of a day. It has the values of both, so no held-out day or time is part of a training moment either."""

    day: Day | MonthDay
    time: Time
    weight: ClassVar[float] = 4

    @classmethod
    def draw(cls, rng: Random) -> Self:
        day = Day.draw(rng) if chance(rng, 0.7) else MonthDay.draw(rng)
        time = Time.draw(rng)
        return cls(day, Time(time.hour, time.minute))

    @property
    def values(self) -> tuple[str, ...]:
        return *self.day.values, *self.time.values


@dataclass(frozen=True)
class Number(Quantity):
    """A number in digits, with or without thousands separators, and with the decimal places of `number`."""

    number: Decimal
    grouped: bool = True
    weight: ClassVar[float] = 11

    @classmethod
    def draw(cls, rng: Random) -> Self:
        n_digits = weighted(rng, (0, 1, 2, 3), (65, 12, 17, 6))
        number = decimal(rng, 10**9 if n_digits == 0 else 10**5, n_digits)
        if chance(rng, 0.001):
            number = Decimal(0)
        elif chance(rng, 0.05):
            number = -number
        return cls(number, abs(number) < 1000 or chance(rng, 0.7))

    @property
    def values(self) -> tuple[str, ...]:
        return (f"number {plain(self.number)}",)


@dataclass(frozen=True)
class NumberInWords(Quantity):
    """A whole number in words."""

    number: int
    weight: ClassVar[float] = 8
    value: ClassVar[str] = "number {number}"

    @classmethod
    def draw(cls, rng: Random) -> Self:
        if chance(rng, 0.03):
            return cls(whole(rng, 100) * pick(rng, (10**6, 10**9)))
        return cls(0 if chance(rng, 0.002) else whole(rng, 10**6))


@dataclass(frozen=True)
class Rank(Quantity):
    """An ordinal number."""

    number: int
    value: ClassVar[str] = "ordinal {number}"

    @classmethod
    def draw(cls, rng: Random) -> Self:
        return cls(whole(rng, 10**4))


@dataclass(frozen=True)
class Ordinal(Rank):
    """An ordinal number in digits."""

    weight: ClassVar[float] = 2


@dataclass(frozen=True)
class OrdinalInWords(Rank):
    """An ordinal number in words."""

    weight: ClassVar[float] = 3


@dataclass(frozen=True)
class Percent(Quantity):
    """A percentage in digits."""

    number: Decimal
    weight: ClassVar[float] = 2.5

    @classmethod
    def draw(cls, rng: Random) -> Self:
        number = decimal(rng, 1000 if chance(rng, 0.1) else 101, weighted(rng, (0, 1, 2), (5, 3, 2)))
        return cls(-number if chance(rng, 0.05) else number)

    @property
    def values(self) -> tuple[str, ...]:
        return (f"percent {plain(self.number)}",)


@dataclass(frozen=True)
class PercentInWords(Quantity):
    """A percentage in words."""

    number: int
    weight: ClassVar[float] = 0.5
    value: ClassVar[str] = "percent {number}"

    @classmethod
    def draw(cls, rng: Random) -> Self:
        return cls(below(rng, 100) + 1)


@dataclass(frozen=True)
class Amount(Quantity):
    """An amount of money in digits, with two decimal places or none."""

    number: Decimal
    currency: Currency
    weight: ClassVar[float] = 9

    @classmethod
    def draw(cls, rng: Random) -> Self:
        currency = weighted(rng, CURRENCIES, CURRENCY_WEIGHTS)
        n_digits = 0 if currency == "JPY" or chance(rng, 0.5) else 2
        return cls(decimal(rng, 10**7 if n_digits == 0 else 10**5, n_digits), currency)

    @property
    def values(self) -> tuple[str, ...]:
        return (f"amount {plain(self.number)} {self.currency}",)


@dataclass(frozen=True)
class AmountInWords(Quantity):
    """An amount of money in words, with or without cents."""

    number: int
    currency: Currency
    cents: int = 0
    weight: ClassVar[float] = 4

    @classmethod
    def draw(cls, rng: Random) -> Self:
        currency = pick(rng, CURRENCIES_IN_WORDS)
        cents = below(rng, 99) + 1 if currency in WITH_CENTS_IN_WORDS and chance(rng, 0.2) else 0
        return cls(whole(rng, 10**5), currency, cents)

    @property
    def values(self) -> tuple[str, ...]:
        return (f"amount {plain(self.number + Decimal(self.cents).scaleb(-2))} {self.currency}",)


@dataclass(frozen=True)
class Rounded(Quantity):
    """Millions or billions as a short number in digits and a word, with or without a currency."""

    number: Decimal
    scale: Literal["million", "billion"]
    currency: Currency | None = None
    weight: ClassVar[float] = 2

    @classmethod
    def draw(cls, rng: Random) -> Self:
        currency = weighted(rng, CURRENCIES, CURRENCY_WEIGHTS) if chance(rng, 0.5) else None
        n_digits = weighted(rng, (0, 1, 2), (5, 4, 1))
        return cls(decimal(rng, 1000, n_digits), pick(rng, ("million", "billion")), currency)

    @property
    def values(self) -> tuple[str, ...]:
        number = plain(self.number.scaleb(6 if self.scale == "million" else 9))
        return (f"amount {number} {self.currency}" if self.currency else f"number {number}",)


@dataclass(frozen=True)
class Duration(Quantity):
    """A duration of one or two units; hours alone are 24 or more, because fewer would be a time of the day."""

    parts: tuple[tuple[int, Unit], ...]
    weight: ClassVar[float] = 4

    @classmethod
    def draw(cls, rng: Random) -> Self:
        unit = pick(rng, list(LARGEST))
        if unit in SMALLER and chance(rng, 0.5):
            smaller, limit = SMALLER[unit]
            return cls(((whole(rng, LARGEST[unit]), unit), (below(rng, limit - 1) + 1, smaller)))
        number = 24 + below(rng, 76) if unit == "hour" else whole(rng, LARGEST[unit])
        return cls(((number, unit),))

    @property
    def values(self) -> tuple[str, ...]:
        return (f"duration {' '.join(f'{number} {unit}' for number, unit in self.parts)}",)


@dataclass(frozen=True)
class DurationInWords(Quantity):
    """A duration of one unit, in words; never hours, because these would be a time of the day."""

    number: int
    unit: Unit
    weight: ClassVar[float] = 1
    value: ClassVar[str] = "duration {number} {unit}"

    @classmethod
    def draw(cls, rng: Random) -> Self:
        return cls(whole(rng, 101), pick(rng, [unit for unit in LARGEST if unit != "hour"]))


DAYS = (Day, MonthDay, DayOfMonth, Month, Weekday, Year, Decade, Century)
TIMES = (Time, SpokenTime, Moment)
NUMBERS = (Number, NumberInWords, Ordinal, OrdinalInWords, Percent, PercentInWords)
AMOUNTS = (Amount, AmountInWords, Rounded, Duration, DurationInWords)
QUANTITIES: tuple[type[Quantity], ...] = (*DAYS, *TIMES, *NUMBERS, *AMOUNTS)
"""Every kind; their order is part of the reproducible draw."""
