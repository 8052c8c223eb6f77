"""Studies as the command line prints them."""

from pathlib import Path

import pytest

from clearformer.cli.views.study import outcome_text
from clearformer.study.outcomes import Outcome

from ..study.parts import tiny_study


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
