"""`clearformer runs`: what has been trained."""

import json
from typing import Annotated, Any

import typer

app = typer.Typer(add_completion=False)


@app.command()
def runs(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """List the runs under runs/ (or $CLEARFORMER_RUNS) with how far they are."""
    from clearformer.run import list_runs, runs_folder
    from clearformer.train.report import held_out

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
        loss = "-" if row["loss"] is None else f"{row['loss']:.4f}"
        typer.echo(
            f"{row['name']:{width}}  {row['data'][-12:]:>12}  {row['step']:>7}  {row['seconds']:>7.0f}  "
            f"{loss:>7}  {held_out(row):>8}"
        )


def describe(folder: Any) -> dict[str, Any]:
    """One run's line: its name, text, and last metrics."""
    from clearformer.train.folder import read_metrics

    config = folder.read_config()
    lines = read_metrics(folder.metrics_file)
    last = lines[-1] if lines else {}
    evaluated = next((line for line in reversed(lines) if "val_loss" in line), {})
    return {
        "name": folder.path.name,
        "data": config.data.label,
        "step": last.get("step", 0),
        "seconds": last.get("seconds", 0.0),
        "loss": last.get("loss"),
        "val_loss": evaluated.get("val_loss"),
        "val_share": evaluated.get("val_share"),
    }
