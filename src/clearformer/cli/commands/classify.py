"""`clearformer classify`: the class of each line."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from clearformer.cli import standard_input
from clearformer.cli.importing import importing
from clearformer.cli.options import (
    Average,
    Checkpoint,
    Device,
    Dtype,
    RunName,
    check_fits,
    check_not_empty,
    dtype_of,
    identified,
    open_run,
)
from clearformer.cli.streams import write_text

if TYPE_CHECKING:
    from clearformer.evaluation.classes.scores import Prediction

app = typer.Typer(add_completion=False)


@app.command("classify")
def command(
    run: RunName,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="Texts to classify, one per line.",
            show_default="standard input",
        ),
    ] = "-",
    truncate: Annotated[
        bool, typer.Option("--truncate", help="Truncate texts that are too long for the model.")
    ] = False,
    average: Average = 1,
    checkpoint: Checkpoint = "latest",
    device: Device = "auto",
    dtype: Dtype = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, with the probabilities of all classes.")
    ] = False,
) -> None:
    """Classify each line of a file or of standard input.

    Prints one line for each line read: the likeliest label, a tab, its probability. An empty line stays empty. The
    lines of a long file come in groups, as soon as they are classified.
    """
    with importing():
        from clearformer.evaluation.classes.scores import classify
        from clearformer.runs.folders import find_run

    check_not_empty("FILE", [file])
    config = find_run(run).read_config()
    check_fits(config.train.objective.predicts_classes, config, run, "does not classify")
    lines = standard_input.lines_of(file)
    trained = open_run(run, checkpoint, device, average)

    def write(classified: "list[Prediction]") -> None:
        write_text("".join(as_line(prediction) + "\n" for prediction in classified))

    predictions = classify(
        trained,
        lines,
        too_long="truncate" if truncate else None,
        dtype=dtype_of(trained, dtype),
        place=lambda number: f"{standard_input.name_of(file)}, line {number}",
        look=None if as_json else write,
    )
    if as_json:
        typer.echo(
            json.dumps(identified(trained) | {"lines": [vars(prediction) for prediction in predictions]})
        )


def as_line(prediction: "Prediction") -> str:
    """Format a prediction on one line; the line of an empty text is empty."""
    if not prediction.label:
        return ""
    return f"{' '.join(prediction.label.split())}\t{prediction.probability:.4f}"
