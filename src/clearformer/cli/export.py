"""`clearformer export`: write a run as others load it."""

from typing import Annotated

import typer

app = typer.Typer(add_completion=False)


@app.command("export")
def command(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's name, or the path of its folder.")],
    folder: Annotated[str, typer.Argument(metavar="DIR", help="A new folder.")],
    checkpoint: Annotated[str, typer.Option(help="latest, best, or a step's number.")] = "latest",
) -> None:
    """Write a run as a folder that transformers loads, with no code of ours: model, tokenizer and model card.

    Where the model is no architecture of theirs, the first setting that does not fit is named.
    """
    from clearformer.interop import to_hf
    from clearformer.interop.card import auto_class

    fitted = to_hf(run, folder, checkpoint)
    typer.echo(
        f"{folder}: {fitted.architecture.title}; load it by transformers.{auto_class(fitted)}"
        f".from_pretrained({folder!r})"
    )
