"""Sides of a comparison that are tuned alike, and runs that diverge: both as values, without training."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from clearformer.errors import ConfigError
from clearformer.study.outcomes import Outcome, outcome
from clearformer.study.report.content import tables
from clearformer.study.report.nodes import Table
from clearformer.study.report.result import result_of
from clearformer.study.running import compute
from clearformer.study.store import DIVERGED, Record, Store
from clearformer.study.study import Claim, Measure, Study, Training, tuned
from clearformer.study.trials import trials


def nothing(run: object) -> dict[str, float]:
    return {}


def study_of(**changes: object) -> Study:
    settings = {
        "name": "sides",
        "question": "Which?",
        "lecture": "",
        "arms": (*tuned("A", {}, (1e-3, 1e-2, 1e-1)), *tuned("B", {}, (1e-3, 1e-2, 1e-1)), Training("alone")),
        "refuted_if": "",
        "claims": (Claim("A is lower.", "val_loss", "A", "B"),),
    }
    return Study(**(settings | changes))  # type: ignore[arg-type]


def measured(study: Study, losses: Mapping[str, Sequence[float | None]]) -> Outcome:
    """An outcome of held-out losses by arm and seed; None is a run that diverged at step 7."""
    records = {
        arm: {
            seed: Record(
                f"{arm}-{seed}",
                {},
                seed,
                {DIVERGED: {"diverged_at": 7}} if loss is None else {"losses": {"val_loss": loss}},
                1.0,
            )
            for seed, loss in enumerate(by_seed, 1)
        }
        for arm, by_seed in losses.items()
    }
    return Outcome(study, 1.0, 21, records, {})


LOSSES: dict[str, list[float | None]] = {
    "A, rate 0.001": [2.5, 2.6, 2.7],
    "A, rate 0.01": [2.0, 2.3, 2.1],
    "A, rate 0.1": [1.0, None, None],
    "B, rate 0.001": [2.2, 2.6, 2.35],
    "B, rate 0.01": [2.5, 2.7, 2.6],
    "B, rate 0.1": [None, None, None],
    "alone": [3.0, 3.0, 3.0],
}


def test_each_side_is_trained_at_every_rate() -> None:
    arms = tuned("A", {"model.n_layers": 3}, (1e-3, 3e-3))
    assert [arm.label for arm in arms] == ["A, rate 0.001", "A, rate 0.003"]
    assert [arm.settings for arm in arms] == [
        {"model.n_layers": 3, "train.lr": rate} for rate in (1e-3, 3e-3)
    ]
    assert {arm.side for arm in arms} == {"A"}
    assert tuned("A", {"model.n_layers": 3}, (3e-3, 1e-3)) == arms  # the first and the last are the edges


def test_the_lowest_mean_over_all_seeds_stands_for_a_side() -> None:
    tuning = {each.side: each for each in measured(study_of(), LOSSES).tuning()}
    # The rate that has the lowest loss, and diverged with two of three seeds, is not taken.
    assert tuning["A"].best == "A, rate 0.01"
    assert tuning["A"].mean == pytest.approx((2.0 + 2.3 + 2.1) / 3)
    assert tuning["A"].n == 3
    assert not tuning["A"].is_at_the_edge
    assert tuning["B"].best == "B, rate 0.001"
    assert tuning["B"].is_at_the_edge


def test_a_claim_of_sides_is_judged_by_their_best_and_names_them() -> None:
    [verdict] = measured(study_of(), LOSSES).claims()
    assert (verdict.lower, verdict.higher) == ("A, rate 0.01", "B, rate 0.001")
    assert verdict.difference is not None
    assert verdict.difference.values == pytest.approx((-0.2, -0.3, -0.25))
    assert verdict.verdict == "holds"


def test_a_side_stands_in_place_of_its_arms() -> None:
    found = measured(study_of(), LOSSES)
    assert found.compared == ["A", "B", "alone"]
    assert found.value("A", "val_loss") == [2.0, 2.3, 2.1]
    assert found.value("alone", "val_loss") == [3.0, 3.0, 3.0]


def test_a_side_that_diverged_at_every_rate_is_not_called_unmeasured() -> None:
    diverged = {arm: [None] * 3 if arm.startswith("B") else losses for arm, losses in LOSSES.items()}
    [verdict] = measured(study_of(), diverged).claims()
    assert verdict.difference is None
    assert verdict.verdict == "undecided: B diverged"


def test_a_claim_may_compare_two_values_of_one_arm() -> None:
    record = Record("k", {}, 1, {"m": {"near": 1.0, "far": 3.0}}, 1.0)
    claims = (Claim("Near is lower.", "near", "alone", "alone", "far"),)
    found = Outcome(study_of(claims=claims), 1.0, 1, {"alone": {1: record, 2: record}}, {})
    [verdict] = found.claims()
    assert verdict.difference is not None
    assert verdict.difference.mean == -2.0


def test_no_arm_is_called_as_a_side_is() -> None:
    with pytest.raises(ConfigError, match="a side and an arm have the label 'A'"):
        study_of(arms=(*tuned("A", {}, (1e-3,)), Training("A")), claims=())


def test_a_claim_of_no_side_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="there is no arm 'alon'"):
        study_of(claims=(Claim("", "val_loss", "A", "alon"),))


def test_a_run_that_diverges_is_a_result(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be, that is the question\n" * 60)
    settings = {
        "data": {"kind": "text", "path": str(text), "name": "none"},
        "model.d_model": 16,
        "model.n_layers": 1,
        "model.max_seq_len": 8,
        "train.batch_size": 2,
        "train.max_steps": 12,
        "train.lr": 1e30,
        "train.device": "cpu",
    }
    study = study_of(
        arms=(Training("wild", "lecture", settings),), claims=(), measures=(Measure(nothing),), seeds=1
    )
    store, [trial] = Store(tmp_path / "studies"), trials(study)
    record = compute(trial, store)
    assert 1 <= record.values["diverged_at"] <= 12
    assert store.is_done(trial)
    found = outcome(study, store)
    assert found.is_whole
    assert not found.failures
    assert len(found.value("wild", "diverged_at")) == 1


def test_the_report_says_which_rate_stands_for_a_side() -> None:
    found = [node for node in tables(measured(study_of(), LOSSES)) if isinstance(node, Table)]
    [tuning] = [table for table in found if table.caption.startswith("Learning rates tried")]
    assert [row[:2] for row in tuning.rows] == [("A", "A, rate 0.01"), ("B", "B, rate 0.001")]
    assert [str(row[-1])[:3] for row in tuning.rows] == ["no", "yes"]
    written = result_of(measured(study_of(), LOSSES))["tuning"]
    assert [(each["side"], each["best"]) for each in written] == [
        ("A", "A, rate 0.01"),
        ("B", "B, rate 0.001"),
    ]
