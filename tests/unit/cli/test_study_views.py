"""Studies as the command line prints them."""

from pathlib import Path

import pytest
import torch

from clearformer.cli.commands.study import listed
from clearformer.cli.views.study import as_text, described, interval, outcome_text
from clearformer.model import build
from clearformer.study import Probe, Store, Study
from clearformer.study.outcomes import Estimate, Outcome
from clearformer.study.store import Record
from clearformer.study.trials import trials
from clearformer.training.planning.run_plan import expected_model

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


def test_a_training_that_diverged_is_told(tmp_path: Path) -> None:
    record = Record("k", {}, 1, {"diverged": {"diverged_at": 7}}, 1.0)
    text = outcome_text(Outcome(tiny_study(tmp_path), 1.0, 4, {"1 layers": {1: record}}, {}), tmp_path)
    assert "diverged: 1 layers, seed 1: at step 7" in text


def test_the_list_counts_no_result_of_another_file(tmp_path: Path) -> None:
    store, other = Store(tmp_path / "studies"), tmp_path / "other.txt"
    other.write_text("another text of some words\n" * 60)
    study = tiny_study(tmp_path, settings=tiny(tmp_path) | {"data": {"path": str(other)}}, seeds=1)
    for trial in trials(tiny_study(tmp_path, seeds=1)):
        measured = {measure.key: {} for measure in study.measures}
        store.write(Record(trial.key, trial.settings, 1, measured, 1.0))
    assert listed(tiny_study(tmp_path, seeds=1), store, store.by_settings())["done"] == 2
    assert listed(study, store, store.by_settings())["done"] == 0


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (700.0, 1017.6, "859 ± 159"),
        (1.23434, 1.23458, "1.23446 ± 0.00012"),
        (1234.25, 1234.75, "1,234.50 ± 0.25"),
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


def test_a_study_for_a_device_that_is_not_here_is_shown_without_a_time(tmp_path: Path) -> None:
    absent = "cuda" if not torch.cuda.is_available() else "mps"
    study = tiny_study(tmp_path, seeds=1, settings={**tiny(tmp_path), "train.device": absent})
    shown = described(study, Store(tmp_path / "studies"), 1.0, None, None)
    assert shown["seconds_left"] is None
    assert [arm["seconds"] for arm in shown["arms"]] == [None, None]
    for arm, trial in zip(shown["arms"], trials(study), strict=True):
        assert trial.config is not None
        assert arm["parameters"] == sum(p.numel() for p in build(expected_model(trial.config)).parameters())
    assert "time left" not in as_text(shown)


def n_letters(seed: int, file: str) -> dict[str, int]:
    return {"n": len(Path(file).read_text())}


def test_the_list_counts_no_probe_of_what_a_file_held_before(tmp_path: Path) -> None:
    file, store = tmp_path / "a.txt", Store(tmp_path / "studies")
    file.write_text("abc")
    probe = Probe("letters", n_letters, {"file": str(file)}, seeds=1, reads=(str(file),))
    study = Study("s", "?", "", (probe,), "")
    (trial,) = trials(study)
    store.write(Record(trial.key, trial.settings, 1, {"probe": {"n": 3}}, 0.1))
    assert listed(study, store, store.by_settings())["done"] == 1
    file.write_text("abcd")
    assert listed(study, store, store.by_settings())["done"] == 0


def test_a_study_is_shown_with_what_its_arms_are_trained_with(tmp_path: Path) -> None:
    shown = described(tiny_study(tmp_path, seeds=1), Store(tmp_path / "studies"), 1.0, None, "cpu")
    assert shown["settings"]["model.d_model"] == "12"
    assert [(arm["preset"], arm["settings"]) for arm in shown["arms"]] == [
        ("quick", {"model.n_layers": "1"}),
        ("quick", {"model.n_layers": "2"}),
    ]
    assert "1 layers  quick model.n_layers=1" in as_text(shown)
