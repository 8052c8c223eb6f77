"""`clearformer runs`: the runs in the runs folder."""

import json
from typing import TYPE_CHECKING, Any

import typer

from clearformer.cli.importing import importing
from clearformer.cli.options import AsJson

if TYPE_CHECKING:
    from clearformer.training.store.folder import RunFolder

app = typer.Typer(add_completion=False)


@app.command()
def runs(as_json: AsJson = False) -> None:
    """List the runs under runs/ (or $CLEARFORMER_RUNS) with their progress and losses."""
    with importing():
        from clearformer.cli.tables import table
        from clearformer.files import runs_folder
        from clearformer.runs.folders import list_runs

    rows = [describe(folder) for folder in list_runs()]
    if as_json:
        typer.echo(json.dumps({"folder": str(runs_folder()), "runs": rows}))
        return
    if not rows:
        typer.echo(f"No runs in {runs_folder()} yet; clearformer train makes one.")
        return
    if readable := [row for row in rows if row["error"] is None]:
        heads = ("run", "data", "step", "seconds", "loss", "held-out")
        typer.echo(table(heads, map(cells, readable), n_left=2))
    for row in rows:
        if row["error"] is not None:
            typer.echo(f"{row['name']} cannot be read: {row['error']}")


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """Format a readable run as a row of the table."""
    from clearformer.training.reporting.report import held_out

    loss = "-" if row["loss"] is None else f"{row['loss']:.4f}"
    return row["name"], row["data"] or "-", f"{row['step']:,}", f"{row['seconds']:,.0f}", loss, held_out(row)


def describe(folder: "RunFolder") -> dict[str, Any]:
    """Return a run's name, data and last metrics, or the error if it cannot be read."""
    from clearformer.errors import ClearformerError

    row: dict[str, Any] = {"name": folder.path.name, "error": None}
    try:
        return row | {"data": data_of(folder)} | last_metrics(folder)
    except (ClearformerError, OSError) as error:
        return row | {"error": str(error)}


def data_of(folder: "RunFolder") -> str | None:
    """Return the name of a run's data; None where they are unknown, as of an imported run."""
    from clearformer.errors import RunError

    config = folder.read_config()
    try:
        folder.trained_on()
    except RunError:
        return None
    return config.data.label


def last_metrics(folder: "RunFolder") -> dict[str, Any]:
    """Return a run's progress and its last losses.

    Raises:
        RunError: a metric is not a number.
    """
    from clearformer.errors import RunError
    from clearformer.training.store.checkpoint import list_checkpoints, step_of
    from clearformer.training.store.folder import read_metrics

    lines = read_metrics(folder.metrics_file)
    saved = max(map(step_of, list_checkpoints(folder.checkpoints)), default=0)
    last = lines[-1] if lines else {"step": saved}  # an imported run has no metrics
    evaluated = next((line for line in reversed(lines) if "val_loss" in line), {})
    summary = {
        "step": last.get("step", 0),
        "seconds": last.get("seconds", 0.0),
        "loss": last.get("loss"),
        "val_loss": evaluated.get("val_loss"),
        "val_share": evaluated.get("val_share"),
    }
    for name, value in summary.items():
        is_absent = value is None and name not in ("step", "seconds")
        if not (is_absent or isinstance(value, int | float)):
            raise RunError(f"{folder.metrics_file}: {name} is not a number: {value!r}")
    return summary
