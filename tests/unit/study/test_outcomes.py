"""Verdicts: published numbers by their tolerance, claims by the interval of paired differences."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clearformer.cli.views.study import numbers
from clearformer.errors import UserError
from clearformer.study import Claim, Probe, Published, Store, Study
from clearformer.study.outcomes import (
    BY_NO_NUMBER,
    FEW_SEEDS,
    HOLDS,
    IS_NOT_REFUTED,
    IS_OPEN,
    IS_REFUTED,
    NOT_JUDGED,
    NOT_REPRODUCED,
    NOT_RUN,
    REFUTED,
    REPRODUCED,
    SLIP,
    UNDECIDED,
    Estimate,
    Outcome,
    claim_verdict,
    estimated,
    outcome,
    student_quantile,
)
from clearformer.study.report.content import arm_row, table_of_arms
from clearformer.study.store import Record
from clearformer.study.study import Training, tuned
from clearformer.study.trials import trials

from .parts import tiny_study
from .reported import outcome_of, study

Numbers = Mapping[str, list[float]]


def nothing(**_: Any) -> dict[str, float]:
    return {}


def found(numbers: Numbers, scale: float = 1.0, training: bool = False, **fields: Any) -> Outcome:
    """An outcome of arms whose value `x` is given, seed by seed."""
    arms = tuple(Training(label) if training else Probe(label, nothing) for label in numbers)
    study = Study(**{"name": "s", "question": "?", "lecture": "", "arms": arms, "refuted_if": "", **fields})
    records = {
        label: {seed: Record("k", {}, seed, {"m": {"x": value}}, 1.0) for seed, value in enumerate(values, 1)}
        for label, values in numbers.items()
    }
    return Outcome(study, scale, sum(map(len, numbers.values())), records, {})


def test_the_interval_is_student_s() -> None:
    values = [1.0, 2.0, 4.0]
    mean = estimated(values)
    assert mean is not None
    assert mean.mean == pytest.approx(7 / 3)
    half = 4.302653 * math.sqrt(7 / 3) / math.sqrt(3)  # of 2 degrees of freedom, by a printed table
    assert mean.high == pytest.approx(7 / 3 + half, rel=1e-6)
    assert mean.low == pytest.approx(7 / 3 - half, rel=1e-6)
    assert mean.half_width == pytest.approx(half, rel=1e-6)
    assert student_quantile(10) == pytest.approx(2.228139, rel=1e-6)


def test_of_one_seed_there_is_no_interval_and_of_none_no_mean() -> None:
    assert estimated([]) is None
    one = estimated([3.0])
    assert one is not None
    assert (one.mean, one.low, one.high, one.half_width, one.n) == (3.0, None, None, None, 1)


@pytest.mark.parametrize(
    ("measured", "verdict"),
    [([2.0], REPRODUCED), ([2.09, 2.1], REPRODUCED), ([2.2], NOT_REPRODUCED), ([1.0, 1.1], NOT_REPRODUCED)],
)
def test_a_published_number_is_judged_by_its_tolerance(measured: list[float], verdict: str) -> None:
    planted = Published("a", "x", 2.0, 0.1, "4.1", why="it was rounded")
    [judged] = found({"a": measured}, published=(planted,)).published()
    assert judged.verdict == verdict
    assert judged.reason == ("it was rounded" if verdict == NOT_REPRODUCED else "")
    told = judged.to_dict()
    assert told["value"] == 2.0
    assert told["measured"] == pytest.approx(sum(measured) / len(measured))
    assert told["seeds"] == len(measured)
    assert (told["interval"] is None) == (len(measured) == 1)


def test_a_scaled_training_judges_nothing_and_a_probe_does() -> None:
    planted = (Published("a", "x", 2.0, 0.1, "4.1"),)
    [training] = found({"a": [9.0]}, 0.5, training=True, published=planted).published()
    [whole] = found({"a": [9.0]}, 1.0, training=True, published=planted).published()
    [probe] = found({"a": [9.0]}, 0.5, published=planted).published()
    assert (training.verdict, whole.verdict, probe.verdict) == (NOT_JUDGED, NOT_REPRODUCED, NOT_REPRODUCED)


def test_a_slip_is_called_so_and_what_was_not_run_too() -> None:
    slip = Published("a", "x", 2.0, 0.1, "4.1", slip="a digit is missing")
    absent = Published("b", "x", 2.0, 0.1, "4.1")
    one, other = found({"a": [3.0], "b": []}, published=(slip, absent)).published()
    assert (one.verdict, one.reason) == (SLIP, "a digit is missing")
    assert (other.verdict, other.measured) == (NOT_RUN, None)
    right, _ = found({"a": [2.05], "b": []}, published=(slip, absent)).published()
    assert (right.verdict, right.reason) == (REPRODUCED, "")  # what is measured decides, not the declaration


def test_a_number_at_the_edge_of_its_tolerance_is_reproduced() -> None:
    """Though 0.55 - 0.5 is 0.05000000000000004."""
    [judged] = found({"a": [0.55]}, published=(Published("a", "x", 0.5, 0.05, "4.1"),)).published()
    assert judged.verdict == REPRODUCED


def test_a_value_that_no_run_has_is_not_one_that_was_not_run() -> None:
    claim = Claim("a is less", "xx", "a", "b")
    of = found(
        {"a": [1.0, 2.0], "b": [3.0, 4.0]}, published=(Published("a", "xy", 1.0, 1.0, "1"),), claims=(claim,)
    )
    assert of.published()[0].verdict == "undecided: a has no value 'xy'; did you mean 'x'?"
    assert of.claims()[0].verdict.startswith("undecided: a has no value 'xx'")


def test_a_seed_whose_measure_failed_leaves_a_verdict_open() -> None:
    """As one that is no number does; what its other measures gave counts."""
    claim = Claim("a is less", "x", "a", "b")
    of = found({"a": [1.0, 1.1, 1.2], "b": [3.0, 3.1, 3.3]}, claims=(claim,))
    assert of.claims()[0].verdict == HOLDS
    partly = replace(of, failures={"b, seed 3": "no"}, unmeasured=frozenset({"b, seed 3"}))
    assert partly.claims()[0].verdict == HOLDS
    assert (partly.n_done, partly.missing, partly.is_whole) == (5, ["b, seed 3"], False)
    del partly.records["b"][3]
    without = replace(partly, unmeasured=frozenset())
    assert without.claims()[0].verdict == "undecided: b failed with seed 3"


def test_seeds_without_a_number_leave_verdicts_open() -> None:
    """A mean of the seeds that went well says nothing of the arm."""
    published, claim = Published("bad", "x", 2.0, 0.5, "1"), Claim("bad is lower", "x", "bad", "good")
    fields: dict[str, Any] = {"published": (published,), "claims": (claim,)}
    good = [3.0, 3.1, 3.2]
    whole = found({"bad": [2.0, 2.1, 2.2], "good": good}, **fields)
    assert (whole.published()[0].verdict, whole.claims()[0].verdict) == (REPRODUCED, HOLDS)
    for values, told in (
        ([2.0, math.nan, 2.2], "undecided: bad gave no number with seed 2"),
        ([math.inf, 2.1, math.nan], "undecided: bad gave no number with seeds 1, 3"),
        ([math.nan] * 3, "undecided: bad gave no number"),
    ):
        spoilt = found({"bad": values, "good": good}, **fields)
        assert (spoilt.published()[0].verdict, spoilt.claims()[0].verdict) == (told, told)
    whole.records["bad"][2] = Record("k", {}, 2, {"diverged": {"diverged_at": 7}}, 1.0)
    assert whole.published()[0].verdict == whole.claims()[0].verdict == "undecided: bad diverged with seed 2"
    assert [str(cell).endswith(" (2 of 3)") for cell in arm_row(whole, "bad", ["x", "y"])] == [
        False,
        True,
        False,
        False,
    ]
    assert not any(" of " in str(cell) for cell in arm_row(whole, "good", ["x"]))


def estimate(low: float | None, high: float | None) -> Estimate:
    return Estimate(0.0, low, high, 3, ())


@pytest.mark.parametrize(
    ("difference", "verdict"),
    [
        (None, NOT_RUN),
        (estimate(None, None), FEW_SEEDS),
        (estimate(-2.0, -1.0), HOLDS),
        (estimate(1.0, 2.0), REFUTED),
        (estimate(-1.0, 1.0), UNDECIDED),
        (estimate(-1.0, 0.0), UNDECIDED),
        (estimate(0.0, 1.0), UNDECIDED),
    ],
)
def test_no_winner_is_named_where_the_interval_holds_zero(difference: Estimate | None, verdict: str) -> None:
    assert claim_verdict(difference) == verdict


def test_a_claim_is_judged_by_differences_seed_by_seed() -> None:
    """The means overlap by far; each seed's difference is the same."""
    numbers = {"a": [1.0, 5.0, 9.0], "b": [1.1, 5.1, 9.11]}
    study = found(numbers, claims=(Claim("a is lower.", "x", "a", "b"), Claim("b is lower.", "x", "b", "a")))
    first, second = study.claims()
    assert (first.verdict, second.verdict) == (HOLDS, REFUTED)
    assert first.difference is not None
    assert first.difference.mean == pytest.approx(-0.31 / 3)


