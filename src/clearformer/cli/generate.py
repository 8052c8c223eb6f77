"""`clearformer generate`: continue a text."""

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clearformer.cli import standard_input
from clearformer.cli.options import was_given
from clearformer.errors import UserError

if TYPE_CHECKING:
    from clearformer.generate import Continuation, Sample
    from clearformer.run import Run

app = typer.Typer(add_completion=False)

FOR_SAMPLES = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed", "stop", "compiled")


@app.command("generate")
def command(
    context: typer.Context,
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's name, or the path of its folder.")],
    prompt: Annotated[
        str, typer.Option(help="What the text begins with; - reads it from standard input.")
    ] = "\n",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="The most tokens to add.")] = 400,
    temperature: Annotated[float, typer.Option(min=0, help="1: as learned; less: safer; 0: greedy.")] = 0.8,
    top_k: Annotated[int | None, typer.Option(min=1, help="Choose among the K likeliest tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Choose among the likeliest that make up P.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Leave out those under P times the likeliest.")] = None,
    repetition_penalty: Annotated[
        float, typer.Option(help="Over 1: make tokens used before less likely.")
    ] = 1.0,
    beams: Annotated[
        int | None, typer.Option(min=1, help="Draw nothing: the likeliest text, by beam search with N beams.")
    ] = None,
    num: Annotated[int, typer.Option(min=1, help="How many texts, all at once.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same texts.")] = 1,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text (may be given often).")] = None,
    checkpoint: Annotated[str, typer.Option(help="latest, best, or a step's number.")] = "latest",
    device: Annotated[str, typer.Option(help="auto, cpu, mps, cuda or cuda:1.")] = "auto",
    compiled: Annotated[
        bool,
        typer.Option(
            "--compile", help="Compile the step for a token: pays from some thousands of tokens on."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Continue a prompt, token by token; one text is shown as it is made."""
    from clearformer.generate import generate, search
    from clearformer.generate.samples import continuer
    from clearformer.run import load

    if beams is not None:
        refuse_settings_of_samples(context)
    if prompt == "-":
        prompt = standard_input.read_text()
    trained = load(run, checkpoint, device)
    continuer(trained)  # before the prompt is shown
    if beams is not None:
        found = search(trained, prompt, max_new_tokens=max_new_tokens, beams=beams, num=num)
        warn_of_truncation(found[0])
        typer.echo(as_object(found, {"beams": beams}) if as_json else as_text(found))
        return
    settings = {
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "seed": seed,
        "stop": stop or [],
        "compiled": compiled,
    }
    if num == 1 and not as_json:
        show_as_made(trained, prompt, settings)
        return
    samples = generate(trained, prompt, num=num, **settings)
    warn_of_truncation(samples[0])
    typer.echo(as_object(samples, {"seed": seed}) if as_json else as_text(samples))


def refuse_settings_of_samples(context: typer.Context) -> None:
    """Raise UserError where beam search is asked for and something that has no part in it."""
    for name in FOR_SAMPLES:
        if was_given(context, name):
            option = f"--{name.replace('_', '-')}"
            raise UserError(f"{option}: beam search draws no samples; leave out {option}, or --beams")


def show_as_made(run: "Run", prompt: str, settings: dict[str, Any]) -> None:
    """Print one text piece by piece."""
    from clearformer.generate import stream

    typer.echo(prompt, nl=False)
    pieces = stream(run, prompt, **settings)
    while True:
        try:
            typer.echo(next(pieces), nl=False)
            sys.stdout.flush()
        except StopIteration as done:
            typer.echo()
            warn_of_truncation(done.value)
            return


def warn_of_truncation(sample: "Sample | Continuation") -> None:
    """Say on standard error where the prompt was longer than the model reads."""
    if sample.truncated:
        typer.echo(
            f"the prompt is {sample.n_prompt_tokens} tokens long; the model read the last "
            f"{sample.n_prompt_tokens_read} of them",
            err=True,
        )


def as_text(texts: "Sequence[Sample | Continuation]") -> str:
    """All texts, each with its prompt, and a line between."""
    return "\n---\n".join(text.prompt + text.text for text in texts)


def as_object(texts: "Sequence[Sample | Continuation]", settings: dict[str, Any]) -> str:
    """All texts as one JSON object."""
    keys = ("text", "tokens", "logprob", "score", "finish_reason", "n_prompt_tokens", "n_prompt_tokens_read")
    rows = [{key: getattr(text, key) for key in keys if hasattr(text, key)} for text in texts]
    return json.dumps({"prompt": texts[0].prompt} | settings | {"samples": rows})
