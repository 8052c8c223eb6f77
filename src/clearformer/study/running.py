"""One run of a study: trained or gone on with, measured, and what was measured kept."""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from clearformer.device import kept_random_state
from clearformer.errors import NonFiniteError
from clearformer.results import plain
from clearformer.run import Run, load
from clearformer.runs.training import RunStart, train_run
from clearformer.study.store import DIVERGED, Record, Store
from clearformer.study.study import Measure, Probe, Values
from clearformer.study.trials import PROBE, Trial
from clearformer.training.config import TrainConfig
from clearformer.training.limits import is_finished
from clearformer.training.reporting.report import Reporter
from clearformer.training.store.checkpoint import list_checkpoints, read_progress, step_of
from clearformer.training.store.folder import RunFolder, environment, read_metrics

CHECKPOINT_EVERY = 500


def compute(trial: Trial, store: Store, reporter: Reporter | None = None) -> Record:
    """Compute what is wanted of a trial and is not there, and keep it.

    A training that was ended goes on where it stood. One that was trained, and of which something else is wanted now,
    is only measured. One that diverges has a result as well: `diverged_at`, the step whose loss, gradient or update was
    not finite, in place of what would be measured.

    Raises:
        Interrupted: a signal came; the run goes on the next time.
        ClearformerError: it cannot be trained or measured.
    """
    before = store.find(trial)
    measured: dict[str, Values] = dict(before.measured) if before else {}
    start = time.perf_counter()
    if trial.config is None:
        measured[PROBE] = probed(trial)
        seconds = time.perf_counter() - start
    else:
        try:
            run = trained(trial, store, reporter or Reporter())
        except NonFiniteError as error:
            run, measured[DIVERGED] = None, {"diverged_at": error.step}
        seconds = before.seconds if before else trained_seconds(RunFolder(store.runs / trial.key))
        if run is not None:
            try:
                measure_what_is_missing(run, trial.measures, measured)
            except Exception:
                if measured:  # by other measures, which need not be made again
                    keep(trial, measured, seconds, store)
                raise
    record = keep(trial, measured, seconds, store)
    store.forget_failure(trial)
    return record


def measure_what_is_missing(run: Run, measures: Sequence[Measure], measured: dict[str, Values]) -> None:
    """Add the values of those measures that have none yet, one after the other."""
    for measure in measures:
        if measure.key not in measured:
            measured[measure.key] = values_of(measure, run)


def keep(trial: Trial, measured: Mapping[str, Values], seconds: float, store: Store) -> Record:
    """Keep what was measured of a trial until now."""
    record = Record(trial.key, trial.settings, trial.seed, measured, round(seconds, 3), about())
    store.write(record)
    return record


def probed(trial: Trial) -> Values:
    """The values of a probe."""
    assert isinstance(trial.arm, Probe)
    with kept_random_state():
        return checked(trial.call, trial.arm.function(seed=trial.seed, **trial.arm.arguments))


def trained(trial: Trial, store: Store, reporter: Reporter) -> Run:
    """The run of a trial, trained to its end."""
    assert trial.config is not None
    folder = RunFolder(store.runs / trial.key)
    train = trial.config.train
    config = trial.config.replace(
        train=train.replace(
            checkpoint_every=min(CHECKPOINT_EVERY, train.checkpoint_every or CHECKPOINT_EVERY),
            snapshot_megabytes=None,
        )
    )
    if not is_trained(folder, config.train):
        resume = folder.config_file.exists()
        with kept_random_state():
            train_run(RunStart(config, folder, resume=resume, is_named=True, preset=None), reporter)
    return load(folder.path)


def is_trained(folder: RunFolder, train: TrainConfig) -> bool:
    """Whether a run has come to its end."""
    if not folder.config_file.exists():
        return False
    checkpoints = list_checkpoints(folder.checkpoints)
    return bool(checkpoints) and is_finished(train, read_progress(max(checkpoints, key=step_of)))


def trained_seconds(folder: RunFolder) -> float:
    """How long a run was trained."""
    lines = read_metrics(folder.metrics_file)
    return lines[-1]["seconds"] if lines else 0.0


def values_of(measure: Measure, run: Run) -> Values:
    """The values of a measure of a run."""
    with kept_random_state():
        return checked(measure.name, measure.function(run, **measure.arguments))


def checked(name: str, values: Any) -> dict[str, Any]:
    """Values as JSON has them.

    Raises:
        TypeError: they have no names.
    """
    if not isinstance(values, Mapping):
        raise TypeError(f"{name} gives {type(values).__name__}; a measure gives values by their names")
    return plain(dict(values))


def about() -> dict[str, Any]:
    """The date, the machine and the versions, without names of places on it."""
    told = environment()
    return {name: told[name] for name in ("created", "processor", "cpus", "threads", "gpus", "versions")}


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