def test_a_difference_is_of_the_seeds_that_both_have() -> None:
    difference = found({"a": [1.0, 2.0, 9.0], "b": [0.0, 3.0]}).difference("a", "b", "x")
    assert difference is not None
    assert difference.values == (1.0, -1.0)


def test_a_partial_outcome_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEARFORMER_CACHE", str(tmp_path / "cache"))
    study, store = tiny_study(tmp_path), Store(tmp_path / "studies")
    first, second, *_ = trials(study)
    store.write(Record(first.key, {}, 1, {"losses": {"val_loss": 3.0}}, 1.0))
    store.write_failure(second, "no room")
    partial = outcome(study, store)
    assert (partial.n_done, partial.n_trials, partial.is_whole) == (1, 4, False)
    assert partial.missing == ["1 layers, seed 2", "2 layers, seed 1", "2 layers, seed 2"]
    assert partial.failures == {"2 layers, seed 1": "no room"}
    assert partial.labels == ["1 layers"]
    assert outcome(study, store, seeds=1).n_trials == 2


def test_a_seed_without_a_value_that_others_have_leaves_a_claim_open() -> None:
    claim = Claim("a is below b.", "x", "a", "b")
    of = found({"a": [1.0, 1.01, 0.0], "b": [2.0, 2.01, 0.1]}, claims=(claim,))
    assert of.claims()[0].verdict != HOLDS
    of.records["a"][3] = Record("k", {}, 3, {"m": {}}, 1.0)
    assert of.claims()[0].verdict == "undecided: a gave no number with seed 3"


