"""Run studies in this process, by worker processes, or on a cluster; then write their results."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path

from clearformer.errors import UserError, needs_extra, shown
from clearformer.files import disk_errors, make_folders, user_path
from clearformer.parts import imported_files
from clearformer.study.everyday.declared import declare, study_of_name
from clearformer.study.lectures import lecture_studies
from clearformer.study.outcomes import Outcome, outcome
from clearformer.study.report import check_can_be_written, write_study
from clearformer.study.store import Store, studies_folder
from clearformer.study.study import Study
from clearformer.study.trials import trials
from clearformer.study.workers.pool import (
    LocalWorkers,
    Process,
    Selection,
    Workers,
    check_jobs,
    local_start,
    supervise,
)
from clearformer.study.workers.progress import Job, LinesWatch, Watch, watch_here
from clearformer.study.workers.slurm import SlurmWorkers
from clearformer.study.workers.work import work
from clearformer.training.processes.distributed import check_alone


def jobs_of(
    chosen: Sequence[Study], scale: float = 1.0, seeds: int | None = None, device: str | None = None
) -> list[Job]:
    """Return the trials of some studies, ordered by seed; a trial that studies share is listed once with all measures.

    Raises:
        UserError: the scale or the number of seeds is out of range.
        ConfigError: an arm's settings are invalid.
    """
    found: dict[str, Job] = {}
    for study in chosen:
        for trial in trials(study, scale, seeds, device):
            first = found.setdefault(trial.identity, Job(study.name, trial))
            found[trial.identity] = replace(first, trial=first.trial.with_measures(trial.measures))
    return sorted(found.values(), key=lambda job: job.trial.seed)


def devices_of(jobs: Iterable[Job]) -> set[str]:
    """Return the devices that the settings of trials name."""
    return {job.trial.config.train.device for job in jobs if job.trial.config is not None}


def run_study(
    study: Study | str,
    *,
    scale: float = 1.0,
    seeds: int | None = None,
    jobs: int = 1,
    device: str | None = None,
    folder: str | PathLike[str] | None = None,
    quiet: bool = False,
) -> Outcome:
    """Run a study, as `clearformer study run` does: finished runs are reused, interrupted ones resumed.

        outcome = cf.run_study("depth", scale=0.05)
        outcome = cf.run_study(cf.sweep("quick", {"model.position": ["rope", "alibi"]}, seeds=range(1, 4)))
        outcome.estimate("position=rope", "val_loss")

    Args:
        study: A study, or the name of one.
        scale: The fraction of every training's steps to run, up to 1; below 1 no published number is judged.
        seeds: The number of seeds, in place of the study's own.
        jobs: The number of processes; 1 is this process. Several must find the study by its name, so it has to be one
            of the lectures', or have no functions of its own (a sweep has none). They load the kinds of your own that
            `clearformer.registry.import_parts(FILE)` has loaded here, and none that a plain `import` has.
        device: The device to train on, in place of the one in the settings.
        folder: The folder of studies; default $CLEARFORMER_STUDIES, or else `studies/`.
        quiet: Whether to print no progress.

    Returns:
        The measurements, the verdicts, and why runs failed; result.json and report.html are in FOLDER/NAME.

    Raises:
        UserError: there is no such study, or a number is out of range.
        ConfigError: an arm's settings are invalid.
        Interrupted: a signal came; everything so far is kept, and the same call resumes.
    """
    check_jobs(jobs)
    store = Store(studies_folder() if folder is None else user_path(folder))
    chosen = study_of_name(study, store) if isinstance(study, str) else study
    if not isinstance(chosen, Study):
        raise UserError(f"a study is a cf.Study or the name of one; got {shown(study)}")
    selection = Selection((chosen.name,), store.folder, scale, seeds, device, tuple(imported_files()))
    if jobs == 1:
        return run_here([chosen], selection, quiet=quiet)[0]
    check_folder(store.folder)
    jobs_of([chosen], scale, seeds, device)  # raises if a setting is wrong, before anything is written
    if lecture_studies().get(chosen.name) != chosen:
        declare(chosen, store)
    return run_by_workers([chosen], selection, jobs, watch=Watch if quiet else watch_here)[0]


def run_here(chosen: Sequence[Study], selection: Selection, *, quiet: bool = False) -> list[Outcome]:
    """Run studies in this process; see `run_by_workers`.

    Raises:
        Interrupted: a signal came; everything so far is kept.
        ClearformerError: see `jobs_of`; results cannot be written.
    """
    store = Store(selection.folder)
    jobs = prepared(chosen, selection, store)
    watch = (Watch if quiet else LinesWatch)(jobs, store)
    with watch:
        watch.update()
        work([job.trial for job in jobs], store, lambda _: watch.update())
    return outcomes(chosen, selection, store)


def run_by_workers(
    chosen: Sequence[Study],
    selection: Selection,
    n_workers: int = 1,
    *,
    watch: Callable[[Sequence[Job], Store], Watch] = Watch,
    slurm: Mapping[str, str] | None = None,
    start: Callable[[int], Process] | None = None,
) -> list[Outcome]:
    """Run studies by worker processes until every run is done or has failed.

    Args:
        chosen: The studies, which workers find by the names in `selection`.
        selection: The options of the workers' command line.
        n_workers: The number of workers at once.
        watch: Shows the progress.
        slurm: Options of sbatch, to run on a Slurm cluster.
        start: Starts the worker with a given index; by default in a new Python process.

    Raises:
        Interrupted: a signal came; the workers have ended, and everything so far is kept.
        WorkersError: they cannot go on.
        ClearformerError: see `jobs_of`; results cannot be written.
    """
    check_jobs(n_workers)
    store = Store(selection.folder)
    jobs = prepared(chosen, selection, store)
    if not all(store.is_done(job.trial) for job in jobs):
        workers: Workers
        if slurm is None:
            n = min(n_workers, len(jobs))
            workers = LocalWorkers(start or local_start(selection, n, devices_of(jobs)), n, store)
        else:
            workers = SlurmWorkers(selection, slurm, n_workers)
        supervise(workers, watch(jobs, store))
    return outcomes(chosen, selection, store)


def prepared(chosen: Sequence[Study], selection: Selection, store: Store) -> list[Job]:
    """Return the jobs of studies, and forget earlier failures, so that those jobs are tried again."""
    check_alone("a study")
    check_folder(selection.folder)
    jobs = jobs_of(chosen, selection.scale, selection.seeds, selection.device)
    check_packages(chosen, selection.seeds)
    for study in chosen:
        check_can_be_written(study, store.folder)
    with disk_errors(store.folder):
        make_folders(store.folder)
    for job in jobs:
        store.forget_failure(job.trial)
    return jobs


def outcomes(chosen: Sequence[Study], selection: Selection, store: Store) -> list[Outcome]:
    """Collect the results of some studies and write their reports to their folders."""
    found = [outcome(study, store, selection.scale, selection.seeds) for study in chosen]
    for each in found:
        write_study(each, store.folder)
    return found


def check_packages(chosen: Sequence[Study], seeds: int | None) -> None:
    """Raise MissingPackageError if the reports need a package that is not installed: before the runs, not after."""
    if any(study.figures for study in chosen):
        with needs_extra("figures", "a report needs matplotlib"):
            import matplotlib  # noqa: F401
    if any(len(study.seeds_of(arm, seeds)) > 1 for study in chosen for arm in study.arms):
        with needs_extra("metrics", "an interval over seeds needs scipy"):
            import scipy.special  # noqa: F401


def check_folder(folder: Path) -> None:
    """Raise UserError if a path exists that is not a folder."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"folder: {folder} is not a folder")
