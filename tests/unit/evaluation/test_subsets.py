"""A part of held-out data: evenly spaced, and each thing in it as it is in the whole."""

import numpy as np
import pytest

from clearformer.data import PairSplit, Split
from clearformer.data.labelled.preparing import LabelledSplit
from clearformer.data.pairs.files import PairSide
from clearformer.evaluation.subsets import evenly_spaced, subset_of_labelled, subset_of_pairs, subset_of_text

ROWS = [np.arange(10 * n, 10 * n + 1 + n % 3) for n in range(11)]  # of 1, 2 and 3 tokens
ENDS = np.cumsum([len(row) for row in ROWS])
TEXTS = [f"text {n}" for n in range(11)]


@pytest.mark.parametrize("total", range(1, 30))
def test_places_are_evenly_spaced(total: int) -> None:
    for n in range(1, total + 1):
        places = evenly_spaced(n, total)

        assert len(places) == n
        middles = [total * (i + 0.5) / n for i in range(n)]
        assert all(middle - 1 < place <= middle for middle, place in zip(middles, places, strict=True))
    assert evenly_spaced(total, total).tolist() == list(range(total))
    assert evenly_spaced(total + 1, total).tolist() == list(range(total))  # nothing twice


def test_places_in_a_very_large_split() -> None:
    places = evenly_spaced(1_000_000, 1_000_000_007)

    assert (np.diff(places) >= 1000).all()
    assert places[-1] < 1_000_000_007


@pytest.mark.parametrize(
    ("n", "starts"), [(1, [14]), (2, [7, 21]), (4, [0, 7, 21, 28]), (5, range(0, 30, 7))]
)
def test_a_part_of_a_text_is_some_of_its_stretches(n: int, starts: list[int]) -> None:
    """Of 31 tokens there are four stretches of 7 and one of 3."""
    text = np.arange(100, 131)
    part = subset_of_text(Split("val", [text[:10], text[10:]], 31, 31), n, 7)

    assert part.name == "val"
    assert part.read(0, len(part)).tolist() == [t for at in starts for t in text[at : at + 7]]


def test_a_subset_of_pairs_has_the_same_pairs() -> None:
    sides = [
        PairSide(np.concatenate(ROWS) + add, ENDS, lambda add=add: [f"{text}+{add}" for text in TEXTS])
        for add in (0, 1000)
    ]
    pairs = PairSplit("val", (sides[0], sides[1]), np.arange(11) + 3, "x.tsv, line {}".format)

    part = subset_of_pairs(pairs, 4)

    chosen = [1, 4, 6, 9]
    assert (part.name, len(part)) == ("val", 4)
    for place, index in enumerate(chosen):
        assert part.source(place).tolist() == ROWS[index].tolist()
        assert part.target(place).tolist() == (ROWS[index] + 1000).tolist()
        assert part.place(place) == pairs.place(index)
    assert part.source_texts == [f"text {n}+0" for n in chosen]
    assert part.target_texts == [f"text {n}+1000" for n in chosen]


def test_a_subset_of_labelled_texts_has_the_same_texts() -> None:
    tokens = Split("val", [np.concatenate(ROWS)], 0, 0)
    texts = LabelledSplit("val", TEXTS, np.arange(11) % 4, tokens, ENDS, np.arange(11) + 2, "x.tsv", {5: 9})

    part = subset_of_labelled(texts, 3)

    chosen = [1, 5, 9]
    assert (part.name, len(part)) == ("val", 3)
    assert part.texts == [TEXTS[index] for index in chosen]
    assert part.last_lines == {1: 9}
    assert part.label_ids.tolist() == [index % 4 for index in chosen]
    assert part.lengths.tolist() == [len(ROWS[index]) for index in chosen]
    for place, index in enumerate(chosen):
        assert part.row(place).tolist() == ROWS[index].tolist()
        assert part.where(place) == texts.where(index)
