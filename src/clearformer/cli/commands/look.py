"""`clearformer look`: a run in the browser."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clearformer.cli.importing import importing
from clearformer.cli.options import (
    Average,
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

if TYPE_CHECKING:
    from clearformer.page import Looking
    from clearformer.run import Run

app = typer.Typer(add_completion=False)
LOOK_EVERY_SECONDS = 0.2


@app.command("look")
def command(
    context: typer.Context,
    run: RunName,
    other: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN2", help="Second run to compare; views show the differences.", show_default=False
        ),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Text to read first.", show_default="held-out text"),
    ] = None,
    port: Annotated[int, typer.Option(metavar="P", help="Port to serve on; 0 picks a free one.")] = 0,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")
    ] = True,
    export: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.html",
            help="Write the page to one new file that opens without a server, and exit.",
            show_default=False,
        ),
    ] = None,
    average: Average = 1,
    checkpoint: Checkpoint = "latest",
    device: Device = "auto",
) -> None:
    """Open a run in the browser and inspect every number in it; serves this machine only.

    Prints the address and runs until Ctrl-C.
    """
    if text is not None:
        check_utf8("--text", text)
    names = [name for name in (run, other) if name is not None]
    opened = partial(open_runs, names, checkpoint, device, average)
    if export is not None:
        check_alone(context)
        write(opened, export, text)
        return
    with importing():
        from clearformer.page import look

    runs = opened()
    with named_as_options(("port", "text")):
        looking = look(*runs, text=text, port=port, browser=browser, device=device)
    raise typer.Exit(shown_until_closed(looking))


def open_runs(names: Sequence[str], checkpoint: str, device: str, average: int) -> list["Run"]:
    """Open the first run at the given checkpoint or mean, and the one to compare it with at its latest."""
    first, *others = names
    return [open_run(first, checkpoint, device, average), *(open_run(name, device=device) for name in others)]


def shown_until_closed(looking: "Looking") -> int:
    """Print the address, wait until the page is closed or a signal arrives, and return the exit status.

    Signals are waited for first: one that arrives as soon as the address is read ends the command too.
    """
    from clearformer.training.processes.interrupts import Interrupts

    try:
        with Interrupts() as interrupts:
            typer.echo(looking.address)
            while looking.is_open and interrupts.received is None:
                looking.wait(LOOK_EVERY_SECONDS)
    finally:
        looking.close()
    return 0 if interrupts.received is None else 128 + interrupts.received


def write(open_them: Callable[[], list["Run"]], target: str, text: str | None) -> None:
    """Write the page as one file, and print its path and size."""
    check_not_empty("--export", [target])
    with importing():
        from clearformer.page import export_page
        from clearformer.page.look import check_names
        from clearformer.page.standalone.export import new_page

    try:
        new_page(target)  # before the model is opened
    except UserError as error:
        raise UserError(f"--export: {error}") from None
    run, *others = open_them()
    check_names([run, *others])
    beside: dict[str, Any] = {"versus": others[0]} if others else {}
    with named_as_options(("text",)):
        written = export_page(run, target, text=text, **beside)
    typer.echo(f"{written}: {readable_bytes(written.stat().st_size)}; open it in a browser")


def check_alone(context: typer.Context) -> None:
    """Raise UserError if --export is given together with an option of the server."""
    for name in ("port", "browser"):
        if was_given(context, name):
            raise UserError(f"--export: starts no server; omit --{name}")
