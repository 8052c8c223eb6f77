"""What quantities are held out by, and how each language writes them."""

import re
from decimal import Decimal
from random import Random

import pytest
from babel.dates import format_date
from num2words import num2words

from clearformer.data.builtin import english, french
from clearformer.data.builtin.cldr import Language
from clearformer.data.builtin.english import English
from clearformer.data.builtin.french import French
from clearformer.data.builtin.quantities import (
    MIDNIGHT,
    NOON,
    QUANTITIES,
    Amount,
    AmountInWords,
    Century,
    Day,
    DayOfMonth,
    Decade,
    Duration,
    DurationInWords,
    Moment,
    Month,
    MonthDay,
    Number,
    NumberInWords,
    Ordinal,
    OrdinalInWords,
    Percent,
    PercentInWords,
    Quantity,
    Rounded,
    SpokenTime,
    Time,
    Weekday,
    Year,
)

BASTILLE = Day(1789, 7, 14)

# Each quantity in English, and some of the ways in which it is typed in French.
WRITTEN: list[tuple[Quantity, str, tuple[str, ...]]] = [
    (
        BASTILLE,
        "July 14, 1789",
        ("14 juillet 1789", "le 14 juillet 1789", "14/07/1789", "14-07-1789", "14.07.1789", "14 juil. 1789"),
    ),
    (Day(1789, 7, 14, True), "Tuesday, July 14, 1789", ("mardi 14 juillet 1789", "mar. 14 juillet 1789")),
    (
        Day(2024, 5, 1),
        "May 1, 2024",
        ("1er mai 2024", "le 1er mai 2024", "1 mai 2024", "01/05/24", "1/5/2024"),
    ),
    (
        Day(1962, 8, 3),
        "August 3, 1962",
        ("3 août 1962", "3 aout 1962", "3 Août 1962", "1962-08-03", "03/08/62"),
    ),
    (Day(79, 8, 24), "August 24, 79", ("24 août 79", "le 24 août 79", "24/08/0079")),
    (MonthDay(7, 14), "July 14", ("14 juillet", "le 14 juillet", "14/07", "quatorze juillet")),
    (MonthDay(7, 14, 0), "Monday, July 14", ("lundi 14 juillet", "lundi 14/07")),
    (DayOfMonth(1), "the 1st", ("le 1er", "le premier")),
    (DayOfMonth(14, 0), "Monday the 14th", ("lundi 14",)),
    (Month(7, 1789), "July 1789", ("juillet 1789", "juil. 1789", "07/1789")),
    (
        Month(2, 2024, True),
        "in February 2024",
        ("en février 2024", "en fevrier 2024", "au mois de février 2024"),
    ),
    (Month(8), "August", ("août", "Août")),
    (Weekday(6), "Sunday", ("dimanche",)),
    (Year(1789, True), "in 1789", ("en 1789",)),
    (Year(800), "the year 800", ("l'an 800", "l\u2019an 800", "l'année 800")),
    (Decade(1960), "the 1960s", ("les années 1960", "les années 60")),
    (Decade(1830), "the 1830s", ("les années 1830",)),
    (Century(19, "the"), "the 19th century", ("le XIXe siècle", "le 19e siècle", "le 19ème siècle")),
    (Century(1, "in"), "in the 1st century", ("au Ier siècle", "au 1er siècle")),
    (Time(14, 30), "2:30 PM", ("14h30", "14:30", "14 h 30", "14 heures 30", "2h30 de l'après-midi")),
    (Time(8), "8:00 AM", ("8h00", "8h", "8 h", "8 heures", "08:00", "8 heures du matin")),
    (
        Time(20, 0, at=True),
        "at 8:00 PM",
        ("à 20h00", "à 20h", "à 20 heures", "a 20h", "à vingt heures", "à 8h du soir"),
    ),
    (Time(0, 5), "12:05 AM", ("0h05", "00:05", "0 h 05", "0 heure 5")),
    (Time(12), "12:00 PM", ("12h00", "12h", "12:00")),
    (Time(9, 5, 7), "9:05:07 AM", ("09:05:07", "9:05:07", "9 h 05 min 07 s")),
    (SpokenTime(2, 30), "half past two", ("deux heures et demie", "2 heures et demie", "deux heures trente")),
    (SpokenTime(1), "one o'clock", ("une heure",)),
    (
        SpokenTime(3, -15),
        "quarter to three",
        ("trois heures moins le quart", "3 heures moins le quart", "trois heures moins quart"),
    ),
    (
        SpokenTime(8, 20, "evening"),
        "twenty past eight in the evening",
        ("huit heures vingt du soir", "8 heures vingt du soir"),
    ),
    (SpokenTime(NOON), "noon", ("midi",)),
    (SpokenTime(NOON, 30), "half past noon", ("midi et demi", "midi et demie")),
    (SpokenTime(MIDNIGHT, -10, at=True), "at ten to midnight", ("à minuit moins dix", "à minuit moins 10")),
    (
        Moment(BASTILLE, Time(14, 30)),
        "July 14, 1789 at 2:30 PM",
        ("14 juillet 1789 à 14h30", "14/07/1789 14:30", "le 14 juillet 1789 à 14 h 30"),
    ),
    (
        Number(Decimal(1234567)),
        "1,234,567",
        ("1 234 567", "1\u202f234\u202f567", "1\u00a0234\u00a0567"),
    ),
    (Number(Decimal(1789), grouped=False), "1789", ("1789",)),
    (Number(Decimal("-3.50")), "-3.50", ("-3,50",)),
    (
        NumberInWords(1789),
        "one thousand seven hundred eighty-nine",
        ("mille sept cent quatre-vingt-neuf", "mille-sept-cent-quatre-vingt-neuf"),
    ),
    (NumberInWords(71), "seventy-one", ("soixante et onze", "septante et un", "soixante-et-onze")),
    (NumberInWords(2_000_000), "two million", ("deux millions",)),
    (Ordinal(1), "1st", ("1er", "1re", "1ère", "1ere")),
    (Ordinal(2), "2nd", ("2e", "2nd", "2ème", "2eme")),
    (Ordinal(113), "113th", ("113e", "113ème")),
    (OrdinalInWords(1), "first", ("premier", "première")),
    (OrdinalInWords(2), "second", ("deuxième", "second", "seconde", "deuxieme")),
    (OrdinalInWords(21), "twenty-first", ("vingt et unième",)),
    (Percent(Decimal("12.5")), "12.5%", ("12,5 %", "12,5%", "12,5\u202f%", "12,5 pour cent")),
    (PercentInWords(12), "twelve percent", ("douze pour cent",)),
    (Amount(Decimal("12.50"), "EUR"), "€12.50", ("12,50 €", "12,50€", "12,50 euros", "12€50", "12 euros 50")),
    (Amount(Decimal(3_000_000), "USD"), "$3,000,000", ("3 000 000 $", "3000000 $", "3 000 000 dollars")),
    (Amount(Decimal(1), "EUR"), "€1", ("1 €", "1 euro", "1€")),
    (Amount(Decimal(100), "FRF"), "100 francs", ("100 francs", "100 F")),
    (Amount(Decimal(20), "CHF"), "CHF 20", ("20 CHF", "20 francs suisses")),
    (AmountInWords(5, "EUR"), "five euros", ("cinq euros",)),
    (AmountInWords(1, "EUR"), "one euro", ("un euro",)),
    (
        AmountInWords(5, "EUR", 50),
        "five euros and fifty cents",
        ("cinq euros et cinquante centimes", "cinq euros cinquante"),
    ),
    (Rounded(Decimal(3), "million"), "3 million", ("3 millions",)),
    (Rounded(Decimal("2.5"), "billion", "EUR"), "€2.5 billion", ("2,5 milliards d'euros", "2,5 Md€")),
    (Rounded(Decimal("1.5"), "million", "USD"), "$1.5 million", ("1,5 million de dollars",)),
    (Duration(((2, "week"), (3, "day"))), "2 weeks and 3 days", ("2 semaines et 3 jours", "2 sem. 3 j")),
    (
        Duration(((1, "hour"), (30, "minute"))),
        "1 hour and 30 minutes",
        ("1 heure et 30 minutes", "1 h 30 min"),
    ),
    (Duration(((36, "hour"),)), "36 hours", ("36 heures", "36 h")),
    (DurationInWords(3, "month"), "three months", ("trois mois",)),
    (DurationInWords(1, "week"), "one week", ("une semaine",)),
]


