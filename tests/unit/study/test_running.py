"""One run of a study: trained, gone on with after a kill, measured; nothing twice."""

import json
import math
import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clearformer.errors import Interrupted, UserError
from clearformer.study import Measure, Store, running
from clearformer.study.measures.losses import HELD_OUT, MOST_POINTS, STEP, curve, losses
from clearformer.study.measures.samples import sample
from clearformer.study.running import checked, compute, has_trained_weights, is_trained
from clearformer.study.trials import Trial, trials
from clearformer.training.evaluator import Evaluator
from clearformer.training.reporting.report import Reporter
from clearformer.training.store.checkpoint import (
    MODEL,
    OPTIMIZER,
    STATE,
    Progress,
    list_checkpoints,
    step_folder,
    step_of,
)
from clearformer.training.store.folder import RunFolder

from .parts import tiny_study


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEARFORMER_CACHE", str(tmp_path / "cache"))


def first_trial(folder: Path, **changes: Any) -> Trial:
    return trials(tiny_study(folder, **changes))[0]


class Ending(Reporter):
    """Ends a training after some steps."""

    def __init__(self, step: int, number: int = signal.SIGTERM) -> None:
        self.step, self.number = step, number

    def stepped(self, progress: Progress, metrics: Mapping[str, Any]) -> None:
        if progress.step == self.step:
            os.kill(os.getpid(), self.number)


class Crash(BaseException):
    """As a kill: nothing is saved."""


class Crashing(Reporter):
    def __init__(self, step: int) -> None:
        self.step = step

    def stepped(self, progress: Progress, metrics: Mapping[str, Any]) -> None:
        if progress.step == self.step:
            raise Crash


def begun_at(file: Path) -> list[int]:
    return [json.loads(line)["step"] for line in file.read_text().splitlines()]


def test_a_run_is_trained_measured_and_kept(tmp_path: Path) -> None:
    store, trial = Store(tmp_path / "studies"), first_trial(tmp_path)
    record = compute(trial, store)
    found = store.find(trial)
    assert found is not None
    assert (found.key, found.values, found.about) == (trial.key, record.values, record.about)
    assert record.settings["config"]["model"]["n_layers"] == 1
    assert record.values["parameters"] > 0
    assert record.seed == 1
    decided = {"dtype", "compile"}
    assert set(record.about) == {"created", "processor", "cpus", "threads", "gpus", "versions"} | decided
    assert (record.about["dtype"], record.about["compile"]) == ("float32", False)
    assert str(tmp_path) not in (store.measured / f"{trial.key}.json").read_text()


def test_checkpoints_that_decide_the_end_are_those_of_the_settings(tmp_path: Path) -> None:
    store = Store(tmp_path / "studies")
    for patience, every in (({}, 500), ({"train.patience": 1}, 1000)):
        trial = first_trial(tmp_path, settings=dict(tiny_study(tmp_path).settings) | patience)
        compute(trial, store)
        assert RunFolder(store.runs / trial.key).read_config().train.checkpoint_every == every


def test_what_is_measured_later_was_trained_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, trial = Store(tmp_path / "studies"), first_trial(tmp_path)
    first = compute(trial, store)
    monkeypatch.setattr(running, "about", lambda: {"processor": "another", "created": "later"})
    later = compute(trial.with_measures([Measure(sample)]), store)
    assert later.measured.keys() > first.measured.keys()
    assert later.about == first.about
    shutil.rmtree(store.runs)  # as on another machine, which has the measurements alone
    again = compute(trial.with_measures([Measure(sample, {"tokens": 7})]), store)
    assert again.about["processor"] == "another"
    assert Measure(sample).key not in again.measured  # which was taken of other weights


