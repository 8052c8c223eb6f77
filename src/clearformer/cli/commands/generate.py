"""`clearformer generate`: continue a text."""

import json
from collections.abc import Sequence
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
    check_utf8,
    named_as_options,
    open_run,
    was_given,
)
from clearformer.cli.streams import TextInPieces, write_text
from clearformer.errors import ClearformerError, TokenizerError, UserError, count

if TYPE_CHECKING:
    from clearformer.decoding import Continuation, Sample
    from clearformer.run import Run

LONGEST_EXAMPLE = 40  # characters of a prompt that a hint repeats

app = typer.Typer(add_completion=False)

FOR_SAMPLES = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed", "stop")
NOT_FOR_BEAMS = ("compiled", "lookup", "int8")
FOR_CHANCE = ("top_k", "top_p", "min_p")


@app.command("generate")
def command(
    context: typer.Context,
    run: RunName,
    prompt: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Text to continue; - reads standard input. In bash, $'a\\nb' contains a newline.",
            show_default="a newline, if the tokenizer has one",
        ),
    ] = None,
    max_new_tokens: Annotated[
        int, typer.Option(min=1, metavar="N", help="Maximum number of tokens to add.")
    ] = 400,
    temperature: Annotated[
        float,
        typer.Option(
            min=0, metavar="X", help="Sampling temperature: 1 as learned, lower is safer, 0 is greedy."
        ),
    ] = 0.8,
    top_k: Annotated[
        int | None, typer.Option(min=1, metavar="K", help="Sample from the K likeliest tokens.")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(metavar="P", help="Sample from the likeliest tokens with total probability P."),
    ] = None,
    min_p: Annotated[
        float | None,
        typer.Option(metavar="P", help="Exclude tokens less than P times as likely as the likeliest."),
    ] = None,
    repetition_penalty: Annotated[
        float, typer.Option(metavar="X", help="Above 1, make tokens already used less likely.")
    ] = 1.0,
    beams: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Find the likeliest text by beam search with N beams, without sampling."
        ),
    ] = None,
    num: Annotated[int, typer.Option(min=1, metavar="N", help="Number of texts, generated at once.")] = 1,
    seed: Annotated[
        int, typer.Option(min=0, metavar="N", help="Random seed: the same seed gives the same texts.")
    ] = 1,
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Stop before this text (repeatable)."),
    ] = None,
    average: Average = 1,
    checkpoint: Checkpoint = "latest",
    device: Device = "auto",
    compiled: Annotated[
        bool,
        typer.Option("--compile", help="Compile the decoding step; pays off from some thousands of tokens."),
    ] = False,
    lookup: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="Guess up to N tokens at once from earlier repetitions: the same texts, faster where they repeat "
            "themselves.",
        ),
    ] = 0,
    int8: Annotated[
        bool,
        typer.Option(
            "--int8",
            help="Round the weights to int8, a quarter of the memory; prints the held-out loss with and without.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Continue a prompt; a single continuation is printed token by token as it is generated."""
    with importing():
        from clearformer.decoding import generate, search
        from clearformer.decoding.text.samples import require_decoder

    if beams is not None:
        check_without_effect(context, FOR_SAMPLES, "beam search does not sample", "--beams")
        check_without_effect(context, NOT_FOR_BEAMS, "beam search does not have it", "--beams")
    elif temperature == 0:
        check_without_effect(context, FOR_CHANCE, "temperature 0 does not sample", "--temperature")
    is_typed = prompt != "-"
    if not is_typed:
        prompt = standard_input.read_text()
    name = "--prompt" if is_typed else standard_input.NAME
    for option, texts in ((name, [prompt or ""]), ("--stop", stop or [])):
        for text in texts:
            check_utf8(option, text)
    trained = open_run(run, checkpoint, device, average)
    require_decoder(trained.model)
    if prompt is None:
        prompt = default_prompt(trained)
    else:
        check_known_characters(trained, prompt, name)
    for text in filter(has_typed_newline, stop or []):
        typer.echo(f"note: --stop: {hint_for_newlines(text, '--stop')}", err=True)
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
        "lookup": lookup,
        "int8": int8,
    }
    if int8:
        tell_int8_losses(trained)
    with named_as_options(context.params):
        if beams is not None:
            results = search(trained, prompt, max_new_tokens=max_new_tokens, beams=beams, num=num)
            about = {"beams": beams}
        elif num == 1 and not as_json:
            show_as_made(trained, prompt, settings)
            return
        else:
            results = generate(trained, prompt, num=num, **settings)
            about = {"seed": seed}
    warn_of_truncation(results[0])
    if as_json:
        typer.echo(as_object(results, about))
    else:
        write_text(as_text(results) + "\n")


def default_prompt(run: "Run") -> str:
    """Return a newline, or for a tokenizer that lacks it an empty text, which begins with <bos>."""
    try:
        tokens = run.tokenizer.encode("\n")
    except TokenizerError:
        return ""
    return "" if run.tokenizer.unk_id in tokens.tolist() else "\n"


def check_known_characters(run: "Run", prompt: str, name: str) -> None:
    """Check that the tokenizer can encode a prompt; if a backslash and an n are typed, say how to type a new line.

    Args:
        run: The run.
        prompt: The prompt.
        name: The option that it was typed at, or the name of standard input.

    Raises:
        TokenizerError: it holds a character that the tokenizer lacks.
    """
    from clearformer.text import located

    hint = ""
    if has_typed_newline(prompt) and name == "--prompt":
        hint = hint_for_newlines(prompt, name)
    try:
        run.tokenizer.encode(prompt)
    except TokenizerError as error:
        raise TokenizerError("; ".join(filter(None, (str(located(error, name)), hint)))) from None
    if hint:
        typer.echo(f"note: --prompt: {hint}", err=True)


def has_typed_newline(text: str) -> bool:
    """Whether a text holds a backslash and an n, as who means a newline may have typed it."""
    return "\\n" in text


def hint_for_newlines(text: str, option: str) -> str:
    """Say how to type an option's text so that the shell makes newlines of its backslashes and n."""
    example = "..." if "'" in text or len(text) > LONGEST_EXAMPLE else text
    return f"contains a backslash and an n; for a newline, type {option} $'{example}' in bash"


def tell_int8_losses(run: "Run") -> None:
    """Report on standard error the memory that int8 weights save and the loss they cost, or why that is unknown."""
    try:
        typer.echo(f"int8 weights: {run.int8_losses().in_words()}", err=True)
    except ClearformerError as error:
        typer.echo(f"int8 weights: loss not measured: {error}", err=True)


def check_without_effect(context: typer.Context, names: Sequence[str], why: str, other: str) -> None:
    """Raise UserError if an option is given that has no effect together with the option `other`."""
    for name in names:
        if was_given(context, name):
            [option] = [param.opts[0] for param in context.command.params if param.name == name]
            raise UserError(f"{option}: {why}; omit {option} or {other}")


def show_as_made(run: "Run", prompt: str, settings: dict[str, Any]) -> None:
    """Print one continuation piece by piece as it is generated."""
    from clearformer.decoding import stream

    pieces = stream(run, prompt, **settings)  # which refuses a prompt before it is printed
    text = TextInPieces()
    text.write(prompt)
    while True:
        try:
            text.write(next(pieces))
        except StopIteration as done:
            text.end()
            warn_of_truncation(done.value)
            return


def warn_of_truncation(sample: "Sample | Continuation") -> None:
    """Report on standard error if the prompt was longer than the model reads."""
    if sample.truncated:
        typer.echo(
            f"the prompt has {count(sample.n_prompt_tokens, 'token')}; the model read the last "
            f"{sample.n_prompt_tokens_read:,}",
            err=True,
        )


def as_text(texts: "Sequence[Sample | Continuation]") -> str:
    """Join all texts, each with its prompt, with a line of dashes between them."""
    return "\n---\n".join(text.prompt + text.text for text in texts)


def as_object(texts: "Sequence[Sample | Continuation]", settings: dict[str, Any]) -> str:
    """Format all texts as one JSON object."""
    keys = ("text", "tokens", "logprob", "score", "finish_reason", "n_prompt_tokens", "n_prompt_tokens_read")
    rows = [{key: getattr(text, key) for key in keys if hasattr(text, key)} for text in texts]
    return json.dumps({"prompt": texts[0].prompt} | settings | {"samples": rows})