def test_the_best_of_a_grid_is_of_the_seeds_that_all_rates_have_and_claims_wait_for_all() -> None:
    arms = tuple(replace(arm, seeds=2) for side in ("A", "B") for arm in tuned(side, {}, (1e-4, 1e-3, 1e-2)))
    of = found({arm.label: [3.0] for arm in arms})
    of = replace(
        of, study=replace(of.study, arms=arms, tuned_by="x", claims=(Claim("B is lower.", "x", "B", "A"),))
    )
    for side, best in (("A", 2.0), ("B", 2.2)):
        of.records[f"{side}, rate 0.001"][1] = Record("k", {}, 1, {"m": {"x": best}}, 1.0)
        of.records[f"{side}, rate 0.0001"][2] = Record(
            "k", {}, 2, {"m": {"x": 2.9 if side == "B" else 3.0}}, 1.0
        )

    assert [(each.side, each.best, each.n) for each in of.tuning()] == [
        ("A", "A, rate 0.001", 1),
        ("B", "B, rate 0.001", 1),
    ]
    assert "not every rate of A has run" in of.claims()[0].verdict


def test_a_notebook_shows_the_tables_of_the_report() -> None:
    planted = Published("<a>", "x", 2.0, 0.1, "4.1")
    html = found({"<a>": [2.2]}, question="Is a < b?", published=(planted,))._repr_html_()

    assert html.startswith("<p>Is a &lt; b?</p>")
    assert "<caption>Published and measured</caption>" in html
    assert NOT_REPRODUCED in html
    assert '<th scope="row">&lt;a&gt;</th>' in html


def test_a_misspelt_arm_is_named() -> None:
    of = found({"loss": [2.0]})
    assert repr(of).startswith("Outcome(")
    assert len(repr(of)) < 80
    for ask in (of.estimate, of.value, of.first):
        with pytest.raises(UserError, match="there is no arm 'Loss'; did you mean 'loss'"):
            ask("Loss", "x")
    with pytest.raises(UserError, match="there is no arm"):
        of.difference("loss", "zzz", "x")


def test_of_how_many_seeds_a_mean_is_stands_beside_it_in_every_table() -> None:
    few = [{f"v{i}": 1.0 + seed for i in range(12)} for seed in range(3)]
    lacking = [dict(each) for each in few]
    del lacking[1]["v3"]
    of = outcome_of(study("a", "b", seeds=3), {"a": lacking, "b": few})
    rows = {str(row[0]): row[1:] for row in table_of_arms(of, of.numbers()).rows}
    assert [str(cell).endswith(" (2 of 3)") for cell in rows["v3"]] == [True, False]
    assert not any(" of " in str(cell) for cell in rows["v4"])
    sparse = outcome_of(
        study("a", "b", "c", seeds=3),
        {"a": [{"x": 1.0}, {}, {"x": 2.0}], "b": [{"y": 1.0}] * 3, "c": [{"z": 1.0}] * 3},
    )
    assert sparse.is_sparse(sparse.numbers())
    assert "(2 of 3)" in numbers(sparse)