def test_a_last_evaluation_that_failed_is_made_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, trial = Store(tmp_path / "studies"), first_trial(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Evaluator, "evaluate_at_the_end", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            compute(trial, store)
    assert (
        compute(trial, store).values["val_loss"]
        == compute(trial, Store(tmp_path / "whole")).values["val_loss"]
    )


def test_a_run_that_was_ended_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    whole, store = Store(tmp_path / "whole"), Store(tmp_path / "studies")
    trial = first_trial(tmp_path)
    expected = compute(trial, whole)
    with pytest.raises(Interrupted):
        compute(trial, store, Ending(2))
    assert store.find(trial) is None
    assert not is_trained(RunFolder(store.runs / trial.key), trial.config.train)  # type: ignore[union-attr]

    steps: list[int] = []

    class Noting(Reporter):
        def stepped(self, progress: Progress, metrics: Mapping[str, Any]) -> None:
            steps.append(progress.step)

    record = compute(trial, store, Noting())
    assert steps == [3]
    assert record.values["val_loss"] == expected.values["val_loss"]
    assert record.values["train_loss"] == expected.values["train_loss"]


def test_a_run_that_was_killed_goes_on_from_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "CHECKPOINT_EVERY", 1)
    store, trial = Store(tmp_path / "studies"), first_trial(tmp_path)
    with pytest.raises(Crash):
        compute(trial, store, Crashing(3))
    steps: list[int] = []

    class Noting(Reporter):
        def stepped(self, progress: Progress, metrics: Mapping[str, Any]) -> None:
            steps.append(progress.step)

    compute(trial, store, Noting())
    assert steps
    assert steps[0] > 1


def doubled(run: Any, of: str = "val_loss") -> dict[str, float]:
    return {"doubled": 2 * losses(run)[of]}


def test_a_run_whose_newest_checkpoint_is_damaged_is_not_trained_yet(tmp_path: Path) -> None:
    """Its training goes on from an earlier one."""
    store = Store(tmp_path / "studies")
    trial = trials(tiny_study(tmp_path))[0]
    assert trial.config is not None
    folder = RunFolder(store.runs / trial.key)
    damaged = step_folder(folder.checkpoints, 10**6)
    damaged.mkdir(parents=True)
    folder.config_file.touch()
    (damaged / STATE).write_text("{")
    assert not is_trained(folder, trial.config.train)


