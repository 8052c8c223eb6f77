"""`clearformer plot`: the curves of runs, as text or as a figure."""

import json
import os
import shutil
import sys
from typing import Annotated

import typer

from clearformer.cli.importing import importing
from clearformer.cli.options import AsJson, check_not_empty, named_as_options

WIDTH_ELSEWHERE = 100  # columns, if the output is not a terminal

app = typer.Typer(add_completion=False)


@app.command()
def plot(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Names or folders of runs.")],
    x: Annotated[
        str,
        typer.Option("--x", metavar="WHAT", help="Horizontal axis: steps, tokens or seconds of training."),
    ] = "steps",
    figure: Annotated[
        str | None, typer.Option(metavar="FILE", help="Draw the curves to FILE.png, .svg or .pdf.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Draw the training and held-out losses of runs, in the terminal or to a file."""
    with importing():
        from clearformer.study.everyday.curves import curves

    check_not_empty("RUN", runs)
    check_not_empty("--figure", [figure])
    with named_as_options(("x",)):
        found = curves(*runs, over=x)  # type: ignore[arg-type]  (checked there)
    for caveat in found.caveats:
        typer.echo(f"note: {caveat}", err=True)
    if figure is not None:
        file = found.figure(figure)
        typer.echo(f"figure: {file}", err=True)
    if as_json:
        typer.echo(json.dumps(found.to_dict()))
    elif figure is None:
        width = shutil.get_terminal_size((WIDTH_ELSEWHERE, 24)).columns
        typer.echo(found.text(width, colours=sys.stdout.isatty() and not os.environ.get("NO_COLOR")))