def of_values(**by_arm: dict[str, float]) -> Outcome:
    """An outcome of arms that have values of their own, one seed each."""
    return outcome_of(study(*by_arm, seeds=1), {arm: [values] for arm, values in by_arm.items()})


def test_values_that_each_belong_to_one_arm_have_a_row_each() -> None:
    """Such as worked values: a column for each would be empty but for one arm."""
    of = of_values(a={"x": 1.0}, b={"y": 2.0}, c={"z": 3.0})
    assert of.is_sparse(of.numbers())
    table = table_of_arms(of, of.numbers())
    assert table.heads == ("arm", "value", "measured", "seeds")
    assert table.rows == (("a", "x", "1", "1"), ("b", "y", "2", "1"), ("c", "z", "3", "1"))
    shared = of_values(a={"x": 1.0}, b={"x": 2.0}, c={"z": 3.0})
    assert not shared.is_sparse(shared.numbers())
    assert table_of_arms(shared, shared.numbers()).heads[0] == "arm"
    assert len(table_of_arms(shared, shared.numbers()).rows) == 3


@pytest.mark.parametrize(
    ("presets", "unit"),
    [
        (["quick"], "nats a token"),
        (["classify"], "nats a text"),
        (["translate"], "nats a token"),
        (["quick", "classify"], "nats"),
    ],
)
def test_a_table_says_what_the_losses_of_its_arms_count(presets: list[str], unit: str) -> None:
    arms = tuple(Training(preset, preset) for preset in presets)
    records = {preset: {1: Record("k", {}, 1, {"m": {"val_loss": 1.0}}, 1.0)} for preset in presets}
    of = Outcome(Study("s", "?", "", arms, ""), 1.0, len(arms), records, {})
    assert table_of_arms(of, ["val_loss"]).heads == ("arm", f"held-out loss, {unit}", "seeds")


LOW, HIGH, WIDE = [1.0, 1.1, 1.05], [2.0, 2.1, 2.05], [0.0, 3.0, 1.5]
DECIDING = Claim("Low is lower.", "x", "low", "high", decides=True)


@pytest.mark.parametrize(
    ("numbers", "verdict", "because"),
    [
        ({"low": LOW, "high": HIGH}, IS_NOT_REFUTED, ()),
        ({"low": HIGH, "high": LOW}, IS_REFUTED, ("Low is lower.",)),
        ({"low": LOW, "high": WIDE}, IS_OPEN, ("Low is lower.",)),
        ({"low": [1.0], "high": [2.0]}, IS_OPEN, ("Low is lower.",)),
    ],
)
def test_the_deciding_claims_tell_whether_a_study_is_refuted(
    numbers: Numbers, verdict: str, because: tuple[str, ...]
) -> None:
    refutation = found(numbers, claims=(DECIDING, Claim("High is lower.", "x", "high", "low"))).refutation()
    assert (refutation.verdict, refutation.because) == (verdict, because)


def test_a_number_that_is_not_reproduced_refutes_before_what_is_open() -> None:
    off = Published("low", "x", 7.0, 0.1, "1", decides=True)
    refutation = found({"low": LOW, "high": WIDE}, claims=(DECIDING,), published=(off,)).refutation()
    assert (refutation.verdict, refutation.because) == (IS_REFUTED, ("low: x 7.",))


def test_a_study_that_names_nothing_to_decide_it_is_told_by_no_number() -> None:
    plain = Published("low", "x", 1.05, 0.1, "1")
    assert found({"low": LOW, "high": HIGH}, published=(plain,)).refutation().verdict == BY_NO_NUMBER


def test_a_side_is_not_judged_before_all_its_rates_have_run() -> None:
    arms = tuned("side", {}, (0.1, 0.2))
    study = Study("s", "?", "", arms, "", published=(Published("side", "x", 1.05, 0.1, "1"),), tuned_by="x")
    records = {arms[0].label: {seed: Record("k", {}, seed, {"m": {"x": 1.05}}, 1.0) for seed in (1, 2, 3)}}
    (verdict,) = Outcome(study, 1.0, 6, records, {}).published()
    assert verdict.verdict == "undecided: not every rate of side has run"


def test_a_number_that_draws_nothing_is_set_beside_every_seed() -> None:
    arms = (Probe("model", nothing), Probe("guessing", nothing, seeds=1))
    claims = (Claim("Models are better.", "x", "model", "guessing"),)
    study = found({"model": [1.0, 1.2, 1.1], "guessing": [4.0]}, arms=arms, claims=claims)
    for one, other, mean in (("model", "guessing", -2.9), ("guessing", "model", 2.9)):
        difference = study.difference(one, other, "x")
        assert difference is not None
        assert (difference.mean, difference.n) == (pytest.approx(mean), 3)
    assert [each.verdict for each in study.claims()] == [HOLDS]
