"""`clearformer score`: the log-probability of each line."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from clearformer.cli import standard_input
from clearformer.cli.importing import importing
from clearformer.cli.options import (
    Average,
    Checkpoint,
    Context,
    Device,
    Dtype,
    RunName,
    Stride,
    check_fits,
    check_not_empty,
    dtype_of,
    identified,
    named_as_options,
    open_run,
)
from clearformer.cli.streams import write_text
from clearformer.errors import UserError, count

if TYPE_CHECKING:
    from clearformer.evaluation.likelihood import TextScore

app = typer.Typer(add_completion=False)


@app.command("score")
def command(
    run: RunName,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="Texts, one per line; for an encoder-decoder text<TAB>output.",
            show_default="standard input",
        ),
    ] = "-",
    prefix: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Language model: text before each line, which is not counted."),
    ] = None,
    context: Context = None,
    stride: Stride = None,
    average: Average = 1,
    checkpoint: Checkpoint = "latest",
    device: Device = "auto",
    dtype: Dtype = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, with the log-probability of each token.")
    ] = False,
) -> None:
    """Print the log-probability of each line of a file or of standard input.

    Prints one line for each line read: log p in nats, a tab, the number of tokens predicted, a tab, the perplexity per
    token. An empty line stays empty. The lines of a long file come in groups, as soon as they are scored. A line's
    first token is predicted only after a <bos> of the run's tokenizer or after --prefix: without either a line of one
    token has 0 of them. An encoder-decoder's is that of the output given the text. An encoder that fills in masked
    tokens predicts each from all others (pseudo-log-likelihood).
    """
    with importing():
        from clearformer.evaluation.likelihood import score
        from clearformer.runs.folders import find_run

    check_not_empty("FILE", [file])
    config = find_run(run).read_config()
    check_fits(not config.train.objective.predicts_classes, config, run, "gives texts no probability")
    lines = standard_input.lines_of(file)
    outputs = None
    if config.model.family == "encoder-decoder":
        lines, outputs = both_sides(lines, standard_input.name_of(file))
    trained = open_run(run, checkpoint, device, average)
    unwritten = iter(lines)

    def write(scored: "list[TextScore]") -> None:
        of_group = zip(scored, unwritten, strict=False)
        write_text(
            "".join(
                (as_line(found) if found.tokens or line.strip() else "") + "\n" for found, line in of_group
            )
        )

    with named_as_options(("prefix", "context", "stride")):
        scores = score(
            trained,
            lines,
            outputs,
            prefix=prefix,
            context=context,
            stride=stride,
            dtype=dtype_of(trained, dtype),
            place=lambda number: f"{standard_input.name_of(file)}, line {number}",
            look=None if as_json else write,
        )
    if as_json:
        typer.echo(json.dumps(identified(trained) | {"lines": [found.to_dict() for found in scores]}))
        return
    if n := sum(found.n_unknown > 0 for found in scores):
        typer.echo(
            f"{count(n, 'line')} with something that the vocabulary lacks: not the log-probability of the text",
            err=True,
        )


def both_sides(lines: list[str], file: str) -> tuple[list[str], list[str]]:
    """Return the texts and the outputs of lines `text<TAB>output`; both are empty for an empty line.

    Raises:
        UserError: a line has not one tab.
    """
    sides = [line.split("\t") if line.strip() else ["", ""] for line in lines]
    for number, each in enumerate(sides, start=1):
        if len(each) != 2:
            raise UserError(f"{file}, line {number}: give text<TAB>output, one tab between them")
    return [text for text, _ in sides], [output for _, output in sides]


def as_line(found: "TextScore") -> str:
    """Format a text's log-probability on one line; a text without predictions has no perplexity."""
    perplexity = "-" if found.perplexity is None else f"{found.perplexity:.4f}"
    return f"{found.logprob:.4f}\t{len(found.tokens)}\t{perplexity}"
