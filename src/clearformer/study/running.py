"""Train or resume one run of a study, measure it, and store the measurements."""

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeGuard

from clearformer.device import kept_random_state
from clearformer.errors import CheckpointError, NonFiniteError, UserError
from clearformer.results import plain
from clearformer.run import Run, load
from clearformer.runs.training import RunStart, train_run
from clearformer.study.store import DIVERGED, Record, Store
from clearformer.study.study import Measure, Probe, Values
from clearformer.study.trials import PROBE, Trial
from clearformer.training.config import TrainConfig
from clearformer.training.limits import is_finished
from clearformer.training.reporting.report import Reporter
from clearformer.training.store.checkpoint import (
    MODEL,
    STATE,
    list_checkpoints,
    read_progress,
    step_of,
    verify,
)
from clearformer.training.store.folder import RunFolder, environment, read_metrics

CHECKPOINT_EVERY = 500


def compute(trial: Trial, store: Store, reporter: Reporter | None = None) -> Record:
    """Compute and store the measurements of a trial that are still missing.

    An interrupted training is resumed; a finished one is only measured. If its weights are not here, it is trained
    again and all its measures are taken anew; what only other studies measured is then missing. One that diverges has
    a result too: `diverged_at`, the step whose loss, gradient or update was not finite, in place of all measurements.

    Raises:
        Interrupted: a signal came; the next call resumes the run.
        ClearformerError: it cannot be trained or measured.
    """
    before, folder = store.find(trial), RunFolder(store.runs / trial.key)
    if before and trial.config and not has_trained_weights(folder, trial.config.train):
        before = None  # its weights are elsewhere, and what was measured of them is not of those trained here
    measured: dict[str, Values] = dict(before.measured) if before else {}
    start = time.perf_counter()
    if trial.config is None:
        measured[PROBE] = probed(trial)
        seconds = time.perf_counter() - start
    else:
        try:
            run = trained(trial, store, reporter or Reporter())
        except NonFiniteError as error:
            run = None
            measured.clear()
            measured[DIVERGED] = {"diverged_at": error.step}
        seconds = before.seconds if before else trained_seconds(folder)
        if run is not None:
            try:
                measure_what_is_missing(run, trial, measured)
            except BaseException:  # an interrupt too
                if measured:  # values of earlier measures, which need not be computed again
                    keep(trial, measured, seconds, store, before)
                raise
    record = keep(trial, measured, seconds, store, before)
    store.forget_failure(trial)
    return record


def measure_what_is_missing(run: Run, trial: Trial, measured: dict[str, Values]) -> None:
    """Add to `measured` the values of those measures of a trial that have none yet.

    If one fails, the others are taken all the same: they may be another study's. The first error is raised then.
    """
    errors: list[Exception] = []
    for measure in trial.measures:
        if measure.key not in measured:
            try:
                values = values_of(measure, run)
                check_apart(measure, values, trial.beside(measure), measured)
                measured[measure.key] = values
            except Exception as error:
                errors.append(error)
    if errors:
        raise errors[0]


def check_apart(
    measure: Measure, values: Values, measures: Sequence[Measure], measured: Mapping[str, Values]
) -> None:
    """Raise UserError if another measure gives another value under the same name."""
    for other in measures:
        theirs = measured.get(other.key, {})
        if clash := [name for name in values if name in theirs and values[name] != theirs[name]]:
            raise UserError(
                f"{measure.name} and {other.name} both measure {clash[0]!r}, with different values; rename one"
            )


def keep(
    trial: Trial, measured: Mapping[str, Values], seconds: float, store: Store, before: Record | None
) -> Record:
    """Store the measurements of a trial so far; `before` says where a training was that is only measured now."""
    if trial.config is None:
        here = about()
    elif before is None:
        here = about() | decided(RunFolder(store.runs / trial.key))
    else:
        here = before.about
    record = Record(trial.key, trial.settings, trial.seed, measured, round(seconds, 3), here)
    store.write(record)
    return record


