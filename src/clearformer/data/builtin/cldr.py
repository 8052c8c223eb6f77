"""Quantities written in any language of CLDR by Babel, with numbers in words by num2words.

Texts use the characters that people type: CLDR's no-break and thin spaces become spaces, its apostrophe (’) becomes '.
"""

import datetime
import re
from decimal import Decimal
from functools import cached_property
from random import Random
from typing import Any, Literal

from babel import Locale
from babel.dates import format_date, format_skeleton, format_time
from babel.lists import format_list
from babel.numbers import format_currency, format_decimal, format_percent
from babel.units import format_unit
from num2words import num2words

from clearformer.data.builtin import quantities as q
from clearformer.data.builtin.quantities import pick

AS_TYPED = str.maketrans({"\u00a0": " ", "\u202f": " ", "\u2009": " ", "\u2019": "'", "\u2212": "-"})
LEAP_YEAR = 2000  # a year with every day of every month


class Language:
    """A language as CLDR describes it.

    Args:
        code: such as "fr" or "pt_BR".
    """

    def __init__(self, code: str) -> None:
        self.code = code

    def written(self, quantity: q.Quantity) -> str | None:
        """Write a quantity in the one form that translations have; None if the language's rules do not cover it."""
        return self._form(quantity, 0)

    def typed(self, quantity: q.Quantity, rng: Random) -> str | None:
        """Write a quantity in one of the forms that people use; None if there is none."""
        return self._form(quantity, pick(rng, range(self._n_forms(quantity))))

    def _n_forms(self, quantity: q.Quantity) -> int:
        match quantity:
            case q.Day(names_weekday=False):
                # The short form may have two digits of the year, which are only clear from 1950 to 2049.
                return 3 if quantity.year in q.FROM_TWO_DIGITS else 2 if quantity.year >= 1000 else 1
            case q.Amount() | q.Duration():
                return 2
            case _:
                return 1

    def _form(self, quantity: q.Quantity, form: int) -> str | None:
        try:
            text = self._text(quantity, form)
        except (ArithmeticError, AttributeError, LookupError, NotImplementedError, TypeError, ValueError):
            return None  # num2words and Babel raise various errors for a form that they cannot write
        return None if text is None else text.translate(AS_TYPED).strip()

    def _text(self, quantity: q.Quantity, form: int) -> str | None:
        match quantity:
            case q.Day():
                return format_date(quantity.date, self._length_of(quantity, form), locale=self.code)
            case q.MonthDay(weekday=None):
                return self._skeleton("MMMMd", datetime.datetime(LEAP_YEAR, quantity.month, quantity.day))
            case q.Month(inside=False, year=int(year)):
                return self._skeleton("yMMMM", datetime.datetime(year, quantity.month, 1))
            case q.Month(inside=False):
                return self._locale.months["stand-alone"]["wide"][quantity.month]
            case q.Weekday():
                return self._locale.days["stand-alone"]["wide"][quantity.weekday]
            case q.Time(at=False):
                return self._time(quantity)
            case q.Moment(day=q.Day()):
                joined = str(self._locale.datetime_formats["long"]).replace("'", "")
                return joined.format(self._time(quantity.time), self._text(quantity.day, form))
            case q.Number(grouped=True):
                return self._number(quantity.number)
            case q.NumberInWords():
                return num2words(quantity.number, lang=self.code)
            case q.Ordinal():
                return str(num2words(quantity.number, lang=self.code, to="ordinal_num"))
            case q.OrdinalInWords():
                return num2words(quantity.number, lang=self.code, to="ordinal")
            case q.Percent():
                pattern = self._with_digits(self._locale.percent_formats[None].pattern, quantity.number)
                return format_percent(quantity.number.scaleb(-2), pattern, self.code)
            case q.Amount():
                return self._amount(quantity, in_words=form > 0)
            case q.Duration():
                return self._duration(quantity, "short" if form else "long")
            case _:
                return None

    def _length_of(self, day: q.Day, form: int) -> Literal["full", "long", "medium", "short"]:
        return "full" if day.names_weekday else ("long", "medium", "short")[form]

    def _skeleton(self, skeleton: str, moment: datetime.datetime) -> str:
        return format_skeleton(skeleton, moment, locale=self.code)

    def _time(self, time: q.Time) -> str:
        length = "short" if time.second is None else "medium"
        return format_time(datetime.time(time.hour, time.minute, time.second or 0), length, locale=self.code)

    def _number(self, number: Decimal) -> str:
        return format_decimal(
            number, self._with_digits(self._locale.decimal_formats[None].pattern, number), self.code
        )

    def _amount(self, amount: q.Amount, in_words: bool) -> str:
        formats = self._locale.decimal_formats if in_words else self._locale.currency_formats
        pattern = self._with_digits(formats[None if in_words else "standard"].pattern, amount.number)
        return format_currency(
            amount.number,
            amount.currency,
            pattern,
            self.code,
            currency_digits=False,
            format_type="name" if in_words else "standard",
        )

    @staticmethod
    def _with_digits(pattern: str, number: Decimal) -> str:
        """Give CLDR's pattern as many decimal places as the number has."""
        exponent = number.as_tuple().exponent
        digits = f".{'0' * -exponent}" if isinstance(exponent, int) and exponent < 0 else ""
        parts = [re.sub(r"\.[0#]+", "", part) for part in pattern.split(";")]
        return ";".join(re.sub(r"0(?=[^0]*$)", f"0{digits}", part) for part in parts)

    def _duration(self, duration: q.Duration, length: Literal["long", "short"]) -> str:
        units = [
            format_unit(number, f"duration-{unit}", length=length, locale=self.code)
            for number, unit in duration.parts
        ]
        return format_list(units, "standard", locale=self.code)

    @cached_property
    def _locale(self) -> Any:
        return Locale.parse(self.code)
