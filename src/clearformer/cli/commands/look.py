"""`clearformer look`: a run in the browser."""

from typing import Annotated

import typer

from clearformer.cli.options import (
    Checkpoint,
    Device,
    RunName,
    check_not_empty,
    check_utf8,
    named_as_options,
    open_run,
    was_given,
)
from clearformer.cli.units import readable_bytes
from clearformer.errors import UserError

app = typer.Typer(add_completion=False)


@app.command("look")
def command(
    context: typer.Context,
    run: RunName,
    other: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN2", help="Another run, set beside it: views show differences.", show_default=False
        ),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="What is read at first.", show_default="held-out text"),
    ] = None,
    port: Annotated[int, typer.Option(metavar="P", help="Of this machine; 0: a free one.")] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open a browser.")] = True,
    export: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.html",
            help="Write the page as one new file that opens without a server, and end.",
            show_default=False,
        ),
    ] = None,
    checkpoint: Checkpoint = "latest",
    device: Device = "auto",
) -> None:
    """Open a run in the browser: every number of it, on this machine alone.

    Prints the address, and ends at Ctrl-C.
    """
    if text is not None:
        check_utf8("--text", text)
    if export is not None:
        check_alone(context, other)
        write(run, export, text, checkpoint, device)
        return
    from clearformer.page import look

    names = [name for name in (run, other) if name is not None]
    runs = [open_run(name, checkpoint if i == 0 else "latest", device) for i, name in enumerate(names)]
    with named_as_options(("port", "text")):
        looking = look(*runs, text=text, port=port, browser=browser, device=device)
    typer.echo(looking.address)
    try:
        looking.wait()
    finally:
        looking.close()


def write(run: str, target: str, text: str | None, checkpoint: str, device: str) -> None:
    """Write the page as one file, and say where and how large it is."""
    check_not_empty("--export", [target])
    from clearformer.page import export_page
    from clearformer.page.standalone.export import new_page

    try:
        new_page(target)  # before the model is opened
    except UserError as error:
        raise UserError(f"--export: {error}") from None
    with named_as_options(("text",)):
        written = export_page(open_run(run, checkpoint, device), target, text=text)
    typer.echo(f"{written}: {readable_bytes(written.stat().st_size)}; open it in a browser")


def check_alone(context: typer.Context, other: str | None) -> None:
    """Raise UserError where --export stands with what a server needs."""
    if other is not None:
        raise UserError("--export: a page of one run is written; leave out the second")
    for name in ("port", "browser"):
        if was_given(context, name):
            raise UserError(f"--export: no server is opened; leave out --{name}")