@pytest.mark.parametrize(("quantity", "in_english", "in_french"), WRITTEN, ids=str)
def test_english_has_one_form_and_french_those_that_people_type(
    quantity: Quantity, in_english: str, in_french: tuple[str, ...]
) -> None:
    assert English().written(quantity) == in_english
    assert French().written(quantity) == in_french[0]
    rng = Random(7)
    typed = {French().typed(quantity, rng) for _ in range(4000)}
    assert not set(in_french) - typed


def test_every_quantity_is_in_the_table() -> None:
    assert {type(quantity) for quantity, *_ in WRITTEN} == set(QUANTITIES)


@pytest.mark.parametrize("kind", QUANTITIES)
def test_what_is_drawn_has_values_and_can_be_written(kind: type[Quantity]) -> None:
    rng = Random(3)
    for _ in range(300):
        quantity = kind.draw(rng)
        assert quantity.values == tuple(dict.fromkeys(quantity.values)) != ()
        for text in (English().written(quantity), French().written(quantity), French().typed(quantity, rng)):
            assert text == text.strip() != ""
            assert "  " not in text


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (BASTILLE, Day(1789, 7, 14, True)),
        (MonthDay(7, 14), MonthDay(7, 14, 3)),
        (Month(7, 1789), Month(7, 1789, True)),
        (Time(14, 30), Time(14, 30, at=True)),
        (Time(14, 30), SpokenTime(2, 30, "afternoon")),
        (Time(23, 45), SpokenTime(MIDNIGHT, -15)),
        (SpokenTime(11, -15), SpokenTime(11, -15, at=True)),
        (Number(Decimal("12.50")), Number(Decimal("12.5"))),
        (Number(Decimal(3_000_000), grouped=False), Rounded(Decimal(3), "million")),
        (Number(Decimal(71)), NumberInWords(71)),
        (Ordinal(3), OrdinalInWords(3)),
        (Percent(Decimal(12)), PercentInWords(12)),
        (Amount(Decimal("5.50"), "EUR"), AmountInWords(5, "EUR", 50)),
        (Amount(Decimal(3_000_000), "EUR"), Rounded(Decimal("3.0"), "million", "EUR")),
        (Duration(((3, "month"),)), DurationInWords(3, "month")),
    ],
    ids=str,
)
def test_one_value_in_two_forms_is_one_value(one: Quantity, other: Quantity) -> None:
    assert one.values == other.values


