"""`clearformer eval`: read a whole held-out text."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from clearformer.errors import RunError

if TYPE_CHECKING:
    from clearformer.data import Split
    from clearformer.evaluate import Evaluation
    from clearformer.run import Run

app = typer.Typer(add_completion=False)


@app.command("eval")
def command(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's name, or the path of its folder.")],
    data: Annotated[str | None, typer.Option(help="Another text (a file or folder), read whole.")] = None,
    split: Annotated[str, typer.Option(help="train, val or test of the run's own text.")] = "val",
    context: Annotated[
        int | None, typer.Option(min=1, help="Tokens read at once (the model's length).")
    ] = None,
    stride: Annotated[
        int | None, typer.Option(min=1, help="Tokens between readings (half the context).")
    ] = None,
    checkpoint: Annotated[str, typer.Option(help="latest, best, or a step's number.")] = "latest",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    dtype: Annotated[str | None, typer.Option(help="float32 or bfloat16 (as in training).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure a run on a whole text, in order: loss, perplexity, bits per token, character and byte.

    Every token is predicted from at least context - stride tokens before it: a smaller stride is slower, and gives
    a lower loss. Compare models at the same context and stride.
    """
    import torch

    from clearformer.evaluate import evaluate_split
    from clearformer.run import load

    trained = load(run, checkpoint, device)
    text = whole_text(data, trained) if data is not None else split_of(trained, split)
    evaluation = evaluate_split(
        trained.model,
        text,
        trained.tokenizer,
        context=context,
        stride=stride,
        dtype=getattr(torch, dtype or trained.config.train.dtype),
    )
    if as_json:
        typer.echo(json.dumps(evaluation.to_json() | {"split": split if data is None else data}))
    else:
        typer.echo(table(evaluation, trained.tokenizer.vocab_size))


def split_of(run: "Run", name: str) -> "Split":
    """A split of the run's own text, as it was cut when the run was trained."""
    from clearformer.data import prepare

    splits = prepare(run.config.data, run.tokenizer).splits
    if name not in splits:
        raise RunError(f"--split: the run's text has no split {name!r}; it has {', '.join(splits)}")
    return splits[name]


def whole_text(path: str, run: "Run") -> "Split":
    """All of another text in the run's tokens."""
    from clearformer.data import TextData, prepare

    return prepare(
        TextData(path=path, field=run.config.data.field, val_fraction=0.0), run.tokenizer
    ).splits["train"]


def table(evaluation: "Evaluation", vocab_size: int) -> str:
    """The figures for people, and what they may be compared with."""
    e = evaluation
    rows = [
        ("loss", f"{e.loss:.4f} nats per token"),
        ("perplexity", f"{e.perplexity:.3f}"),
        ("bits per token", f"{e.bits_per_token:.4f}"),
        ("bits per character", f"{e.bits_per_char:.4f}" if e.bits_per_char else "-"),
        ("bits per byte", f"{e.bits_per_byte:.4f}" if e.bits_per_byte else "-"),
        ("mean entropy", f"{e.mean_entropy:.4f} nats: the loss that the model itself expects"),
        ("predicted", f"{e.n_tokens:,} tokens ({e.n_chars:,} characters, {e.n_bytes:,} bytes)"),
        ("read", f"the whole {e.split} split, context {e.context}, stride {e.stride}"),
    ]
    lines = [f"{name:<20}{value}" for name, value in rows]
    lines.append(
        f"\nPerplexity and loss per token compare only within one vocabulary (here {vocab_size} tokens);\n"
        f"bits per character and per byte compare any two models of the same text."
    )
    return "\n".join(lines)
