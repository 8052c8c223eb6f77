"""Studies as the command line prints them."""

from pathlib import Path

import pytest

from clearformer.cli.views.study import as_text, described, interval, outcome_text
from clearformer.study import Store
from clearformer.study.outcomes import Estimate, Outcome
from clearformer.study.store import Record
from clearformer.study.trials import trials

from ..study.parts import tiny, tiny_study


def test_a_reason_that_stopped_several_runs_is_given_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    failures = {
        "a, seed 1": "no text",
        "a, seed 2": "no text",
        "b, seed 1": "no room",
        "b, seed 2": "no text",
    }
    text = outcome_text(Outcome(tiny_study(tmp_path), 1.0, 4, {}, failures), tmp_path)
    assert [line for line in text.splitlines() if line.startswith("failed")] == [
        "failed: a, seed 1, and 2 more runs: no text",
        "failed: b, seed 1: no room",
    ]


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (700.0, 1017.6, "858.8 ± 159"),
        (1.618, 1.646, "1.632 ± 0.014"),
        (9_999.6, 9_999.6, "10,000"),
        (4.0, 4.0, "4"),
    ],
)
def test_a_mean_and_its_interval_are_plain_numbers(low: float, high: float, text: str) -> None:
    assert interval(Estimate((low + high) / 2, low, high, 2, ())) == text


def test_parameters_are_those_measured_and_before_that_marked_as_a_guess(tmp_path: Path) -> None:
    study, store = (
        tiny_study(tmp_path, settings=tiny(tmp_path, tokenizer="char")),
        Store(tmp_path / "studies"),
    )
    before = described(study, store, 1.0, None, None)
    assert "~" in as_text(before)
    assert "the number of distinct characters is not known yet" in as_text(before)
    first = trials(study)[0]
    store.write(Record(first.key, first.settings, 1, {"losses": {"parameters": 1234}}, 1.0))
    one, two = described(study, store, 1.0, None, None)["arms"]
    assert (one["parameters"], one["notes"]) == (1234, [])
    assert two["notes"]