def test_a_moment_has_the_values_of_its_day_and_of_its_time() -> None:
    assert Moment(BASTILLE, Time(14, 30)).values == (*BASTILLE.values, *Time(14, 30).values)
    assert SpokenTime(2, 30).values != Time(2, 30).values  # it may be in the afternoon
    assert Amount(Decimal(5), "EUR").values != Amount(Decimal(5), "USD").values


def test_english_days_are_cldrs_long_form() -> None:
    for day in (BASTILLE, Day(79, 8, 24), Day(2999, 12, 31), Day(1, 1, 1)):
        assert English().written(day) == format_date(day.date, "long", locale="en")
        named = Day(day.year, day.month, day.day, True)
        assert English().written(named) == format_date(day.date, "full", locale="en")
    for month in range(1, 13):
        day = Day(2024, month, 2)
        assert French().written(day) == format_date(day.date, "long", locale="fr")


@pytest.mark.parametrize(
    ("number", "in_words", "ordinal", "ordinal_in_words"),
    [
        (1, "one", "1st", "first"),
        (12, "twelve", "12th", "twelfth"),
        (23, "twenty-three", "23rd", "twenty-third"),
        (111, "one hundred eleven", "111th", "one hundred eleventh"),
        (1789, "one thousand seven hundred eighty-nine", "1789th", "one thousand seven hundred eighty-ninth"),
        (2_000_001, "two million one", "2000001st", "two million first"),
    ],
)
def test_english_words_are_those_of_the_united_states(
    number: int, in_words: str, ordinal: str, ordinal_in_words: str
) -> None:
    assert english.words(number) == in_words
    assert english.ordinal(number) == ordinal
    assert english.ordinal_words(number) == ordinal_in_words


def test_french_words_are_those_of_num2words() -> None:
    """But for the ordinals that it gets wrong."""
    numbers = [
        *range(121),
        *range(180, 2100, 17),
        *range(9_000, 1_000_000, 33_337),
        80_000,
        10**6,
        200 * 10**6,
    ]
    for number in numbers:
        assert french.words(number) == num2words(number, lang="fr")
        if number > 1:
            of_french = re.sub(
                "(vingt|cent|million)sième", r"\1ième", num2words(number, lang="fr", to="ordinal")
            )
            assert french.ordinal_words(number) == of_french
    assert french.words(97, by_scores=False) == "nonante-sept"
    assert [french.roman(n) for n in (1, 4, 9, 14, 19, 20, 30)] == [
        "I",
        "IV",
        "IX",
        "XIV",
        "XIX",
        "XX",
        "XXX",
    ]


@pytest.mark.parametrize(
    ("quantity", "in_german"),
    [
        (BASTILLE, "14. Juli 1789"),
        (Day(1789, 7, 14, True), "Dienstag, 14. Juli 1789"),
        (MonthDay(7, 14), "14. Juli"),
        (Month(7, 1789), "Juli 1789"),
        (Time(14, 30), "14:30"),
        (Number(Decimal("1234.50")), "1.234,50"),
        (Amount(Decimal(1234), "EUR"), "1.234 €"),
        (Amount(Decimal("12.50"), "EUR"), "12,50 €"),
        (Percent(Decimal("12.50")), "12,50 %"),
        (Duration(((2, "week"), (3, "day"))), "2 Wochen und 3 Tage"),
        (NumberInWords(21), "einundzwanzig"),
        (SpokenTime(2, 30), None),
        (Year(1789), None),
    ],
)
def test_other_languages_are_cldrs_and_keep_the_digits(quantity: Quantity, in_german: str | None) -> None:
    assert Language("de").written(quantity) == in_german


def test_two_digits_of_a_year_are_typed_where_they_say_which() -> None:
    for language in (French(), English(), Language("de")):
        for year, expected in ((1949, False), (1950, True), (2049, True), (2050, False), (62, False)):
            rng = Random(1)
            typed = {language.typed(Day(year, 8, 13), rng) or "" for _ in range(600)}
            short = [text for text in typed if text.endswith((f"/{year % 100:02}", f".{year % 100:02}"))]
            assert bool(short) is expected, (year, short)
