# ruff: noqa: N999  (a command is a file of its name, imported by importlib alone)
"""`clearformer import`: make a run from a model in transformers' format."""

from typing import Annotated

import typer

from clearformer.cli.importing import importing
from clearformer.cli.options import check_not_empty

app = typer.Typer(add_completion=False)


@app.command("import")
def command(
    folder: Annotated[
        str,
        typer.Argument(metavar="DIR", help="Folder saved by transformers, with weights in safetensors."),
    ],
    run: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the new run.", show_default="the folder's")
    ] = None,
) -> None:
    """Make a run from a model in a folder; it evaluates, samples and translates like any other.

    Reads config.json, model.safetensors and tokenizer.json, and runs no code from the folder. Architectures: GPT-2,
    Llama, Mistral, Qwen3, NanoChat, GPT-NeoX, Bloom, BERT, Marian, Pegasus, BART and T5.
    """
    with importing():
        from clearformer.files import short_path
        from clearformer.run import from_hf
        from clearformer.runs.folders import OTHER_NAME, new_run

    check_not_empty("DIR", [folder])
    if run is not None:
        new_run(run, "--run", OTHER_NAME)
    made = from_hf(folder, run)
    n_parameters = sum(parameter.numel() for parameter in made.model.parameters())
    typer.echo(f"{short_path(made.folder.path)}: {made.config.model.family} of {n_parameters:,} parameters")
