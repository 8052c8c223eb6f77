"""Running studies: in this process, by worker processes, or on a cluster; then what came out of them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from clearformer.errors import UserError
from clearformer.files import disk_errors, make_folders
from clearformer.study.outcomes import Outcome, outcome
from clearformer.study.report import write_study
from clearformer.study.store import Store
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
from clearformer.study.workers.progress import Job, LinesWatch, Watch
from clearformer.study.workers.slurm import SlurmWorkers
from clearformer.study.workers.work import work


def jobs_of(
    chosen: Sequence[Study], scale: float = 1.0, seeds: int | None = None, device: str | None = None
) -> list[Job]:
    """The trials of some studies, each once, all arms of the first seed first.

    Raises:
        UserError: the scale or the number of seeds is out of range.
        ConfigError: an arm's settings are none.
    """
    found: dict[tuple[str, frozenset[str]], Job] = {}
    for study in chosen:
        for trial in trials(study, scale, seeds, device):
            found.setdefault((trial.settings_key, trial.values), Job(study.name, trial))
    return sorted(found.values(), key=lambda job: job.trial.seed)


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
        selection: What is run.
        n_workers: How many at once.
        watch: Shows how far they are.
        slurm: Options of sbatch, where a Slurm cluster computes.
        start: Begins the worker of a place, in place of a Python of its own.

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
            workers = LocalWorkers(start or local_start(selection, n), n, store)
        else:
            workers = SlurmWorkers(selection, slurm, n_workers)
        supervise(workers, watch(jobs, store))
    return outcomes(chosen, selection, store)


def prepared(chosen: Sequence[Study], selection: Selection, store: Store) -> list[Job]:
    """The jobs of studies; those that failed before are tried again."""
    check_folder(selection.folder)
    jobs = jobs_of(chosen, selection.scale, selection.seeds, selection.device)
    for job in jobs:
        store.forget_failure(job.trial)
    with disk_errors(store.folder):
        make_folders(store.folder)
    return jobs


def outcomes(chosen: Sequence[Study], selection: Selection, store: Store) -> list[Outcome]:
    """All that was measured of some studies, and written to their folders."""
    found = [outcome(study, store, selection.scale, selection.seeds) for study in chosen]
    for each in found:
        write_study(each, store.folder / each.study.name)
    return found


def check_folder(folder: Path) -> None:
    """Raise UserError where studies cannot be kept in a folder, for it is none."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"folder: {folder} is no folder")
