"""Dates, times, numbers and amounts: one right translation for each source."""

import datetime
import re
from itertools import product

import pytest

from clearformer.data import dates
from clearformer.data.batches import generator_at
from clearformer.data.dates import language_codes, make_pairs

LANGUAGES = ("de", "en", "es", "fr")


@pytest.fixture(scope="module")
def french_to_english() -> dict[str, str]:
    return dict(make_pairs("fr", "en", 4001))


def test_the_same_pairs_every_time(french_to_english: dict[str, str]) -> None:
    assert make_pairs("fr", "en", 4001) == list(french_to_english.items())


def test_more_pairs_begin_with_the_fewer() -> None:
    assert make_pairs("fr", "en", 1300)[:97] == make_pairs("fr", "en", 97)


def test_there_are_as_many_as_were_asked_for_and_no_source_twice(french_to_english: dict[str, str]) -> None:
    assert len(french_to_english) == 4001


def test_both_sides_mean_the_same(french_to_english: dict[str, str]) -> None:
    """Spot checks, made by hand, of what 4,001 pairs hold."""
    days = [(f, e) for f, e in french_to_english.items() if re.fullmatch(r"\d+ septembre \d{4}", f)]
    assert len(days) > 10
    for french, english in days:
        day, _, year = french.split()
        assert english == f"September {day}, {year}"
    assert french_to_english["un"] == "one"
    assert french_to_english["deuxième"] == "second"
    assert french_to_english["quatre-vingt-onze"] == "ninety-one"


@pytest.mark.parametrize(
    ("style", "value", "french", "english"),
    [
        ("full", (1999, 3, 1), "lundi 1 mars 1999", "Monday, March 1, 1999"),
        ("medium", (1999, 7, 1), "1 juil. 1999", "Jul 1, 1999"),
        ("short", (1999, 7, 1), "01/07/1999", "7/1/99"),
    ],
)
def test_dates_are_written_as_cldr_has_them(style: str, value: tuple, french: str, english: str) -> None:
    write = dates._as_date(style)
    day = datetime.date(*value)
    assert (write(day, "fr"), write(day, "en")) == (french, english)


def test_every_kind_is_there(french_to_english: dict[str, str]) -> None:
    """One pair of each, found by what only it has."""
    english = set(french_to_english.values())
    for sign in (
        "%",
        "€",
        "¥",
        "Swiss francs",
        "US dollars",
        " quarter ",
        " at night",
        " AM",
        " PM",
        "Sunday, ",
        "hundred",
        "first",
        "hours",
        " sec",
        " wks",
        "weeks",
    ):
        assert any(sign in text for text in english), sign


@pytest.mark.parametrize(
    ("source", "target"), [pair for pair in product(LANGUAGES, repeat=2) if len(set(pair)) == 2]
)
def test_a_source_text_has_one_translation(source: str, target: str) -> None:
    """Whatever is drawn: else exact match would punish a right answer."""
    rng = generator_at(7, 97, 0)
    kinds = dates._kinds_in(source, target)
    assert len(kinds) == len(dates.KINDS)
    translations: dict[str, str] = {}
    for number in range(1500):
        pair = dates._pair(kinds[number % len(kinds)], rng, source, target)
        assert pair is not None
        assert translations.setdefault(*pair) == pair[1]


def test_where_two_formats_read_the_same_the_first_is_the_translation() -> None:
    """In French, the medium form of a day in March is its long form."""
    pairs = make_pairs("fr", "en", 4001)
    in_march = [english for french, english in pairs if " mars " in french and french[0].isdigit()]
    assert len(in_march) > 20
    assert not [english for english in in_march if english.startswith("Mar ")]
    assert [english for french, english in pairs if " juil. " in french and english.startswith("Jul ")]


def test_two_digits_of_a_year_say_which(french_to_english: dict[str, str]) -> None:
    english_to_french = dict(make_pairs("en", "fr", 4001))
    short = {e: f for e, f in english_to_french.items() if e.count("/") == 2}
    assert len(short) > 50
    for english, french in short.items():
        year = int(english.rpartition("/")[2])
        assert french.endswith(str(1900 + year if year >= 50 else 2000 + year))


@pytest.mark.parametrize("language", language_codes())
def test_texts_are_written_as_they_are_typed(language: str) -> None:
    other = "en" if language != "en" else "fr"
    pairs = make_pairs(language, other, 101)
    for character in "\u00a0\u202f\u2009\u2019\n\t":
        assert not [pair for pair in pairs if character in pair[0] + pair[1]]
    assert all(side == side.strip() and side for pair in pairs for side in pair)


def test_the_languages_are_those_of_both_packages() -> None:
    assert {"de", "en", "es", "fr", "ja", "pt_BR"} <= set(language_codes())
    assert "tet" not in language_codes()  # num2words has it, CLDR does not
    assert "zu" not in language_codes()  # the other way about