def probed(trial: Trial) -> Values:
    """Compute the values of a probe."""
    assert isinstance(trial.arm, Probe)
    with kept_random_state():
        return checked(trial.call, trial.arm.function(seed=trial.seed, **trial.arm.arguments))


def trained(trial: Trial, store: Store, reporter: Reporter) -> Run:
    """Train the run of a trial to its end, unless it is trained already; returns the run.

    Raises:
        UserError: another study has trained it and keeps fewer of its checkpoints than this one measures.
    """
    assert trial.config is not None
    folder = RunFolder(store.runs / trial.key)
    check_keeps_enough(folder, trial.config.train)
    train = trial.config.train
    every = train.checkpoint_every
    if train.patience is None:  # else checkpoints decide when it ends
        every = min(CHECKPOINT_EVERY, every or CHECKPOINT_EVERY)
    config = trial.config.replace(train=train.replace(checkpoint_every=every, snapshot_megabytes=None))
    lines = read_metrics(folder.metrics_file)
    is_evaluated = bool(lines) and lines[-1].get("val_loss") is not None
    # A run without held-out data is just opened.
    if not (has_trained_weights(folder, config.train) and is_evaluated):
        resume = folder.config_file.exists()
        with kept_random_state():
            train_run(RunStart(config, folder, resume=resume, is_named=True, preset=None), reporter)
    return load(folder.path)


def check_keeps_enough(folder: RunFolder, train: TrainConfig) -> None:
    """Check that a run which is there already keeps as many checkpoints as are wanted; the results are the same.

    Raises:
        UserError: it keeps fewer.
    """
    if folder.config_file.exists() and (kept := folder.read_config().train.keep_last) < train.keep_last:
        raise UserError(
            f"{folder.path} was trained with train.keep_last={kept}, and this study asks for {train.keep_last}: move "
            "the folder away to train the run again"
        )


def is_trained(folder: RunFolder, train: TrainConfig) -> bool:
    """Whether a run has finished training."""
    if not folder.config_file.exists():
        return False
    checkpoints = list_checkpoints(folder.checkpoints)
    with suppress(CheckpointError):  # a damaged one: training goes on from an earlier one
        return bool(checkpoints) and is_finished(train, read_progress(max(checkpoints, key=step_of)))
    return False


def has_trained_weights(folder: RunFolder, train: TrainConfig) -> bool:
    """Whether a run has finished training and its last weights are as they were written."""
    if not is_trained(folder, train):
        return False
    with suppress(CheckpointError):
        verify(max(list_checkpoints(folder.checkpoints), key=step_of), MODEL, STATE)
        return True
    return False


def trained_seconds(folder: RunFolder) -> float:
    """Return how long a run was trained, in seconds."""
    lines = read_metrics(folder.metrics_file)
    return lines[-1]["seconds"] if lines else 0.0


def values_of(measure: Measure, run: Run) -> Values:
    """Apply a measure to a run."""
    with kept_random_state():
        return checked(measure.name, measure.function(run, **measure.arguments))


def checked(name: str, values: Any) -> dict[str, Any]:
    """Return values as JSON has them.

    Raises:
        TypeError: they are no mapping by name.
    """
    if not isinstance(values, Mapping):
        raise TypeError(
            f"{name} returns {type(values).__name__}; a measure returns a mapping of values by name"
        )
    return plain(dict(values))


def about() -> dict[str, Any]:
    """Return the date, the machine and the versions, without any paths on the machine."""
    told = environment()
    return {name: told[name] for name in ("created", "processor", "cpus", "threads", "gpus", "versions")}


def decided(folder: RunFolder) -> dict[str, Any]:
    """Return what a run decided where its settings say `auto`: its precision, and whether it was compiled."""
    train = folder.read_config().train
    return {"dtype": train.dtype, "compile": train.compile}


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
