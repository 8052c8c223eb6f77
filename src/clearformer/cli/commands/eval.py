"""`clearformer eval`: measure a run on a whole split, or on other data of the kind that it was trained on."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clearformer.cli.options import show_log, was_given
from clearformer.errors import UserError

if TYPE_CHECKING:
    from clearformer.training.config import RunConfig

app = typer.Typer(add_completion=False)

# What each option is about, and the objective of the runs that it goes with.
OPTIONS_OF_ONE_KIND = {
    "context": ("how much of a text is read at once", "next_token"),
    "stride": ("how a text is read window by window", "next_token"),
    "beams": ("beam search", "translation"),
    "figure": ("the confusion matrix", "classification"),
}
RUNS_THAT = {
    "next_token": "continues texts",
    "translation": "translates",
    "masked": "fills in masked tokens",
    "classification": "classifies",
}


@app.command("eval")
def command(
    options: typer.Context,
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's name, or the path of its folder.")],
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Another text, labelled texts or pairs, read whole (pairs in two files: --data SOURCE --data TARGET).",
        ),
    ] = None,
    split: Annotated[str, typer.Option(help="train, val or test of the run's own data.")] = "val",
    changed_data: Annotated[
        bool,
        typer.Option(
            "--changed-data", help="Read the run's own data though they have changed since it was trained."
        ),
    ] = False,
    context: Annotated[
        int | None, typer.Option(min=1, help="Texts: tokens read at once (the model's length).")
    ] = None,
    stride: Annotated[
        int | None, typer.Option(min=1, help="Texts: tokens between readings (half the context).")
    ] = None,
    beams: Annotated[
        int, typer.Option(min=1, help="Translation: texts held at once by beam search; 1: greedy.")
    ] = 5,
    figure: Annotated[
        Path | None,
        typer.Option(metavar="F.png|F.svg", help="Classification: draw the confusion matrix there."),
    ] = None,
    average: Annotated[int, typer.Option(min=1, help="Take the mean of the last K checkpoints.")] = 1,
    checkpoint: Annotated[str, typer.Option(help="latest, best, or a step's number.")] = "latest",
    device: Annotated[str, typer.Option(help="auto, cpu, mps, cuda or cuda:1.")] = "auto",
    dtype: Annotated[str | None, typer.Option(help="float32 or bfloat16 (as in training).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure a run on a whole split of its data.

    Of a text: loss, perplexity, bits per token, character and byte. Every token is predicted from at least context -
    stride tokens before it: a smaller stride is slower, and gives a lower loss. Compare models at the same context and
    stride.

    Of pairs: loss, perplexity and accuracy of the tokens of given translations; BLEU, chrF and exact match of the
    model's own. Of masked tokens: loss, perplexity and accuracy. Of labelled texts: accuracy, macro-F1 and what is
    taken for what, beside a baseline of TF-IDF and logistic regression.
    """
    from clearformer.cli.commands.translate import dtype_of
    from clearformer.cli.views.measuring import Settings, measure
    from clearformer.evaluation.figures import check_known_format, confusion_matrix_figure
    from clearformer.run import load
    from clearformer.runs import find_run

    show_log()
    check_applicable(options, find_run(run).read_config())
    if data and was_given(options, "split"):
        raise UserError("--split: other data are read whole; leave out --split, or --data")
    if data and changed_data:
        raise UserError("--changed-data: it is about the run's own data; leave it out, or --data")
    if figure is not None:
        check_known_format(figure)
    trained = load(run, checkpoint, device, average)
    settings = Settings(split, data or [], changed_data, context, stride, beams, dtype_of(trained, dtype))
    measured = measure(trained, settings)
    typer.echo(json.dumps(measured.values) if as_json else measured.text)
    if figure is not None and measured.report is not None:
        confusion_matrix_figure(measured.report, figure, f"{trained.folder.path.name}, {settings.name}")
        typer.echo(f"confusion matrix: {figure}", err=True)


def check_applicable(options: typer.Context, config: "RunConfig") -> None:
    """Raise UserError for an option that has no part in measuring a run of this kind."""
    kind = config.train.objective.kind
    for name, (about, its_kind) in OPTIONS_OF_ONE_KIND.items():
        if kind != its_kind and was_given(options, name):
            raise UserError(
                f"--{name}: {about} is for a run that {RUNS_THAT[its_kind]}, and this one {RUNS_THAT[kind]}; "
                f"leave out --{name}"
            )
