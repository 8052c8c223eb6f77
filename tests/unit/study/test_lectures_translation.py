"""The studies of translation: the true alignment of dates by hand, and both studies at a tiny size from end to end."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from clearformer.data.builtin.dates import make_pairs
from clearformer.study.lectures import translation
from clearformer.study.measures.alignments import chance, date_pair, hits, share, truth
from clearformer.study.measures.translations import bleu_by_length, on_a_grid
from clearformer.study.outcomes import outcome
from clearformer.study.running import compute
from clearformer.study.store import Store
from clearformer.study.trials import trials

pytest.importorskip("sacrebleu")


def stretches(text: str, parts: dict[str, tuple[int, int]]) -> dict[str, str]:
    return {name: text.encode()[start:stop].decode() for name, (start, stop) in parts.items()}


# Three dates by hand: with a weekday and an accent, in figures with two digits of the year, and as ISO has it.
@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        (
            "sam. 7 févr. 1789",
            "Saturday, February 7, 1789",
            {
                "year": ("1789", "1789"),
                "month": ("févr", "February"),
                "day": ("7", "7"),
                "weekday": ("sam", "Saturday"),
                "year 1": ("9", "9"),
                "year 2": ("8", "8"),
                "year 3": ("7", "7"),
                "year 4": ("1", "1"),
                "day 1": ("7", "7"),
            },
        ),
        (
            "le 03/11/79",
            "November 3, 1979",
            {
                "year": ("79", "1979"),
                "month": ("11", "November"),
                "day": ("03", "3"),
                "year 1": ("9", "9"),
                "year 2": ("7", "7"),
                "day 1": ("3", "3"),
            },
        ),
        (
            "2024-12-25",
            "December 25, 2024",
            {
                "year": ("2024", "2024"),
                "month": ("12", "December"),
                "day": ("25", "25"),
                "year 1": ("4", "4"),
                "year 2": ("2", "2"),
                "year 3": ("0", "0"),
                "year 4": ("2", "2"),
                "day 1": ("5", "5"),
                "day 2": ("2", "2"),
            },
        ),
    ],
)
def test_the_true_alignment_of_a_date(source: str, target: str, expected: dict[str, tuple[str, str]]) -> None:
    pair = date_pair(source, target)
    assert pair is not None
    theirs, ours = stretches(source, pair.source_parts), stretches(target, pair.target_parts)
    assert {name: (theirs[name], ours[name]) for name in theirs.keys() & ours.keys()} == expected


def test_equal_digits_in_two_places_are_told_apart() -> None:
    pair = date_pair("2024-12-25", "December 25, 2024")
    assert pair is not None
    assert pair.source_parts["year 1"] == (3, 4)
    assert pair.target_parts["year 1"] == (16, 17)
    assert pair.source_parts["day 2"] == (8, 9)
    assert pair.target_parts["day 2"] == (9, 10)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("14 juillet 1789", "July 15, 1789"),
        ("14 juin 1789", "July 14, 1789"),
        ("2992-12-01 15 heures 30", "December 1, 2992 at 3:30 PM"),
        ("le sept juillet 2172", "July 7, 2172"),
        ("samedi 14 juillet 1789", "July 14, 1789"),
        ("3,14", "3.14"),
        ("14 juillet 89", "July 14, 1989"),
    ],
)
def test_what_is_no_date_or_says_another_is_left_out(source: str, target: str) -> None:
    assert date_pair(source, target) is None


def test_most_dates_of_the_built_in_pairs_have_a_known_alignment() -> None:
    days = [
        pair
        for pair in make_pairs("fr", "en", 400)
        if len(pair.values) == 1 and pair.values[0].startswith("day ")
    ]
    days = [pair for pair in days if pair.values[0].startswith(("day 0", "day 1", "day 2"))]
    found = [date_pair(pair.source, pair.target) for pair in days]
    assert sum(each is not None for each in found) > 0.85 * len(days)


def test_truth_of_tokens() -> None:
    pair = date_pair("3/11/79", "November 3, 1979")
    assert pair is not None
    read_ = [(0, 1), (1, 2), (2, 4), (4, 5), (5, 6), (6, 7), (7, 7)]  # 3 / 11 / 7 9 <eos>
    written = [
        (0, 8),
        (8, 10),
        (10, 11),
        (11, 12),
        (12, 14),
        (14, 15),
        (15, 16),
    ]  # November, 3 "," " " 19 7 9
    parts = truth(pair, written, read_, digits=False)
    assert [np.flatnonzero(row).tolist() for row in parts] == [[2], [0], [], [], [4, 5], [4, 5], [4, 5]]
    digits = truth(pair, written, read_, digits=True)
    assert [np.flatnonzero(row).tolist() for row in digits] == [[], [0], [], [], [], [4], [5]]


def test_hits_and_chance() -> None:
    true = np.array([[True, False, False, True], [False] * 4, [False, True, False, False]])
    weights = np.array(
        [[[0.1, 0.2, 0.3, 0.4], [1.0, 0, 0, 0], [0.4, 0.3, 0.2, 0.1]], [[0.7, 0.1, 0.1, 0.1]] * 3]
    )
    assert hits(weights, true).tolist() == [[1.0, 0.0], [1.0, 0.0]]
    assert chance(true).tolist() == [0.5, 0.25]
    assert share([], lambda each: chance(each.parts)) is None


def test_scores_on_a_grid_of_seconds() -> None:
    assert on_a_grid([2.0, 8.0, 12.0], [0.0, 6.0, 10.0]) == [[5.0, 3.0], [10.0, 8.0]]


def test_bleu_by_length_takes_the_shortest_first() -> None:
    class Scores:
        hypotheses = ("x y z w v", "the cat sat on the mat", "a b c d e", "q r s t u")
        references = ("the cat sat on it", "the cat sat on the mat", "b a d c f", "q r s t u")

    rows = bleu_by_length(Scores(), [9, 3, 7, 5])  # type: ignore[arg-type]
    assert [length for length, _ in rows] == [3, 5, 7, 9]
    assert rows[0][1] == rows[1][1] == pytest.approx(100)
    assert rows[3][1] == pytest.approx(0)


def test_the_studies_of_dates_share_their_runs(tmp_path: Path) -> None:
    settings = {
        **translation.SMALL,
        "model.d_model": 16,
        "model.n_layers": 1,
        "model.attention.n_heads": 2,
        "train.objective": {"kind": "translation", "batch_tokens": 128},
        "train.checkpoint_every": 2,
        "train.device": "cpu",
    }
    dates = replace(
        translation.DATES,
        settings={
            **translation.DATES.settings,
            "data": {"kind": "pairs", "name": "dates", "size": 400},
            "tokenizer": {"kind": "bpe", "vocab_size": 300, "digits": "single"},
            "train.max_steps": 4,
        },
    )
    store, values = Store(tmp_path), {}
    for study in translation.STUDIES:
        claims = tuple(claim for claim in study.claims if claim.lower == "dates")
        small = replace(study, arms=(dates,), settings=settings, claims=claims, seeds=1)
        [trial] = trials(small)
        compute(trial, store)
        found = outcome(small, store)
        assert found.is_whole
        assert not found.failures
        assert all(verdict.difference is not None for verdict in found.claims())
        values |= found.records["dates"][1].values
    assert len(list(store.runs.iterdir())) == 1
    assert [step for step, _ in values["bleu_by_step"]] == [2, 4]
    assert len(values["bleu_by_length"]) == 4
    assert values["n_dates"] >= 1
    assert 0 < values["aligned_by_chance"] < 1
    assert 0 <= values["aligned_by_best_head"] <= 1
    assert np.shape(values["aligned_by_head"]) == (1, 2)