def test_a_run_whose_last_weights_are_damaged_is_trained_to_its_end_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its optimizer had is no longer needed."""
    monkeypatch.setattr(running, "CHECKPOINT_EVERY", 1)  # so that there is an earlier one
    trial, store = first_trial(tmp_path), Store(tmp_path / "studies")
    record = compute(trial, store)
    assert trial.config is not None
    folder = RunFolder(store.runs / trial.key)
    newest = max(list_checkpoints(folder.checkpoints), key=step_of)
    (newest / OPTIMIZER).write_bytes(b"")
    assert has_trained_weights(folder, trial.config.train)

    (newest / MODEL).write_bytes((newest / MODEL).read_bytes()[:-1] + b"?")
    assert not has_trained_weights(folder, trial.config.train)
    again = compute(trial, store)
    assert again.measured["losses"]["val_loss"] == record.measured["losses"]["val_loss"]
    assert has_trained_weights(folder, trial.config.train)


def test_a_further_measure_trains_nothing_and_keeps_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "studies")
    first = compute(first_trial(tmp_path), store)
    further = first_trial(tmp_path, measures=(*tiny_study(tmp_path).measures, Measure(doubled)))
    assert not store.is_done(further)

    def refused(*_: object) -> None:
        raise AssertionError("it was trained again")

    monkeypatch.setattr(running, "train_run", refused)
    record = compute(further, store)
    assert record.values["doubled"] == 2 * first.values["val_loss"]
    assert record.values["curve"] == first.values["curve"]
    assert record.seconds == first.seconds


def test_a_run_that_keeps_fewer_checkpoints_than_are_measured_is_refused(tmp_path: Path) -> None:
    """Else a measure of its checkpoints would find another number of them, by which study came first."""
    store, study = Store(tmp_path / "studies"), tiny_study(tmp_path)
    compute(trials(study)[0], store)
    settings = dict(study.settings) | {"train.keep_last": 7}
    more = first_trial(tmp_path, settings=settings, measures=(*study.measures, Measure(doubled)))
    with pytest.raises(
        UserError, match=r"was trained with train.keep_last=2, and this study asks for 7: move"
    ):
        compute(more, store)
    fewer = first_trial(tmp_path, settings=settings | {"train.keep_last": 1}, measures=more.measures)
    assert "doubled" in compute(fewer, store).values


@pytest.mark.parametrize(
    ("held_out", "expected"),
    [
        ({"val_loss": 2.0}, (math.inf, 2.0, math.exp(2))),
        ({"val_loss": 900.0}, (math.inf, 900.0, math.inf)),
        ({}, (math.inf, None, None)),  # data.val_fraction=0
    ],
)
def test_losses_that_are_too_large_for_a_perplexity_or_missing_are_kept(
    tmp_path: Path, held_out: dict[str, float], expected: tuple[float, float | None, float | None]
) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text(json.dumps({"step": 1, "tokens": 8, "seconds": 0.5, "loss": 800.0, **held_out}) + "\n")
    run: Any = SimpleNamespace(folder=SimpleNamespace(metrics_file=file), step=1, n_parameters=7)
    found = losses(run)
    assert found["train_loss"] == 800
    assert (found["train_perplexity"], found["val_loss"], found["perplexity"]) == expected


def defective(run: Any) -> dict[str, float]:
    raise ZeroDivisionError


def thorough(run: Any) -> dict[str, float]:
    return {"n": 1.0}


def interrupted(run: Any) -> dict[str, float]:
    raise KeyboardInterrupt


def test_a_thinned_curve_has_held_out_losses_at_their_own_steps() -> None:
    lines = [{"step": n, "tokens": 10 * n, "seconds": 0.1 * n, "loss": 1.0} for n in range(1, 1001)]
    for line in lines[32::33]:
        line["val_loss"] = float(line["step"])
    rows = curve(lines)
    assert [row[STEP] for row in rows if row[HELD_OUT] is not None] == list(range(33, 1001, 33))
    assert all(row[HELD_OUT] in (None, row[STEP]) for row in rows)
    assert rows[-1][STEP] == 1000
    assert MOST_POINTS <= len(rows) < 2 * MOST_POINTS


def test_what_was_measured_before_a_measure_failed_is_kept(tmp_path: Path) -> None:
    store = Store(tmp_path / "studies")
    trial = first_trial(tmp_path).with_measures([Measure(defective), Measure(thorough)])
    with pytest.raises(ZeroDivisionError):
        compute(trial, store)
    assert store.is_done(first_trial(tmp_path))
    assert store.is_done(first_trial(tmp_path).with_measures([Measure(thorough)]))  # another study's, maybe
    assert not store.is_done(trial)


def test_what_was_measured_before_an_interrupt_is_kept(tmp_path: Path) -> None:
    store = Store(tmp_path / "studies")
    trial = first_trial(tmp_path).with_measures([Measure(interrupted)])
    with pytest.raises(KeyboardInterrupt):
        compute(trial, store)
    assert store.is_done(first_trial(tmp_path))


def test_a_run_with_a_limit_of_time_is_whole_once_it_is_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = dict(tiny_study(tmp_path).settings) | {"train.max_seconds": 1e-6, "train.max_steps": "none"}
    store, trial = Store(tmp_path / "studies"), first_trial(tmp_path, settings=settings)
    compute(trial, store)
    assert trial.config is not None
    assert is_trained(RunFolder(store.runs / trial.key), trial.config.train)


@pytest.mark.parametrize("values", [None, 3, [1]])
def test_a_measure_gives_values_by_name(values: Any) -> None:
    with pytest.raises(TypeError, match=r"count returns .*; a measure returns a mapping of values by name"):
        checked("count", values)


def test_two_measures_may_not_give_one_name_two_values(tmp_path: Path) -> None:
    def lowered(run: Any) -> dict[str, float]:
        return {"val_loss": 0.0}

    def same(run: Any) -> dict[str, float]:
        return {"parameters": losses(run)["parameters"]}

    trial = first_trial(tmp_path, measures=(Measure(losses), Measure(lowered)))
    with pytest.raises(UserError, match="lowered and losses both measure 'val_loss', with different values"):
        compute(trial, Store(tmp_path / "studies"))
    compute(first_trial(tmp_path, measures=(Measure(losses), Measure(same))), Store(tmp_path / "studies"))
    of_two_studies = first_trial(tmp_path, measures=(Measure(losses),)).with_measures([Measure(lowered)])
    assert compute(of_two_studies, Store(tmp_path / "studies")).has(of_two_studies)  # each reads its own
