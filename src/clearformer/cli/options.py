"""What commands have in common: options and arguments, whether one was given, and showing the log."""

import logging
from pathlib import Path
from typing import Annotated

import typer

RunName = Annotated[str, typer.Argument(metavar="RUN", help="A run's name, or the path of its folder.")]
Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[PRESET] [KEY=VALUE]",
        help="A preset, then settings laid over it: train.lr=3e-4. Where no preset is named, the data decide.",
        show_default=False,
    ),
]
Config = Annotated[
    Path | None, typer.Option(metavar="F.toml", help="Settings from a TOML file, laid over the preset.")
]
Checkpoint = Annotated[str, typer.Option(metavar="WHICH", help="latest, best, or a step's number.")]
Average = Annotated[int, typer.Option(min=1, metavar="K", help="Take the mean of the last K checkpoints.")]
Device = Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, mps, cuda or cuda:1.")]
Dtype = Annotated[
    str | None,
    typer.Option(
        metavar="TYPE", help="Of the matrix products: float32 or bfloat16. Default: as in training."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def was_given(context: typer.Context, name: str) -> bool:
    """Whether an option was given, be it with its default's value.

    Compared by name, because newer versions of typer bring a copy of click, whose members are not those of click.
    """
    source = context.get_parameter_source(name)
    return source is not None and source.name not in ("DEFAULT", "DEFAULT_MAP")


def show_log() -> None:
    """Show on standard error what the library tells on the way, such as what it takes for granted."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
