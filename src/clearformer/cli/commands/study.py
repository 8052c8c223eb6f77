"""`clearformer study`: run declared experiments in worker processes and report published and measured numbers."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clearformer.cli.commands.compare import compare
from clearformer.cli.importing import importing
from clearformer.cli.options import AsJson, check_not_empty, named_as_options
from clearformer.cli.tables import table

if TYPE_CHECKING:  # these take time to import, and `--help` needs none of them
    from collections.abc import Mapping
    from pathlib import Path

    from clearformer.study.store import Record, Store
    from clearformer.study.study import Study
    from clearformer.study.workers.pool import Selection

ALL = "all"
PARENT = 0
OF_TRIALS = ("scale", "seeds", "device")

app = typer.Typer(
    add_completion=False,
    help="Run experiments, and report published and measured numbers.",
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of a study; see clearformer study list.")]
Names = Annotated[list[str], typer.Argument(metavar="all|NAME...", help="Names of studies, or all.")]
Folder = Annotated[
    str | None,
    typer.Option(
        metavar="DIR", help="Folder of the studies.", show_default="studies, or $CLEARFORMER_STUDIES"
    ),
]
Scale = Annotated[
    float,
    typer.Option(
        metavar="F",
        help="Share of every training's steps, up to 1; below 1, published numbers are not judged.",
    ),
]
Seeds = Annotated[
    int | None,
    typer.Option(
        metavar="K",
        help="Use K seeds in place of the study's number; arms with a number of their own keep it.",
        show_default="set by the study",
    ),
]
Jobs = Annotated[int, typer.Option(metavar="N", help="Number of worker processes.")]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Device to use: cpu, mps, cuda or cuda:1.", show_default="set by the study"
    ),
]
Slurm = Annotated[
    str | None,
    typer.Option(
        metavar="NAME=VALUE,...",
        help="Run the workers on a Slurm cluster with these sbatch options, such as partition=gpu,time=60; a value "
        "with commas is in double quotes.",
    ),
]


@app.command("list")
def list_studies(folder: Folder = None, as_json: AsJson = False) -> None:
    """List the studies, their questions and how many runs are done."""
    with importing():
        from clearformer.study.everyday.declared import all_studies

    store = store_of(folder)
    measured = store.by_settings()
    rows = [listed(study, store, measured) for study in all_studies(store).values()]
    if as_json:
        typer.echo(json.dumps({"folder": str(store.folder), "studies": rows}))
        return
    cells = [
        (row["name"], row["lecture"], row["question"], f"{row['done']} of {row['runs']}")
        for row in rows
        if row["error"] is None
    ]
    typer.echo(table(("study", "lecture", "question", "runs done"), cells, n_left=3))
    for row in rows:
        if row["error"] is not None:
            typer.echo(f"{row['name']} cannot be run: {row['error']}")


def listed(study: "Study", store: "Store", measured: "Mapping[str, list[Record]]") -> dict[str, Any]:
    """Return a study as a row of the list, or with the error if its settings are not valid here."""
    from clearformer.errors import ClearformerError
    from clearformer.study.trials import trials

    about: dict[str, Any] = {"name": study.name, "question": study.question, "lecture": study.lecture}
    try:
        wanted = trials(study)
        done = [
            store.is_done(trial)  # a record of the same settings may be another file's
            if trial.place or trial.reads
            else any(record.has(trial) for record in measured.get(trial.settings_key, ()))
            for trial in wanted
        ]
    except ClearformerError as error:
        return about | {"runs": None, "done": None, "error": str(error)}
    return about | {"runs": len(done), "done": sum(done), "error": None}


@app.command()
def show(
    name: Name,
    folder: Folder = None,
    scale: Scale = 1.0,
    seeds: Seeds = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Show a study: its runs, their time, what would refute it."""
    with importing():
        from clearformer.cli.views.study import as_text, described
        from clearformer.study.everyday.declared import study_of_name

    store = store_of(folder)
    with named_as_options(OF_TRIALS):
        shown = described(study_of_name(name, store), store, scale, seeds, device)
    typer.echo(json.dumps(shown) if as_json else as_text(shown))


@app.command()
def run(
    names: Names,
    scale: Scale = 1.0,
    seeds: Seeds = None,
    jobs: Jobs = 1,
    device: Device = None,
    slurm: Slurm = None,
    folder: Folder = None,
    as_json: AsJson = False,
) -> None:
    """Run studies, then write their report.

    Finished runs are kept, interrupted ones resumed. Worker processes claim runs, so several machines that share the
    folder may run the same command. If a run fails, the reason is kept in failed/ and the others continue; the command
    then exits with status 1, and the next call tries the run again. Ctrl-C ends the workers and keeps everything.
    """
    store = store_of(folder)
    chosen = chosen_studies(names, store)
    if ALL in names:
        chosen = [study for study in chosen if can_be_run(study, scale, seeds, device)]
    run_and_tell(chosen, selection_of(chosen, store, scale, seeds, device), jobs, slurm, as_json)


@app.command(hidden=True)
def work(
    names: Names,
    scale: Scale = 1.0,
    seeds: Seeds = None,
    device: Device = None,
    folder: Folder = None,
    parent: Annotated[int, typer.Option(metavar="PID", help="Process to end with.")] = PARENT,
) -> None:
    """Compute runs that no other worker has claimed until none is left: one worker of `study run`."""
    from clearformer.study.workers.launch import jobs_of
    from clearformer.study.workers.work import ended_by_signals, work
    from clearformer.training.processes.interrupts import end_with_parent

    with ended_by_signals():
        if parent != PARENT:
            end_with_parent(parent)
        store = store_of(folder)
        found = jobs_of(chosen_studies(names, store), scale, seeds, device)
        work([job.trial for job in found], store)


