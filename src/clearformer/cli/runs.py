"""`clearformer runs`: what has been trained."""

import json
from typing import Annotated, Any

import typer

app = typer.Typer(add_completion=False)


@app.command()
def runs(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """List the runs under runs/ (or $CLEARFORMER_RUNS) with how far they are."""
    from clearformer.run import list_runs, runs_folder

    rows = [describe(folder) for folder in list_runs()]
    if as_json:
        typer.echo(json.dumps({"folder": str(runs_folder()), "runs": rows}))
        return
    if not rows:
        typer.echo(f"There are no runs in {runs_folder()} yet; clearformer train makes one.")
        return
    width = max(len(row["name"]) for row in rows)
    typer.echo(f"{'run':{width}}  {'text':>12}  {'step':>7}  {'seconds':>7}  {'loss':>7}  {'held-out':>8}")
    for row in rows:
        loss, held_out = (f"{row[key]:.4f}" if row[key] is not None else "-" for key in ("loss", "val_loss"))
        typer.echo(
            f"{row['name']:{width}}  {row['data'][-12:]:>12}  {row['step']:>7}  {row['seconds']:>7.0f}  "
            f"{loss:>7}  {held_out:>8}"
        )


def describe(folder: Any) -> dict[str, Any]:
    """One run's line: its name, text, and last metrics."""
    from clearformer.train.folder import read_metrics

    config = folder.read_config()
    lines = read_metrics(folder.metrics_file)
    last = lines[-1] if lines else {}
    held_out = [line["val_loss"] for line in lines if "val_loss" in line and line.get("val_share", 1) == 1]
    return {
        "name": folder.path.name,
        "data": config.data.label,
        "step": last.get("step", 0),
        "seconds": last.get("seconds", 0.0),
        "loss": last.get("loss"),
        "val_loss": held_out[-1] if held_out else None,
    }
