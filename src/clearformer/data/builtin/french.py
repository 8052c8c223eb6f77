"""Quantities as French people type them: with and without accents, capitals, weekdays, abbreviations and thin spaces.

Each form has a fixed meaning, and so one translation:

- A numeric date is day, month, year, or, with the year first, an ISO date. A year of two digits there lies between
  1950 and 2049. A year after a month's name is literal: "24 août 79" is in the first century.
- "14 heures", up to 23, is a time of the day, and so is "14 heures 30"; more hours, or hours with the word "minutes",
  are a duration. In words, or with "et quart", "et demie", "moins le quart", the hours are those of a clock face.
- "du matin", "de l'après-midi" and "du soir" name the half of the day.
- "les années 60" are in the twentieth century.
"""

import unicodedata
from collections.abc import Sequence
from decimal import Decimal
from random import Random

from clearformer.data.builtin import quantities as q
from clearformer.data.builtin.cldr import Language
from clearformer.data.builtin.day_names import FRENCH_MONTHS as MONTHS
from clearformer.data.builtin.day_names import FRENCH_SHORT_MONTHS as SHORT_MONTHS
from clearformer.data.builtin.day_names import FRENCH_WEEKDAYS as WEEKDAYS
from clearformer.data.builtin.quantities import chance, pick

