"""Dates, times, numbers and amounts of money in two languages: pairs with one right answer.

    draw a quantity -> write it as people type it in one language -> write it in the one form of the other

The quantities are those of `quantities`. French sources are typed in the many ways of `french`, English targets have
the forms of `english`; every other language is written by CLDR's rules (`cldr`). A quantity that a language cannot
write is left out of its pairs. If a source text is drawn with two meanings, the first is kept; French forms are chosen
so that none has two. A translation is right if it equals the target exactly, so exact match is the measure.

A pair carries the values that its text states: a held-out date is in no training pair, however it is written.
"""

from random import Random
from typing import NamedTuple

from babel.localedata import locale_identifiers
from num2words import CONVERTER_CLASSES

from clearformer.data.builtin.cldr import Language
from clearformer.data.builtin.english import English
from clearformer.data.builtin.french import French
from clearformer.data.builtin.quantities import QUANTITIES, Quantity
from clearformer.data.holding_out import own_text

SEED = 0
RECIPE = 2
"""Version of the way pairs are made; another version makes other pairs."""
N_PROBES = 60


class DatePair(NamedTuple):
    """A quantity in two languages, and the values that decide whether it is held out."""

    source: str
    target: str
    values: tuple[str, ...]


def language_codes() -> list[str]:
    """Return the languages that both Babel and num2words know, such as "fr" or "pt_BR"."""
    return sorted(set(CONVERTER_CLASSES) & set(locale_identifiers()))


def make_pairs(source: str, target: str, size: int, seed: int = SEED) -> list[DatePair]:
    """Make `size` pairs in the two languages, with no source text twice; the same seed makes the same pairs.

    A larger size begins with the pairs of a smaller one.
    """
    rng = Random(seed)
    one, other = language(source), language(target)
    kinds = _kinds_in(one, other)
    ends = [sum(kind.weight for kind in kinds[: n + 1]) for n in range(len(kinds))]
    pairs: dict[str, DatePair] = {}
    while len(pairs) < size:
        place = rng.random() * ends[-1]
        kind = next(kind for kind, end in zip(kinds, ends, strict=True) if place < end)
        pair = _pair(kind.draw(rng), one, other, rng)
        if pair is not None:
            pairs.setdefault(own_text(pair.source), pair)
    return list(pairs.values())


def language(code: str) -> Language:
    """Return the rules by which a language is written and typed."""
    return {"en": English, "fr": French}.get(code, lambda: Language(code))()


def _kinds_in(source: Language, target: Language) -> list[type[Quantity]]:
    """Return the kinds of which both languages can write at least some quantities."""
    rng = Random(SEED)
    return [
        kind
        for kind in QUANTITIES
        if any(_pair(kind.draw(rng), source, target, rng) is not None for _ in range(N_PROBES))
    ]


def _pair(quantity: Quantity, source: Language, target: Language, rng: Random) -> DatePair | None:
    translation = target.written(quantity)
    typed = source.typed(quantity, rng) if translation else None
    return DatePair(typed, translation, quantity.values) if typed and translation else None
