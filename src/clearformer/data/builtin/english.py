"""Quantities written in English: one form for each kind, that of the United States.

    July 14, 1789            Monday, July 14, 1789    July 14             Monday, July 14      the 14th
    July 1789                in July 1789             the year 800        in 1789              Monday the 14th
    the 1960s                19th century             the 19th century    in the 19th century
    2:30 PM                  2:30:15 PM               at 2:30 PM          July 14, 1789 at 2:30 PM
    half past two            ten to noon              twenty past eight in the evening         two o'clock
    1,789                    1789                     3.14                seventeen thousand twenty-one
    23rd                     twenty-third             12.5%               twelve percent
    €12.50                   $3,000,000               CHF 12              12 francs            €2.5 billion
    five euros               five euros and fifty cents                   3 million
    2 weeks and 3 days       three days

Days, months and times are CLDR's long forms. A number without a thousands separator in the source has none in English
either, because it may be a year.
"""

from decimal import Decimal
from random import Random

from num2words import num2words

from clearformer.data.builtin import quantities as q
from clearformer.data.builtin.cldr import Language
from clearformer.data.builtin.day_names import ENGLISH_MONTHS as MONTHS
from clearformer.data.builtin.day_names import ENGLISH_WEEKDAYS as WEEKDAYS
from clearformer.data.builtin.quantities import chance

SIGNS: dict[q.Currency, str] = {"EUR": "€", "USD": "$", "GBP": "£", "JPY": "¥", "CHF": "CHF ", "CAD": "CA$"}
IN_WORDS: dict[q.Currency, tuple[str, str]] = {
    "EUR": ("euro", "euros"),
    "USD": ("dollar", "dollars"),
    "CHF": ("Swiss franc", "Swiss francs"),
    "FRF": ("franc", "francs"),
}
CENTS: dict[q.Currency, tuple[str, str]] = {
    "EUR": ("cent", "cents"),
    "USD": ("cent", "cents"),
    "FRF": ("centime", "centimes"),
}
MINUTES = {5: "five", 10: "ten", 15: "quarter", 20: "twenty", 25: "twenty-five", 30: "half"}


class English(Language):
    """English in the forms of this module's table; typed text also has CLDR's forms."""

    def __init__(self) -> None:
        super().__init__("en")

    def written(self, quantity: q.Quantity) -> str:
        return text_of(quantity)

    def typed(self, quantity: q.Quantity, rng: Random) -> str:
        as_in_cldr = super().typed(quantity, rng) if chance(rng, 0.5) else None
        return as_in_cldr or text_of(quantity)


def text_of(quantity: q.Quantity) -> str:
    """Write a quantity in English."""
    match quantity:
        case q.Day():
            return f"{_weekday(quantity.weekday)}{MONTHS[quantity.month - 1]} {quantity.day}, {quantity.year}"
        case q.MonthDay():
            return f"{_weekday(quantity.weekday)}{MONTHS[quantity.month - 1]} {quantity.day}"
        case q.DayOfMonth():
            weekday = "" if quantity.weekday is None else f"{WEEKDAYS[quantity.weekday]} "
            return f"{weekday}the {ordinal(quantity.day)}"
        case q.Month():
            year = "" if quantity.year is None else f" {quantity.year}"
            return f"{'in ' if quantity.inside else ''}{MONTHS[quantity.month - 1]}{year}"
        case q.Weekday():
            return WEEKDAYS[quantity.weekday]
        case q.Year():
            return f"in {quantity.year}" if quantity.inside else f"the year {quantity.year}"
        case q.Decade():
            return f"the {quantity.year}s"
        case q.Century():
            return f"{_ARTICLES[quantity.article]}{ordinal(quantity.number)} century"
        case q.Time():
            seconds = "" if quantity.second is None else f":{quantity.second:02}"
            half = "AM" if quantity.hour < 12 else "PM"
            time = f"{(quantity.hour - 1) % 12 + 1}:{quantity.minute:02}{seconds} {half}"
            return f"{'at ' if quantity.at else ''}{time}"
        case q.SpokenTime():
            return _spoken(quantity)
        case q.Moment():
            return f"{text_of(quantity.day)} at {text_of(quantity.time)}"
        case _:
            return _number_text(quantity)


_ARTICLES = {"none": "", "the": "the ", "in": "in the "}


def _weekday(weekday: int | None) -> str:
    return "" if weekday is None else f"{WEEKDAYS[weekday]}, "


def _spoken(time: q.SpokenTime) -> str:
    named = {q.NOON: "noon", q.MIDNIGHT: "midnight"}.get(time.hour)
    if time.past:
        side = "past" if time.past > 0 else "to"
        text = f"{MINUTES[abs(time.past)]} {side} {named or words(time.hour)}"
    else:
        text = named or f"{words(time.hour)} o'clock"
    period = "" if time.period is None else f" in the {time.period}"
    return f"{'at ' if time.at else ''}{text}{period}"


def _number_text(quantity: q.Quantity) -> str:
    match quantity:
        case q.Number():
            return f"{quantity.number:,}" if quantity.grouped else f"{quantity.number}"
        case q.NumberInWords():
            return words(quantity.number)
        case q.Ordinal():
            return ordinal(quantity.number)
        case q.OrdinalInWords():
            return ordinal_words(quantity.number)
        case q.Percent():
            return f"{quantity.number}%"
        case q.PercentInWords():
            return f"{words(quantity.number)} percent"
        case q.Amount():
            return _amount(f"{quantity.number:,}", quantity.number, quantity.currency)
        case q.AmountInWords():
            return _amount_in_words(quantity)
        case q.Rounded():
            text = f"{quantity.number} {quantity.scale}"
            return _amount(text, Decimal(2), quantity.currency) if quantity.currency else text
        case q.Duration():
            return " and ".join(f"{number} {unit}{_s(number)}" for number, unit in quantity.parts)
        case q.DurationInWords():
            return f"{words(quantity.number)} {quantity.unit}{_s(quantity.number)}"
        case _:
            raise TypeError(f"no English for {quantity}")


def _amount(text: str, number: Decimal, currency: q.Currency) -> str:
    return f"{SIGNS[currency]}{text}" if currency in SIGNS else f"{text} {IN_WORDS[currency][number != 1]}"


def _amount_in_words(amount: q.AmountInWords) -> str:
    text = f"{words(amount.number)} {IN_WORDS[amount.currency][amount.number != 1]}"
    if not amount.cents:
        return text
    return f"{text} and {words(amount.cents)} {CENTS[amount.currency][amount.cents != 1]}"


def _s(number: int) -> str:
    return "" if number == 1 else "s"


def words(number: int) -> str:
    """Write a whole number of at least 0 in words: "one thousand seven hundred eighty-nine"."""
    return _american(num2words(number, lang="en"))


def ordinal(number: int) -> str:
    """Write an ordinal number in digits: "23rd"."""
    return str(num2words(number, lang="en", to="ordinal_num"))


def ordinal_words(number: int) -> str:
    """Write an ordinal number in words: "twenty-third"."""
    return _american(num2words(number, lang="en", to="ordinal"))


def _american(text: str) -> str:
    """Remove the comma and the "and" of British English from a number in words."""
    return text.replace(",", "").replace(" and ", " ")
