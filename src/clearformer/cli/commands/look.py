"""`clearformer look`: a run in the browser."""

from typing import Annotated

import typer

from clearformer.cli.options import Checkpoint, Device, RunName, check_utf8, named_as_options, open_run

app = typer.Typer(add_completion=False)


@app.command("look")
def command(
    run: RunName,
    other: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN2", help="Another run, which can be chosen in the page's bar.", show_default=False
        ),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="What is read at first.", show_default="held-out text"),
    ] = None,
    port: Annotated[int, typer.Option(metavar="P", help="Of this machine; 0: a free one.")] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open a browser.")] = True,
    checkpoint: Checkpoint = "latest",
    device: Device = "auto",
) -> None:
    """Open a run in the browser: every number of it, on this machine alone.

    Prints the address, and ends at Ctrl-C.
    """
    from clearformer.page import look

    if text is not None:
        check_utf8("--text", text)
    names = [name for name in (run, other) if name is not None]
    runs = [open_run(name, checkpoint if i == 0 else "latest", device) for i, name in enumerate(names)]
    with named_as_options(("port", "text")):
        looking = look(*runs, text=text, port=port, browser=browser, device=device)
    typer.echo(looking.address)
    try:
        looking.wait()
    finally:
        looking.close()