@app.command()
def report(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[all|NAME]...",
            help="Studies whose own reports to write; by default one report over all that are measured, and with "
            "all also those that are not.",
        ),
    ] = None,
    folder: Folder = None,
    out: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Folder to write to.", show_default="the studies' folder"),
    ] = None,
    scale: Scale = 1.0,
    seeds: Seeds = None,
) -> None:
    """Write the report: one HTML file, and Markdown with figures."""
    from clearformer.errors import ClearformerError, UserError, count
    from clearformer.study.outcomes import outcome
    from clearformer.study.report import write_report, write_study_report
    from clearformer.study.study import check_scale, check_seeds

    store = store_of(folder)
    if not store.folder.is_dir():
        raise UserError(f"--folder: no folder {store.folder}; clearformer study run makes it")
    place = store.folder if out is None else folder_of("--out", out)
    is_of_all, wanted = ALL in (names or []), []
    with named_as_options(OF_TRIALS):
        check_scale(scale)
        check_seeds(seeds)
        if names and not is_of_all:
            found = [outcome(study, store, scale, seeds) for study in chosen_studies(names, store)]
            typer.echo("\n".join(str(write_study_report(each, place)) for each in found))
            return
        for study in chosen_studies([ALL], store):
            try:
                wanted.append(outcome(study, store, scale, seeds))
            except ClearformerError as error:  # such as a kind that was not imported
                tell_left_out(error)
    found = [each for each in wanted if each.n_done]
    if not found:
        raise UserError(
            f"{store.folder}: nothing measured yet of {count(len(wanted), 'known study', 'known studies')}; use "
            "clearformer study run NAME, or --import the file that declares yours"
        )
    typer.echo(write_report(found, place, [each for each in wanted if not each.n_done] if is_of_all else []))


app.command("compare")(compare)


# --- shared with sweep ------------------------------------------------------------------------------------


def store_of(folder: str | None) -> "Store":
    """Open the store of studies in the folder that --folder names."""
    with importing():
        from clearformer.study.store import Store

    return Store(None if folder is None else folder_of("--folder", folder))


def folder_of(option: str, name: str) -> "Path":
    """Return the folder that an option names, whether or not it exists.

    Raises:
        UserError: the name is empty, or is that of a file.
    """
    from clearformer.errors import UserError
    from clearformer.files import user_path

    check_not_empty(option, [name])
    path = user_path(name)
    if path.exists() and not path.is_dir():
        raise UserError(f"{option}: {path} is not a folder")
    return path


def chosen_studies(names: list[str], store: "Store") -> "list[Study]":
    """Return the named studies, each once; all of them for `all`."""
    from clearformer.study.everyday.declared import all_studies, study_of_name

    if ALL in names:
        return list(all_studies(store).values())
    return [study_of_name(name, store) for name in dict.fromkeys(names)]


def can_be_run(study: "Study", scale: float, seeds: int | None, device: str | None) -> bool:
    """Whether a study's settings are valid here; if not, as where a kind was not imported, print why."""
    from clearformer.errors import ConfigError
    from clearformer.study.trials import trials

    try:
        with named_as_options(OF_TRIALS):
            trials(study, scale, seeds, device)
    except ConfigError as error:
        tell_left_out(error)
        return False
    return True


def tell_left_out(error: Exception) -> None:
    """Print why one study of all is left out."""
    typer.echo(f"left out: {error}", err=True)


def selection_of(
    chosen: "list[Study]", store: "Store", scale: float, seeds: int | None, device: str | None
) -> "Selection":
    """Describe to the workers which trials to run."""
    from clearformer.parts import imported_files
    from clearformer.study.workers.pool import Selection

    names = tuple(study.name for study in chosen)
    return Selection(names, store.folder, scale, seeds, device, tuple(imported_files()))


def check_before_runs(chosen: "list[Study]", selection: "Selection", slurm: str | None) -> None:
    """Raise what is wrong with the options or the settings of studies, before anything is written."""
    from clearformer.study.workers.launch import check_packages, jobs_of
    from clearformer.study.workers.slurm import slurm_options

    with named_as_options((*OF_TRIALS, "slurm")):
        if slurm is not None:
            slurm_options(slurm)
        jobs_of(chosen, selection.scale, selection.seeds, selection.device)
        check_packages(chosen, selection.seeds)


def run_and_tell(
    chosen: "list[Study]", selection: "Selection", jobs: int, slurm: str | None, as_json: bool
) -> None:
    """Run studies and print their results; exit with status 1 if a run failed."""
    from clearformer.cli.views.study import outcome_json, outcome_text
    from clearformer.study.workers.launch import run_by_workers
    from clearformer.study.workers.progress import watch_here
    from clearformer.study.workers.slurm import slurm_options

    with named_as_options((*OF_TRIALS, "jobs", "slurm")):
        options = None if slurm is None else slurm_options(slurm)
        found = run_by_workers(chosen, selection, jobs, watch=watch_here, slurm=options)
    if as_json:
        typer.echo(json.dumps({"studies": [outcome_json(each, selection.folder) for each in found]}))
    else:
        typer.echo("\n\n".join(outcome_text(each, selection.folder) for each in found))
    if any(each.failures for each in found):
        raise typer.Exit(1)
