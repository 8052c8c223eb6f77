"""`clearformer lens`: views of what happens inside a model."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clearformer.cli import standard_input
from clearformer.cli.importing import importing
from clearformer.cli.options import (
    AsJson,
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
from clearformer.cli.views.lens import VIEWS, View, as_text
from clearformer.errors import UserError, did_you_mean, shortened
from clearformer.files import user_path

if TYPE_CHECKING:
    from clearformer.lens import Shown
    from clearformer.run import Run

app = typer.Typer(add_completion=False)

ARGUMENTS = {"temperature": "temperatures", "cross": "attention"}
"""Options whose parameter has another name in the library."""


@app.command(
    "lens", epilog="\b\nViews:\n" + "\n".join(f"  {name:<11}  {view.about}" for name, view in VIEWS.items())
)
def command(
    context: typer.Context,
    run: RunName,
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="TEXT", help="Text for the model to read; - reads standard input.", show_default=False
        ),
    ] = None,
    view: Annotated[
        str, typer.Option(metavar="NAME", help="View to show, one of those listed below.")
    ] = "next",
    output: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="Output text of an encoder-decoder.", show_default="its own translation"
        ),
    ] = None,
    position: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Position whose prediction is explained, from 0.", show_default="-1, the last"
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            help="Token whose logit or rank is shown.",
            show_default="the likeliest; with lens the one that follows, with gradients the text's loss",
        ),
    ] = None,
    foil: Annotated[
        str | None, typer.Option(metavar="TOKEN", help="Token to subtract: why TARGET and not FOIL?")
    ] = None,
    layer: Annotated[
        int | None, typer.Option(metavar="N", help="Layer, from 0; -1 is the last.", show_default=False)
    ] = None,
    head: Annotated[
        int | None, typer.Option(metavar="N", help="Head, from 0; -1 is the last.", show_default=False)
    ] = None,
    key: Annotated[
        int | None, typer.Option(metavar="N", help="Position of the key, from 0.", show_default=False)
    ] = None,
    cross: Annotated[
        bool,
        typer.Option(
            "--cross", help="With score: take cross-attention, to the source of an encoder-decoder."
        ),
    ] = False,
    top: Annotated[
        int | None, typer.Option(min=1, metavar="K", help="Number of likeliest tokens to show.")
    ] = None,
    temperature: Annotated[
        list[float] | None,
        typer.Option(metavar="X", help="Temperature to divide the logits by (repeatable)."),
    ] = None,
    masked: Annotated[
        list[int] | None,
        typer.Option(
            metavar="N", help="Position to mask for an encoder, which reads [MASK] there (repeatable)."
        ),
    ] = None,
    donor: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="Text to patch activations from (same number of tokens).", show_default=False
        ),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE",
            help="What to patch: heads, networks, layers or a hook point.",
            show_default="heads",
        ),
    ] = None,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Patch only where a gradient estimates the largest effects.")
    ] = False,
    steps: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Steps of integrated gradients.", show_default="32")
    ] = None,
    since: Annotated[
        int | None,
        typer.Option(metavar="STEP", help="Earlier step.", show_default="the first kept checkpoint"),
    ] = None,
    until: Annotated[
        int | None,
        typer.Option(metavar="STEP", help="Later step.", show_default="that of --checkpoint"),
    ] = None,
    pieces: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Pieces of the path between two steps.", show_default="8"),
    ] = None,
    sample: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Training windows to score.", show_default="256"),
    ] = None,
    split: Annotated[
        str | None, typer.Option(metavar="NAME", help="Split of the run's own data.", show_default="val")
    ] = None,
    rows: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Rows of data to read.", show_default="48")
    ] = None,
    other: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Run to compare with this one.", show_default=False),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(metavar="WHAT", help="Match heads by pattern or by output.", show_default="pattern"),
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the view to FILE.png, .svg or .pdf.")
    ] = None,
    average: Average = 1,
    checkpoint: Checkpoint = "latest",
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Look inside a run's model: why this token, what attends to what, what each layer predicts."""
    with importing():
        from clearformer.evaluation.figures import check_can_be_drawn

    given = {
        "output": output,
        "position": position,
        "target": target,
        "foil": foil,
        "layer": layer,
        "head": head,
        "key": key,
        "cross": "cross_attn" if cross else "attn",
        "top": top,
        "temperature": temperature,
        "masked": masked,
        "donor": donor,
        "where": where,
        "estimate": estimate,
        "steps": steps,
        "since": since,
        "until": until,
        "pieces": pieces,
        "sample": sample,
        "split": split,
        "rows": rows,
        "other": other,
        "by": by,
    }
    chosen = view_of(view)
    options = {name: value for name, value in given.items() if was_given(context, name)}
    check_options(view, chosen, options)
    check_not_empty("--other", [other])
    check_average(view, chosen, average, options)
    if figure is not None:
        figure = user_path(figure)
        check_can_be_drawn(figure)
    read = text_of(view, chosen, text)
    with named_as_options(context.params, {argument: option for option, argument in ARGUMENTS.items()}):
        runs = [open_run(run, checkpoint, device, average)] + [
            open_run(name, device=device) for name in [other] if name
        ]
        found = look(runs, chosen, read, options)
    if as_json:
        typer.echo(json.dumps(found.to_dict()))
    elif figure is None:
        typer.echo(as_text(found))
    if figure is not None:
        typer.echo(f"drawn: {found.figure(figure)}", err=True)


def view_of(name: str) -> View:
    """Return the view of that name.

    Raises:
        UserError: there is none.
    """
    if name not in VIEWS:
        raise UserError(
            f"--view takes {', '.join(VIEWS)}; got {shortened(name)!r}{did_you_mean(name, VIEWS)}"
        )
    return VIEWS[name]


def check_options(name: str, view: View, given: dict[str, Any]) -> None:
    """Raise UserError if a view is given an option that it does not take, or lacks one that it needs."""
    for option in given:
        if option not in view.options:
            known = ", ".join(f"--{each}" for each in view.options)
            raise UserError(
                f"--{option}: no option of --view {name}{f', which takes {known}' if known else '; omit it'}"
            )
    for option in view.needs:
        if option not in given:
            raise UserError(f"--{option}: --view {name} needs it")


def check_average(name: str, view: View, average: int, given: Collection[str]) -> None:
    """Raise UserError if checkpoints are averaged for a view that reads none of the weights opened."""
    if average > 1 and "until" in given:
        raise UserError("--average: --until opens the weights of one step; omit one of the two")
    if average > 1 and not view.reads_weights:
        raise UserError(
            f"--average: --view {name} reads the training or its data, not the averaged weights; omit it"
        )


def text_of(name: str, view: View, text: str | None) -> str | None:
    """Return the text for a view, or None for a view that reads no text.

    Raises:
        UserError: the text is missing, or it is given and the view reads none.
    """
    if not view.reads_text:
        if text is not None:
            raise UserError(f"--view {name} reads no text; omit {shortened(text, 40)!r}")
        return None
    if text is None:
        raise UserError(f"TEXT is missing: --view {name} needs a text to read")
    if text == "-":
        return standard_input.read_text()
    check_utf8("TEXT", text)
    return text


def look(runs: "list[Run]", view: View, text: str | None, options: dict[str, Any]) -> "Shown":
    """Call the lens function of a view on one run or two."""
    from clearformer import lens

    arguments = {ARGUMENTS.get(name, name): value for name, value in options.items() if name != "other"}
    function = getattr(lens, view.function)
    return function(*runs, *([] if text is None else [text]), **arguments)
