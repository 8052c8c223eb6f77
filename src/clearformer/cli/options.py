"""Options and arguments that several commands share, and the checks of their values."""

import logging
import re
import shlex
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clearformer.errors import UserError, did_you_mean, shortened
from clearformer.files import short_path

if TYPE_CHECKING:
    from clearformer.run import Run
    from clearformer.training.config import RunConfig

MATRIX_DTYPES = ("float32", "bfloat16")

RunName = Annotated[str, typer.Argument(metavar="RUN", help="Name of a run, or path of its folder.")]
Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[PRESET] [KEY=VALUE]...",
        help="A preset, and settings that override it, such as train.lr=3e-4. Without a preset, the data's "
        "kind selects one.",
        show_default=False,
    ),
]
Config = Annotated[
    Path | None, typer.Option(metavar="F.toml", help="TOML file of settings that override the preset's.")
]
Checkpoint = Annotated[str, typer.Option(metavar="WHICH", help="Checkpoint to load: latest, best or a step.")]
Average = Annotated[int, typer.Option(min=1, metavar="K", help="Average the last K checkpoints.")]
Device = Annotated[str, typer.Option(metavar="NAME", help="Device to use: auto, cpu, mps, cuda or cuda:1.")]
Context = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Language model: tokens per context.",
        show_default="the model's maximum",
    ),
]
Stride = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Language model: tokens between the starts of two contexts.",
        show_default="half the context",
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        metavar="TYPE",
        help="Type of the matrix products: float32 or bfloat16.",
        show_default="as in training",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def check_fits(fits: bool, config: "RunConfig", run: str, lacks: str) -> None:
    """Raise UserError if a command is not for a run; the message names the one that is.

    Args:
        fits: Whether it is.
        config: The run's configuration.
        run: Its name.
        lacks: What the run does not do, such as `does not classify`.
    """
    if not fits:
        objective = config.train.objective
        raise UserError(
            f"{run} {lacks}; it {objective.activity}{objective.usage.format(run=shlex.quote(run))}"
        )


def was_given(context: typer.Context, name: str) -> bool:
    """Whether an option was given, even with its default value.

    Sources are compared by name, because newer versions of typer bundle a copy of click with an enum of its own.
    """
    source = context.get_parameter_source(name)
    return source is not None and source.name not in ("DEFAULT", "DEFAULT_MAP")


def show_log() -> None:
    """Show the library's log, such as the assumptions that it makes, on standard error."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[_Log()])


class _Log(logging.Handler):
    """Standard error as it is when a message comes: while a bar is shown, messages appear above it."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr)


@contextmanager
def named_as_options(names: Collection[str], others: Mapping[str, str] | None = None) -> Iterator[None]:
    """Name options instead of arguments in errors about their values: --top-p for top_p.

    Args:
        names: The arguments whose options have the same names.
        others: The options of arguments that have other names.
    """
    options = {name: name for name in names} | dict(others or {})
    try:
        yield
    except UserError as error:
        if re.match(r"[^:]+, line \d", str(error)):  # a file and its line, whatever the file's name
            raise
        argument, space, rest = str(error).partition(" ")
        for name in (argument.rstrip(":").replace(".", "_"), argument.partition(".")[0].rstrip(":")):
            option = options.get(name)
            if option is not None:
                colon = ":" * argument.endswith(":")
                error.args = (f"--{option.replace('_', '-')}{colon}{space}{rest}",)
                break
        raise


def open_run(name: str, checkpoint: str = "latest", device: str = "auto", average: int = 1) -> "Run":
    """Load a run; errors name the options of a command."""
    from clearformer.run import load

    with named_as_options(("checkpoint", "device", "average")):
        return load(name, checkpoint, device=device, average=average)


def identified(run: "Run") -> dict[str, Any]:
    """Return the folder, the step and the averaged checkpoints of an opened run, for JSON."""
    return {"run": str(short_path(run.folder.path)), "step": run.step, "average": run.average}


def check_dtype(name: str, known: Sequence[str] = MATRIX_DTYPES) -> None:
    """Raise UserError if --dtype names no known type."""
    if name not in known:
        raise UserError(
            f"--dtype takes {' or '.join(known)}; got {shortened(name)!r}{did_you_mean(name, known)}"
        )


def dtype_of(run: "Run", name: str | None) -> Any:
    """Return the dtype of the matrix products: the named one, or the run's own."""
    import torch

    if name is None:
        return run.dtype
    check_dtype(name)
    return getattr(torch, name)


def check_not_empty(option: str, names: Sequence[str | None]) -> None:
    """Raise UserError if one of the names of files, folders or runs is empty."""
    if "" in names:
        raise UserError(f"{option}: the name is empty (is a shell variable unset?)")


def check_utf8(option: str, text: str) -> None:
    """Raise UserError if an argument is not valid UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        byte = ord(text[error.start]) & 0xFF
        raise UserError(f"{option}: not UTF-8 (byte 0x{byte:02x}, character {error.start + 1:,})") from None
