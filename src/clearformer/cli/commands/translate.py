"""`clearformer translate`: one line out for every line in."""

import itertools
import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from clearformer.cli import standard_input
from clearformer.cli.importing import importing
from clearformer.cli.options import (
    AsJson,
    Average,
    Checkpoint,
    Device,
    Dtype,
    RunName,
    check_fits,
    check_not_empty,
    dtype_of,
    identified,
    named_as_options,
    open_run,
)
from clearformer.cli.streams import write_text
from clearformer.errors import UserError, count, did_you_mean, shortened

if TYPE_CHECKING:
    from clearformer.decoding import Translation

app = typer.Typer(add_completion=False)

EARLY_STOPPING: dict[str, bool | Literal["never"]] = {"false": False, "true": True, "never": "never"}


@app.command("translate")
def command(
    context: typer.Context,
    run: RunName,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="Text to translate, one sentence per line.",
            show_default="standard input",
        ),
    ] = "-",
    beams: Annotated[
        int, typer.Option(min=1, metavar="N", help="Beams of the beam search; 1 is greedy.")
    ] = 5,
    length_penalty: Annotated[
        float, typer.Option(metavar="X", help="Exponent of the length penalty; higher favours longer texts.")
    ] = 1.0,
    length_penalty_kind: Annotated[
        str,
        typer.Option(metavar="KIND", help="Score by hf, log P / n^X, or by gnmt, log P / ((5 + n) / 6)^X."),
    ] = "hf",
    early_stopping: Annotated[
        str,
        typer.Option(
            metavar="WHEN",
            help="When to stop: true, once as many texts have ended as there are beams; false, by an estimate; never, "
            "only when no better one is possible.",
        ),
    ] = "false",
    n_best: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="Print the N best translations: line number, rank, score and text, separated by tabs.",
        ),
    ] = 1,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Maximum length of a translation, in tokens.",
            show_default="twice the source plus 50",
        ),
    ] = None,
    batch_tokens: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Maximum number of source tokens in a batch.", show_default="1024"
        ),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Reference translations; prints BLEU and chrF to standard error."),
    ] = None,
    average: Average = 1,
    checkpoint: Checkpoint = "latest",
    device: Device = "auto",
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """Translate a file or standard input, line by line.

    Prints one line for each line read; an empty line stays empty. The lines of a long file come in groups, as soon as
    they are translated.
    """
    with importing():
        from clearformer.decoding.text.translations import BATCH_TOKENS, translate
        from clearformer.runs.folders import find_run

    check_names(file, reference)
    config = find_run(run).read_config()
    check_fits(config.model.family == "encoder-decoder", config, run, "does not translate")
    lines = standard_input.lines_of(file)
    references = None if reference is None else standard_input.lines_of(reference)
    if references is not None:
        check_equal_lengths(file, lines, standard_input.name_of(str(reference)), references)
        check_scores_at_hand()
    trained = open_run(run, checkpoint, device, average)
    settings: dict[str, Any] = {
        "beams": beams,
        "length_penalty": length_penalty,
        "length_penalty_kind": length_penalty_kind,
        "early_stopping": early_stopping_of(early_stopping),
        "n_best": n_best,
        "max_new_tokens": max_new_tokens,
    }
    numbers = itertools.count(1)

    def write(translated: "list[list[Translation]]") -> None:
        for line in as_lines(translated, n_best, numbers):
            write_text(line + "\n")

    with named_as_options(context.params):
        translations = translate(
            trained,
            lines,
            **settings,
            batch_tokens=batch_tokens or BATCH_TOKENS,
            dtype=dtype_of(trained, dtype),
            place=lambda number: f"{standard_input.name_of(file)}, line {number}",
            look=None if as_json else write,
        )
    scores = None if references is None else scores_of(translations, references)
    if as_json:
        about = identified(trained) | settings
        typer.echo(
            json.dumps(about | {"scores": scores and scores.to_json(), "lines": as_objects(translations)})
        )
        return
    warn_of_cuts(translations)
    if scores is not None:
        typer.echo(str(scores), err=True)


# --- input ------------------------------------------------------------------------------------------------


def check_names(file: str, reference: str | None) -> None:
    """Raise UserError if a name is empty, or if both files are standard input, which can be read only once."""
    check_not_empty("FILE", [file])
    check_not_empty("--reference", [reference])
    if file == reference == "-":
        raise UserError(
            "--reference: the sentences are read from standard input; name a file for one of the two"
        )


def check_equal_lengths(file: str, lines: list[str], reference: str, references: list[str]) -> None:
    """Raise UserError unless there are as many references as lines."""
    if len(lines) != len(references):
        raise UserError(
            f"--reference: {reference} has {count(len(references), 'line')} and {standard_input.name_of(file)} has "
            f"{count(len(lines), 'line')}: "
            "line n must be the translation of line n"
        )


def early_stopping_of(word: str) -> bool | Literal["never"]:
    """Return the value of --early-stopping as `translate` takes it."""
    if word not in EARLY_STOPPING:
        raise UserError(
            f"--early-stopping takes {', '.join(EARLY_STOPPING)}; got {shortened(word)!r}"
            f"{did_you_mean(word, EARLY_STOPPING)}"
        )
    return EARLY_STOPPING[word]


# --- output -----------------------------------------------------------------------------------------------


def as_lines(
    translations: "Iterable[list[Translation]]", n_best: int, numbers: Iterator[int]
) -> Iterator[str]:
    """Format translations as lines: the best of each, or several with line number, rank and score before them."""
    for best_first, number in zip(translations, numbers, strict=False):
        if n_best == 1:
            yield best_first[0].text
            continue
        for rank, translation in enumerate(best_first, start=1):
            yield f"{number}\t{rank}\t{translation.score:.4f}\t{translation.text}"


def as_objects(translations: "list[list[Translation]]") -> list[list[dict[str, Any]]]:
    """Convert all translations of every line to plain values for JSON."""
    return [[vars(translation) for translation in best_first] for best_first in translations]


def scores_of(translations: "list[list[Translation]]", references: list[str]) -> Any:
    """Compute BLEU and chrF of the best translation of each line."""
    from clearformer.evaluation.translation import score_translations

    return score_translations([best_first[0].text for best_first in translations], references)


def check_scores_at_hand() -> None:
    """Raise MissingPackageError if sacrebleu is not installed, before anything is translated."""
    from clearformer.evaluation.translation import sacrebleu_metrics

    sacrebleu_metrics()


def warn_of_cuts(translations: "list[list[Translation]]") -> None:
    """Report on standard error which translations were cut before they ended."""
    cut = [number for number, best_first in enumerate(translations, start=1) if best_first[0].cut]
    if cut:
        others = f" and {len(cut) - 1:,} more" if len(cut) > 1 else ""
        typer.echo(f"line {cut[0]}{others}: the translation was cut at the maximum length", err=True)
