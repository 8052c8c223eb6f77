"""Pairs of dates, times, numbers and amounts: one right translation for each source, whoever draws it."""

import re
from collections import Counter, defaultdict
from itertools import product

import pytest

from clearformer.data.builtin.dates import DatePair, _kinds_in, language, language_codes, make_pairs
from clearformer.data.builtin.quantities import QUANTITIES
from clearformer.data.holding_out import own_text

LANGUAGES = ("de", "en", "es", "fr")


@pytest.fixture(scope="module")
def pairs() -> list[DatePair]:
    return make_pairs("fr", "en", 20_011)


@pytest.fixture(scope="module")
def drawn_otherwise() -> list[DatePair]:
    return [pair for seed in range(1, 4) for pair in make_pairs("fr", "en", 15_013, seed)]


def test_the_same_pairs_every_time_and_in_every_version() -> None:
    made = make_pairs("fr", "en", 1009)
    assert make_pairs("fr", "en", 1009) == made
    assert [tuple(pair) for pair in made[:4]] == [
        ("64 £", "£64", ("amount 64 GBP",)),
        ("297e", "297th", ("ordinal 297",)),
        ("19 582,49\u00a0€", "€19,582.49", ("amount 19582.49 EUR",)),
        ("27\u00a0%", "27%", ("percent 27",)),
    ]


def test_more_pairs_begin_with_the_fewer() -> None:
    assert make_pairs("fr", "en", 1300)[:97] == make_pairs("fr", "en", 97)


def test_there_are_as_many_as_were_asked_for_and_no_source_twice(pairs: list[DatePair]) -> None:
    assert len(pairs) == len({own_text(pair.source) for pair in pairs}) == 20_011


def test_every_kind_is_there(pairs: list[DatePair]) -> None:
    assert _kinds_in(language("fr"), language("en")) == list(QUANTITIES)
    counts = Counter(re.match(r"[a-z ]+", pair.values[0])[0].strip() for pair in pairs)  # type: ignore[index]
    kinds = {
        "day",
        "month day",
        "day of a month",
        "month",
        "weekday",
        "year",
        "decade",
        "century",
        "time",
        "face",
    }
    assert set(counts) == kinds | {"number", "ordinal", "percent", "amount", "duration"}
    assert min(counts[kind] for kind in kinds - {"weekday"}) > 50
    assert sum(len(pair.values) == 2 for pair in pairs) > 500


def test_years_are_from_the_first_to_the_last(pairs: list[DatePair]) -> None:
    years = Counter(int(pair.values[0][4:8]) for pair in pairs if re.match(r"day \d", pair.values[0]))
    assert min(years) < 20
    assert max(years) > 2980
    assert sum(count for year, count in years.items() if year < 1000) > 500
    assert sum(count for year, count in years.items() if 1900 <= year < 2100) > 1000


def test_a_source_has_one_translation_whatever_was_drawn_before(
    pairs: list[DatePair], drawn_otherwise: list[DatePair]
) -> None:
    """Else exact match would punish a right answer; neither white space nor capitals tell two meanings apart."""
    translations = {own_text(pair.source).lower(): pair.target for pair in pairs}
    for pair in drawn_otherwise:
        assert translations.setdefault(own_text(pair.source).lower(), pair.target) == pair.target, pair


@pytest.mark.parametrize(
    ("source", "target"), [pair for pair in product((*LANGUAGES, "ja"), repeat=2) if len(set(pair)) == 2]
)
def test_a_source_has_one_translation_between_other_languages_too(source: str, target: str) -> None:
    translations: dict[str, str] = {}
    for seed in range(3):
        for pair in make_pairs(source, target, 900, seed):
            assert translations.setdefault(own_text(pair.source), pair.target) == pair.target, pair


def test_a_translation_has_one_value(pairs: list[DatePair]) -> None:
    """What is held out by value is then held out by translation too; digits and words of a number are two texts."""
    values = defaultdict(set)
    for pair in pairs:
        values[pair.target].add(pair.values)
    assert not [target for target, found in values.items() if len(found) > 1]


def test_people_type_a_day_in_many_ways(drawn_otherwise: list[DatePair]) -> None:
    """The forms of one date that was got wrong, and others of the same kind, are all there."""
    forms = defaultdict(set)
    for pair in drawn_otherwise:
        if re.match(r"day \d", pair.values[0]):
            shape = re.sub(r"\d", "0", pair.source.lower())
            forms[re.sub(r"[^\W\d_]{3,}", "mot", shape)].add(pair.source)
    for shape in (
        "00 mot 0000",
        "le 00 mot 0000",
        "mot 00 mot 0000",
        "le mot 00 mot 0000",
        "mot. 00 mot 0000",
        "0er mot 0000",
        "00 mot. 0000",
        "00/00/0000",
        "le 00/00/0000",
        "0/00/0000",
        "00-00-0000",
        "00.00.0000",
        "00/00/00",
        "0000-00-00",
        "00 mot 00",
        "00 mot 0000 à 00h00",
        "00 mot 0000 à 00:00",
    ):
        assert len(forms[shape]) > 2, shape


def test_noise_is_there_and_small(pairs: list[DatePair]) -> None:
    sources = [pair.source for pair in pairs]
    for low, high, pattern in (
        (0.03, 0.15, r"^[A-ZÀÉ][a-zé]"),
        (0.003, 0.03, r"^(?!.*[a-z])(?=.*[A-Z]{4})"),
        (0.002, 0.02, r"\b(aout|fevrier|decembre|fevr|dec)\b"),
        (0.01, 0.2, "[\u00a0\u202f]"),
    ):
        share = sum(bool(re.search(pattern, source)) for source in sources) / len(sources)
        assert low < share < high, pattern


@pytest.mark.parametrize("code", language_codes())
def test_every_language_goes_both_ways_with_something_on_each_side(code: str) -> None:
    for source, target in ((code, "fr"), ("en", code)):
        if source == target:
            continue
        pairs = make_pairs(source, target, 101)
        assert len(pairs) == 101
        for pair in pairs:
            assert all(side == side.strip() and side for side in pair[:2])
            assert not {"\n", "\t", "\u2009"} & set(pair.source + pair.target)
            assert pair.values


def test_the_languages_are_those_of_both_packages() -> None:
    assert {"de", "en", "es", "fr", "ja", "pt_BR"} <= set(language_codes())
    assert "tet" not in language_codes()  # num2words has it, CLDR does not
    assert "zu" not in language_codes()  # the other way about
