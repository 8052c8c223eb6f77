"""`clearformer sweep`: every combination of some settings' values, run as a study."""

from typing import Annotated

import typer

from clearformer.cli.commands.study import (
    Device,
    Folder,
    Jobs,
    Slurm,
    check_before_runs,
    run_and_tell,
    selection_of,
    store_of,
)
from clearformer.cli.importing import importing
from clearformer.cli.options import AsJson, Config, check_not_empty, named_as_options

app = typer.Typer(add_completion=False)


@app.command()
def sweep(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="PRESET KEY=A,B...",
            help="A preset and values of settings, such as model.position=rope,alibi train.lr=1e-3,3e-3 seed=1..3.",
        ),
    ],
    config: Config = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the study.", show_default="from what varies")
    ] = None,
    jobs: Jobs = 1,
    device: Device = None,
    slurm: Slurm = None,
    folder: Folder = None,
    as_json: AsJson = False,
) -> None:
    """Run every combination of values with every seed, in worker processes, as a study.

    Settings of the TOML file, such as a run's config.toml, are the same in every run unless the command names others.

    clearformer study run NAME resumes it like any other study, and clearformer study report NAME writes its report.
    """
    from dataclasses import replace

    with importing():
        from clearformer.study.everyday import sweep as sweeps
        from clearformer.study.everyday.declared import declare
        from clearformer.study.workers.pool import check_jobs

    check_not_empty("--name", [name])
    preset, values = sweeps.parse_sweep(arguments)
    if config is not None:
        values = sweeps.over_file(config, values)
    store = store_of(folder)
    with named_as_options(("name", "jobs")):
        check_jobs(jobs)
        study = sweeps.sweep(preset, values, name=name)
    if name is None:
        study = replace(study, name=sweeps.free_name(study, store))
    selection = selection_of([study], store, 1.0, None, device)
    check_before_runs([study], selection, slurm)
    declare(study, store)
    typer.echo(f"study {study.name}: {sweeps.described(study)}", err=True)
    for caveat in sweeps.caveats_of(study, [key for key in values if len(values[key]) > 1]):
        typer.echo(f"note: {caveat}", err=True)
    run_and_tell([study], selection, jobs, slurm, as_json)
