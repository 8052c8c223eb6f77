"""`clearformer eval`: measure a run on a whole split, or on other data of the kind it was trained on."""

import json
from pathlib import Path
from typing import Annotated

import typer

from clearformer.cli.importing import importing
from clearformer.cli.options import (
    AsJson,
    Average,
    Checkpoint,
    Context,
    Device,
    Dtype,
    RunName,
    Stride,
    dtype_of,
    named_as_options,
    open_run,
    show_log,
    was_given,
)
from clearformer.cli.progress import progress_bar
from clearformer.files import user_path

app = typer.Typer(add_completion=False)


@app.command("eval")
def command(
    options: typer.Context,
    run: RunName,
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Other data, read whole: a text, labelled texts or pairs (in two files: --data SOURCE --data TARGET).",
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Split of the run's own data: train, val or test.", show_default="val"
        ),
    ] = None,
    changed_data: Annotated[
        bool,
        typer.Option(
            "--changed-data", help="Use the run's own data even if they have changed since training."
        ),
    ] = False,
    context: Context = None,
    stride: Stride = None,
    beams: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Translation: beams of the beam search; 1 is greedy.",
            show_default="5",
        ),
    ] = None,
    figure: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Classification: draw the confusion matrix to FILE.png, .svg or .pdf."
        ),
    ] = None,
    unseen: Annotated[
        bool,
        typer.Option(
            "--unseen",
            help="Classification, translation: exclude texts and pairs that are also in the training data.",
        ),
    ] = False,
    average: Average = 1,
    checkpoint: Checkpoint = "latest",
    device: Device = "auto",
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a run on a whole split of its data, or on other data.

    Language model: loss, perplexity, bits per token, character and byte. Every token is predicted from at least
    context - stride tokens before it, or from all if there are fewer: a smaller stride is slower and gives a lower
    loss. Compare models at the same context and stride.

    Translation: loss, perplexity and accuracy on the tokens of the given translations; BLEU, chrF and exact match of
    the model's own. Masked tokens: loss, perplexity and accuracy. Classification: accuracy, macro-F1 and the confusion
    matrix, next to a baseline of TF-IDF and logistic regression.

    Each also says how much of the data stands in the run's training data too: a score on that part shows what was
    learnt by heart.
    """
    with importing():
        from clearformer.cli.views.evaluation import evaluation_text
        from clearformer.device import keep_freed_memory
        from clearformer.evaluation.figures import check_can_be_drawn, confusion_matrix_figure
        from clearformer.runs.evaluation import DataChoice, check_applicable, check_choice, evaluate_run
        from clearformer.runs.folders import find_run
        from clearformer.training.tasks.task import EvaluationOptions

    show_log()
    spelled = "--{}".format
    given = [name for name in ("context", "stride", "beams", "figure", "unseen") if was_given(options, name)]
    choice = DataChoice(split, data or [], changed_data)
    check_applicable(find_run(run).read_config(), given, spelled)
    check_choice(choice, spelled)
    if figure is not None:
        figure = user_path(figure)
        check_can_be_drawn(figure)
    trained = open_run(run, checkpoint, device, average)
    keep_freed_memory()  # every batch takes about as much
    its_options = EvaluationOptions(dtype_of(trained, dtype), context, stride, beams, unseen)
    with named_as_options(("context", "stride", "beams")), progress_bar() as progress:
        report = evaluate_run(trained, choice, its_options, spelled, progress)
    typer.echo(json.dumps(report.values) if as_json else evaluation_text(report))
    if figure is not None and report.classes is not None:
        confusion_matrix_figure(report.classes, figure, f"{trained.folder.path.name}, {choice.name}")
        typer.echo(f"confusion matrix: {figure}", err=True)