SMALL = (
    *("zéro", "un", "deux", "trois", "quatre", "cinq", "six", "sept", "huit", "neuf", "dix", "onze", "douze"),
    *("treize", "quatorze", "quinze", "seize", "dix-sept", "dix-huit", "dix-neuf"),
)
TENS = ("", "", "vingt", "trente", "quarante", "cinquante", "soixante", "septante", "quatre-vingt", "nonante")
BY_SCORES = {7: 6, 9: 8}  # in France, 70 is sixty and ten, 90 four score and ten
SCALES = ((10**9, "milliard"), (10**6, "million"))
IRREGULAR = {"cinq": "cinquième", "neuf": "neuvième"}
ROMAN = ((10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I"))

SIGNS: dict[q.Currency, Sequence[str]] = {
    "EUR": ("€", "€", "€", "EUR"),
    "USD": ("$", "$", "$", "USD"),
    "GBP": ("£", "£", "GBP"),
    "JPY": ("¥", "JPY"),
    "CHF": ("CHF",),
    "CAD": ("$ CA", "CAD"),
    "FRF": ("F",),
}
NAMES: dict[q.Currency, tuple[str, str]] = {
    "EUR": ("euro", "euros"),
    "USD": ("dollar", "dollars"),
    "GBP": ("livre sterling", "livres sterling"),
    "JPY": ("yen", "yens"),
    "CHF": ("franc suisse", "francs suisses"),
    "CAD": ("dollar canadien", "dollars canadiens"),
    "FRF": ("franc", "francs"),
}
CENTS: dict[q.Currency, tuple[str, str]] = {
    "EUR": ("centime", "centimes"),
    "USD": ("cent", "cents"),
    "FRF": ("centime", "centimes"),
}
UNITS: dict[q.Unit, tuple[str, str, Sequence[str]]] = {
    "year": ("an", "ans", ()),
    "month": ("mois", "mois", ()),
    "week": ("semaine", "semaines", ("sem.",)),
    "day": ("jour", "jours", ("j",)),
    "hour": ("heure", "heures", ("h",)),
    "minute": ("minute", "minutes", ("min", "mn")),
    "second": ("seconde", "secondes", ("s", "sec")),
}
PAST = {
    **{
        -25: "moins vingt-cinq",
        -20: "moins vingt",
        -15: "moins le quart",
        -10: "moins dix",
        -5: "moins cinq",
    },
    **{5: "cinq", 10: "dix", 15: "et quart", 20: "vingt", 25: "vingt-cinq", 30: "et demie"},
}
PERIODS: dict[q.Period, str] = {
    "morning": "du matin",
    "afternoon": "de l'après-midi",
    "evening": "du soir",
}

CALLED_YEAR = ("l'an", "l'année")
OF, OF_VOWEL = "de ", "d'"
THIN_SPACE, NO_BREAK_SPACE = "\u202f", "\u00a0"

IN_CAPITALS, CAPITAL_FIRST, WITHOUT_ACCENTS, CURLY_APOSTROPHE = 0.01, 0.12, 0.06, 0.15
"""The share of texts that are typed in each of these ways."""


class French(Language):
    """French: any of this module's forms in typed text, and the first of each in a translation."""

    def __init__(self) -> None:
        super().__init__("fr")

    def written(self, quantity: q.Quantity) -> str:
        return _Typist(None).text(quantity)

    def typed(self, quantity: q.Quantity, rng: Random) -> str:
        return _as_typed(_Typist(rng).text(quantity), rng)


def _as_typed(text: str, rng: Random) -> str:
    """Vary a text's accents, apostrophes and capitals at random, as people do who type in a hurry."""
    if chance(rng, WITHOUT_ACCENTS):
        text = without_accents(text)
    if "'" in text and chance(rng, CURLY_APOSTROPHE):
        text = text.replace("'", "\u2019")
    if chance(rng, IN_CAPITALS):
        return text.upper()
    return text[0].upper() + text[1:] if chance(rng, CAPITAL_FIRST) else text


def without_accents(text: str) -> str:
    """Remove the accents of letters; currency signs stay."""
    return "".join(each for each in unicodedata.normalize("NFD", text) if not unicodedata.combining(each))


class _Typist:
    """Writer of quantities.

    Args:
        rng: chooses among the forms; if None, the first and plainest form is used.
    """

    def __init__(self, rng: Random | None) -> None:
        self._rng = rng

    def _sometimes(self, share: float) -> bool:
        return self._rng is not None and chance(self._rng, share)

    def _one_of(self, *among: str) -> str:
        return among[0] if self._rng is None else pick(self._rng, among)

    def text(self, quantity: q.Quantity) -> str:
        match quantity:
            case q.Day():
                return self._day(quantity)
            case q.MonthDay():
                return self._month_day(quantity)
            case q.DayOfMonth(weekday=None):
                return f"le {self._number_of_day(quantity.day)}"
            case q.DayOfMonth(weekday=int(weekday)):
                return f"{self._weekday(weekday)} {self._number_of_day(quantity.day)}"
            case q.Month():
                return self._month(quantity)
            case q.Weekday():
                return WEEKDAYS[quantity.weekday]
            case q.Year(inside=True):
                return f"en {quantity.year}"
            case q.Year():
                return f"{self._one_of(*CALLED_YEAR)} {quantity.year}"
            case q.Decade():
                in_short = 1920 <= quantity.year < 2000 and self._sometimes(0.5)
                return f"les années {quantity.year % 100 if in_short else quantity.year}"
            case q.Century():
                return self._century(quantity)
            case q.Time():
                return f"{'à ' if quantity.at else ''}{self._time(quantity)}"
            case q.SpokenTime():
                return f"{'à ' if quantity.at else ''}{self._spoken(quantity)}"
            case q.Moment():
                return self._moment(quantity)
            case _:
                return self._of_numbers(quantity)

    # --- days -------------------------------------------------------------------------------------------

    def _day(self, day: q.Day) -> str:
        if self._sometimes(0.1 if day.names_weekday else 0.45):
            numeric = self._numeric_day(day)
            if day.weekday is not None:
                return f"{WEEKDAYS[day.weekday]} {numeric}"
            return f"le {numeric}" if self._sometimes(0.12) else numeric
        return f"{self._named_day(day.month, day.day, day.weekday)} {day.year}"

    def _month_day(self, day: q.MonthDay) -> str:
        if self._sometimes(0.12):
            padded = f"{day.day:02}/{day.month:02}"
            numeric = self._one_of(padded, padded, f"{day.day}/{day.month}")
            if day.weekday is not None:
                return f"{WEEKDAYS[day.weekday]} {numeric}"
            return f"le {numeric}" if self._sometimes(0.5) else numeric
        return self._named_day(day.month, day.day, day.weekday)

    def _named_day(self, month: int, day: int, weekday: int | None) -> str:
        text = f"{self._number_of_day(day)} {self._name_of_month(month)}"
        if weekday is None:
            return f"le {text}" if self._sometimes(0.35) else text
        name = self._weekday(weekday)
        if self._sometimes(0.05):
            return f"{name}{self._one_of(', ', ' le ')}{text}"
        return f"le {name} {text}" if self._sometimes(0.2) else f"{name} {text}"

    def _number_of_day(self, day: int) -> str:
        if self._sometimes(0.04):
            return "premier" if day == 1 else self._words(day)
        if self._sometimes(0.04):
            return f"{day:02}"
        return "1er" if day == 1 and not self._sometimes(0.15) else str(day)

    def _weekday(self, weekday: int) -> str:
        name = WEEKDAYS[weekday]
        return self._one_of(f"{name[:3]}.", name[:3]) if self._sometimes(0.12) else name

    def _name_of_month(self, month: int) -> str:
        name = self._one_of(*SHORT_MONTHS[month - 1]) if self._sometimes(0.22) else MONTHS[month - 1]
        return name.capitalize() if self._sometimes(0.07) else name

    def _numeric_day(self, day: q.Day) -> str:
        two_digits = day.year in q.FROM_TWO_DIGITS and self._sometimes(0.25)
        short = day.year < 100 or self._sometimes(0.5)
        year = f"{day.year % 100:02}" if two_digits else f"{day.year:04}" if short else str(day.year)
        if not two_digits and self._sometimes(0.12):
            return f"{day.year:04}-{day.month:02}-{day.day:02}"
        sign = (
            self._one_of("/", "/", "/", "-", "-", ".", ".", " ") if not two_digits else self._one_of(*"//-.")
        )
        if self._sometimes(0.25):
            return f"{day.day}{sign}{day.month}{sign}{year}"
        return f"{day.day:02}{sign}{day.month:02}{sign}{year}"

    def _month(self, month: q.Month) -> str:
        if month.year is None:
            text = MONTHS[month.month - 1]
        elif month.year >= 1000 and not month.inside and self._sometimes(0.1):
            return f"{month.month:02}/{month.year}"
        else:
            text = f"{self._name_of_month(month.month)} {month.year}"
        return f"{self._one_of('en', 'en', 'en', 'au mois de') if month.inside else ''} {text}".strip()

    def _century(self, century: q.Century) -> str:
        number = roman(century.number) if self._rng is None or self._sometimes(0.6) else str(century.number)
        ending = "er" if century.number == 1 else self._one_of("e", "e", "e", "ème")
        article = {"none": "", "the": "le ", "in": "au "}[century.article]
        return f"{article}{number}{ending} siècle"

    # --- times ------------------------------------------------------------------------------------------

    def _time(self, time: q.Time) -> str:
        hour, minute, second = time.hour, time.minute, time.second
        if second is not None:
            return self._one_of(
                f"{hour:02}:{minute:02}:{second:02}",
                f"{hour}:{minute:02}:{second:02}",
                f"{hour} h {minute:02} min {second:02} s",
                f"{hour}h{minute:02}m{second:02}s",
            )
        heures = f"{hour} heure{'' if hour < 2 else 's'}"
        forms = [f"{hour}h{minute:02}"] * 3
        forms += [
            f"{hour:02}:{minute:02}",
            f"{hour}:{minute:02}",
            f"{hour} h {minute:02}",
            f"{hour:02}h{minute:02}",
        ]
        forms += [f"{hour}H{minute:02}"] if minute else [f"{hour}h", f"{hour} h", heures, heures, f"{hour}H"]
        forms += [f"{heures} {minute}", f"{heures} {minute:02}"] if minute else []
        if hour > q.NOON and self._sometimes(0.1):
            minutes = f" {self._feminine(minute)}" if minute else ""
            return f"{self._feminine(hour)} heures{minutes}"
        if self._sometimes(0.1) and (in_period := self._in_period(hour, minute)):
            return in_period
        return self._one_of(*forms)

    def _in_period(self, hour: int, minute: int) -> str | None:
        """Write a time on the 12-hour clock with the part of the day; None for noon and midnight."""
        if hour in (q.NOON, q.MIDNIGHT):
            return None
        small = hour % 12
        period = (
            "morning" if hour < 12 else "afternoon" if small in q.HOURS_OF_PERIOD["afternoon"] else "evening"
        )
        heures = f"{small} heure{'' if small < 2 else 's'}"
        digits = (f"{small}h{minute:02}", f"{small} h {minute:02}", f"{heures} {minute}")
        return f"{self._one_of(*(digits if minute else (f'{small}h', heures, heures)))} {PERIODS[period]}"

    def _spoken(self, time: q.SpokenTime) -> str:
        period = "" if time.period is None else f" {PERIODS[time.period]}"
        if time.hour in (q.NOON, q.MIDNIGHT):
            half = time.past == 30
            past = self._one_of("et demi", "et demi", "et demie") if half else self._past(time.past, False)
            return f"{'midi' if time.hour == q.NOON else 'minuit'} {past}".strip()
        heures = f"heure{'' if time.hour == 1 else 's'}"
        in_digits = time.past and self._sometimes(0.45)
        hour = str(time.hour) if in_digits else self._feminine(time.hour)
        return f"{hour} {heures} {self._past(time.past, not in_digits)}".strip() + period

    def _past(self, minutes: int, as_words: bool) -> str:
        if not minutes:
            return ""
        if as_words and minutes in (15, 30) and self._sometimes(0.2):
            return {15: "quinze", 30: "trente"}[minutes]
        if minutes < 0 and minutes != -15 and self._sometimes(0.3):
            return f"moins {-minutes}"
        if minutes == -15 and self._sometimes(0.2):
            return "moins quart"
        return PAST[minutes]

    def _moment(self, moment: q.Moment) -> str:
        day, time = self.text(moment.day), self._time(moment.time)
        return f"{day} {time}" if day[-1].isdigit() and self._sometimes(0.15) else f"{day} à {time}"

    # --- numbers ----------------------------------------------------------------------------------------

    def _of_numbers(self, quantity: q.Quantity) -> str:
        match quantity:
            case q.Number():
                return self._digits(quantity.number, quantity.grouped)
            case q.NumberInWords():
                return self._words(quantity.number)
            case q.Ordinal():
                return self._ordinal(quantity.number)
            case q.OrdinalInWords():
                return self._ordinal_words(quantity.number)
            case q.Percent():
                sign = self._one_of(" %", "%", "%", f"{THIN_SPACE}%", f"{NO_BREAK_SPACE}%", " pour cent")
                return f"{self._digits(quantity.number)}{sign}"
            case q.PercentInWords():
                return f"{self._words(quantity.number)} pour cent"
            case q.Amount():
                return self._amount(quantity)
            case q.AmountInWords():
                return self._amount_in_words(quantity)
            case q.Rounded():
                return self._rounded(quantity)
            case q.Duration():
                return self._duration(quantity)
            case q.DurationInWords():
                one, several, _ = UNITS[quantity.unit]
                unit = one if quantity.number == 1 else several
                words = self._feminine if one.endswith("e") else self._words
                return f"{words(quantity.number)} {unit}"
            case _:
                raise TypeError(f"no French for {quantity}")

    def _digits(self, number: Decimal, grouped: bool = True) -> str:
        text = f"{number:,}" if grouped else f"{number}"
        return text.replace(",", self._space()).replace(".", ",")

    def _space(self) -> str:
        return self._one_of(" ", " ", " ", THIN_SPACE, NO_BREAK_SPACE)

    def _words(self, number: int) -> str:
        text = words(number, by_scores=not self._sometimes(0.03))
        if self._sometimes(0.1):
            return text.replace("-", " ") if self._sometimes(0.6) else text.replace(" ", "-")
        return text

    def _feminine(self, number: int) -> str:
        text = self._words(number)
        return f"{text}e" if text == "un" or text.endswith((" un", "-un")) else text

    def _ordinal(self, number: int) -> str:
        if number == 1:
            return self._one_of("1er", "1er", "1re", "1ère")
        if number == 2 and self._sometimes(0.3):
            return self._one_of("2nd", "2nde")
        return f"{number}{self._one_of('e', 'e', 'ème', 'ème', 'eme', 'è')}"

    def _ordinal_words(self, number: int) -> str:
        if number == 1:
            return self._one_of("premier", "première")
        if number == 2 and self._sometimes(0.4):
            return self._one_of("second", "seconde")
        text = ordinal_words(number, by_scores=not self._sometimes(0.03))
        return text.replace("-", " ") if self._sometimes(0.06) else text

    def _amount(self, amount: q.Amount) -> str:
        number, currency = amount.number, amount.currency
        one, several = NAMES[currency]
        if number != int(number) and currency in CENTS and self._sometimes(0.15):
            euros, cents = divmod(int(number * 100), 100)
            name = one if euros < 2 else several
            hundredths = CENTS[currency][cents != 1]
            in_digits = self._digits(Decimal(euros))
            forms = [f"{in_digits} {name} et {cents} {hundredths}"]
            forms += (
                [f"{in_digits} {name} {cents:02}", f"{in_digits}€{cents:02}"] if currency == "EUR" else []
            )
            return self._one_of(*forms)
        text = self._digits(number, grouped=not self._sometimes(0.25))
        if currency == "FRF" or self._sometimes(0.35):
            if currency == "FRF" and self._sometimes(0.3):
                return f"{text} F"
            return f"{text} {one if number < 2 else several}"
        sign = self._one_of(*SIGNS[currency])
        return f"{text}{self._space() if sign.isalnum() or not self._sometimes(0.3) else ''}{sign}"

    def _amount_in_words(self, amount: q.AmountInWords) -> str:
        text = f"{self._words(amount.number)} {NAMES[amount.currency][amount.number != 1]}"
        if not amount.cents:
            return text
        cents = self._words(amount.cents)
        if amount.currency == "EUR" and amount.cents > 9 and self._sometimes(0.5):
            return f"{text} {cents}"
        return f"{text} et {cents} {CENTS[amount.currency][amount.cents != 1]}"

    def _rounded(self, rounded: q.Rounded) -> str:
        number = self._digits(rounded.number)
        if rounded.currency == "EUR" and self._sometimes(0.15):
            return f"{number} {'M' if rounded.scale == 'million' else 'Md'}€"
        name = "million" if rounded.scale == "million" else "milliard"
        text = f"{number} {name}{'' if rounded.number < 2 else 's'}"
        if rounded.currency is None:
            return text
        _, several = NAMES[rounded.currency]
        return f"{text} {OF_VOWEL if several.startswith('e') else OF}{several}"

    def _duration(self, duration: q.Duration) -> str:
        in_short = self._sometimes(0.2)
        parts = []
        for number, unit in duration.parts:
            one, several, short = UNITS[unit]
            name = self._one_of(*short) if in_short and short else one if number == 1 else several
            parts.append(f"{number} {name}")
        return (" " if in_short else " et ").join(parts)


# --- words ------------------------------------------------------------------------------------------------
# num2words gets France's cardinals right, but neither its ordinals ("quatre-vingtsième") nor Belgium's hundreds.


def words(number: int, by_scores: bool = True) -> str:
    """Write a whole number of at least 0 in words: "mille sept cent quatre-vingt-neuf".

    Args:
        number: below 10^12.
        by_scores: Whether 70 and 90 are counted from 60 and 80, as in France, instead of "septante" and "nonante".
    """
    for size, name in SCALES:
        if number >= size:
            several, rest = divmod(number, size)
            text = f"{words(several, by_scores)} {name}{'s' if several > 1 else ''}"
            return f"{text} {words(rest, by_scores)}" if rest else text
    if number >= 1000:
        several, rest = divmod(number, 1000)
        # "cent" and "vingt" have an s only if nothing follows, and here "mille" follows.
        text = "mille" if several == 1 else f"{_without_s(words(several, by_scores))} mille"
        return f"{text} {words(rest, by_scores)}" if rest else text
    if number >= 100:
        several, rest = divmod(number, 100)
        text = "cent" if several == 1 else f"{SMALL[several]} cent"
        return f"{text} {words(rest, by_scores)}" if rest else f"{text}{'s' if several > 1 else ''}"
    return _below_hundred(number, by_scores)


def _below_hundred(number: int, by_scores: bool) -> str:
    if number < 20:
        return SMALL[number]
    tens, units = divmod(number, 10)
    if by_scores and tens in BY_SCORES:
        tens, units = BY_SCORES[tens], units + 10
    if tens == 8:
        return f"{TENS[8]}-{SMALL[units]}" if units else f"{TENS[8]}s"
    if units in (1, 11):
        return f"{TENS[tens]} et {SMALL[units]}"
    return f"{TENS[tens]}-{SMALL[units]}" if units else TENS[tens]


def ordinal_words(number: int, by_scores: bool = True) -> str:
    """Write an ordinal number of at least 2 in words: "vingt et unième"."""
    text = _without_s(words(number, by_scores))
    at = max(text.rfind(" "), text.rfind("-")) + 1
    last = text[at:]
    return text[:at] + (IRREGULAR.get(last) or f"{last.removesuffix('e')}ième")


def _without_s(text: str) -> str:
    return text.removesuffix("s") if text.endswith(("vingts", "cents", "millions", "milliards")) else text


def roman(number: int) -> str:
    """Write a number from 1 to 39 in Roman numerals."""
    text = ""
    for value, letters in ROMAN:
        while number >= value:
            text, number = text + letters, number - value
    return text
