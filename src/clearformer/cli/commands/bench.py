"""`clearformer bench`: speed compared with other packages, measured alternately on this machine."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clearformer.cli.importing import importing
from clearformer.cli.options import AsJson, Config, Device, RunName, check_dtype, check_not_empty
from clearformer.cli.tables import table
from clearformer.cli.units import readable_number, readable_rate
from clearformer.errors import count

if TYPE_CHECKING:
    from clearformer.bench.machine import Limits
    from clearformer.bench.rounds import Comparison

app = typer.Typer(
    help="Compare speed with other packages, measured in turn on this machine.",
    add_completion=False,
)

Against = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PEER[=FOLDER]",
        help="Package to compare with, installed or a checkout in FOLDER (repeatable).",
        show_default="all known",
    ),
]
Rounds = Annotated[
    int, typer.Option(min=1, metavar="N", help="Number of measurements of each side, in turn.")
]


@app.command()
def train(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PRESET] [KEY=VALUE]...",
            help="A preset and settings, as for train.",
            show_default="nanogpt-cpu, or with --config as for train",
        ),
    ] = None,
    config: Config = None,
    against: Against = None,
    rounds: Rounds = 5,
    steps: Annotated[int, typer.Option(min=1, metavar="N", help="Steps per measurement.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Compare training speed, in tokens per second.

    The peers are nanogpt=FOLDER, transformers and litgpt. Every side's step has as many tokens: batch, forward,
    backward, clipping, optimizer. Settings left open (train.dtype, train.compile) are resolved as train resolves them.
    """
    with importing():
        from clearformer.bench.training import bench_training
        from clearformer.device import resolve_device
        from clearformer.resolving import resolve_run

    run = resolve_run(arguments or [] if config else with_preset(arguments, "nanogpt-cpu"), config)
    limits = limits_of(resolve_device(run.train.device))
    comparison = bench_training(run, against or [], rounds, steps, limits, print_figure)
    report("train", [comparison], limits, run.train.device, as_json)


@app.command()
def generate(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN|PRESET] [KEY=VALUE]...",
            help="A run, or a preset and settings with random weights.",
            show_default="minigpt",
        ),
    ] = None,
    against: Against = None,
    rounds: Rounds = 5,
    tokens: Annotated[int, typer.Option(min=1, metavar="N", help="Tokens to add to each text.")] = 100,
    streams: Annotated[
        list[int] | None,
        typer.Option(
            min=1, metavar="N", help="Texts generated at once (repeatable).", show_default="1 and 16"
        ),
    ] = None,
    dtype: Annotated[
        str, typer.Option(metavar="TYPE", help="Type on both sides: float32 or bfloat16.")
    ] = "float32",
    compiled: Annotated[
        bool, typer.Option("--compile/--no-compile", help="Compile the step of clearformer.")
    ] = True,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Compare the speed of greedy generation, in tokens per second.

    The peers are transformers (its generate with the cache) and llama_cpp. A peer that has the architecture gets the
    same weights, and the output says whether the tokens agree. llama.cpp uses float16 where the others use bfloat16,
    and takes part with one stream only.
    """
    with importing():
        from clearformer.bench.generation import bench_generation
        from clearformer.device import resolve_device

    check_dtype(dtype)
    decoder = decoder_of(with_preset(arguments, "minigpt")).to(resolve_device(device, "--device")).eval()
    limits = limits_of(resolve_device(device))
    comparisons = bench_generation(
        decoder, against or [], rounds, tokens, streams or [1, 16], dtype, limits, print_figure, compiled
    )
    report("generate", comparisons, limits, device, as_json)


@app.command()
def load(
    run: RunName,
    against: Against = None,
    rounds: Rounds = 5,
    as_json: AsJson = False,
) -> None:
    """Compare the seconds to load a model, and to the first token.

    The peer is transformers. Measures the call that loads the model, and a whole command up to its first token.
    """
    with importing():
        from clearformer.bench.loading import bench_loading
        from clearformer.device import resolve_device
        from clearformer.run import load as load_run

    limits = limits_of(resolve_device("cpu"))
    comparisons = bench_loading(load_run(run, device="cpu"), against or [], rounds, print_figure)
    report("load", comparisons, limits, "cpu", as_json)


@app.command()
def tokenize(
    file: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="Text to tokenize.", show_default="Python's own documentation"),
    ] = None,
    against: Against = None,
    rounds: Rounds = 5,
    as_json: AsJson = False,
) -> None:
    """Compare the speed of byte-level BPE, in megabytes per second.

    Measures encoding, decoding and training; the peers are tokenizers and tiktoken.
    """
    with importing():
        from clearformer.bench.tokenizing import bench_tokenizing
        from clearformer.device import resolve_device

    text = text_of(file)
    limits = limits_of(resolve_device("cpu"))
    report("tokenize", bench_tokenizing(text, against or [], rounds, print_figure), limits, "cpu", as_json)


# --- input ------------------------------------------------------------------------------------------------


def with_preset(arguments: list[str] | None, default: str) -> list[str]:
    """Return the arguments, with the default preset where settings alone are given, or nothing."""
    given = arguments or []
    return given if any("=" not in each for each in given) else [default, *given]


def decoder_of(arguments: list[str]) -> Any:
    """Return a run's model, or the model of a preset and settings with random weights.

    Raises:
        UserError: there is no such run, the model is not a decoder, or settings are given with a run.
    """
    from clearformer.errors import UserError
    from clearformer.model import Decoder, build
    from clearformer.presets import PRESETS
    from clearformer.resolving import resolve_run
    from clearformer.run import load as load_run
    from clearformer.training.planning.run_plan import expected_model

    name = next(each for each in arguments if "=" not in each)
    changes = [each for each in arguments if each != name]
    if name in PRESETS:
        model = build(expected_model(resolve_run(arguments, None)))
    elif changes:
        raise UserError(f"{changes[0]}: {name} is a run, whose model is fixed; change a preset instead")
    else:
        model = load_run(name, device="cpu").model
    if not isinstance(model, Decoder):
        raise UserError(f"bench generate compares decoders, and {name} is not one; use minigpt or gpt2")
    return model


def text_of(file: str | None) -> str:
    """Return a file's text, or the built-in text.

    Raises:
        UserError: the name is empty.
        DataError: it cannot be read.
    """
    from clearformer.data import TextData, open_source
    from clearformer.errors import worded_for

    check_not_empty("FILE", [file])
    with worded_for({"data.path=": ""}):
        source = open_source(TextData() if file is None else TextData(path=file))
    return "".join(chunk.text for chunk in source.documents())


def limits_of(device: Any) -> "Limits":
    """Measure the machine's limits, which takes some seconds."""
    from clearformer.bench.machine import measure_limits

    typer.echo("measuring the limits of the machine", err=True)
    return measure_limits(device)


# --- output -----------------------------------------------------------------------------------------------


def print_figure(name: str, figure: float) -> None:
    """Print a figure on standard error as soon as it is measured."""
    typer.echo(f"  {name}: {readable_number(figure)}", err=True)


def report(
    subject: str, comparisons: "list[Comparison]", limits: "Limits", device: str, as_json: bool
) -> None:
    """Print the machine and the comparisons, as text or as JSON."""
    from clearformer.bench.machine import describe
    from clearformer.device import resolve_device

    machine = describe(resolve_device(device), limits)
    if as_json:
        values = [comparison.to_json() for comparison in comparisons]
        typer.echo(json.dumps({"bench": subject, "machine": machine, "comparisons": values}))
        return
    typer.echo("\n\n".join((machine_line(machine), *map(as_text, comparisons))))


def machine_line(machine: dict[str, Any]) -> str:
    """Format the machine and its limits in two lines."""
    limits = machine["limits"]
    return (
        f"{machine['processor']}, {count(machine['threads'], 'thread')}, {machine['device']}, "
        f"torch {machine['torch']}\n"
        f"limits: {readable_rate(limits['float32'])} in float32, {readable_rate(limits['bfloat16'])} in "
        f"bfloat16; copying {limits['copy'] / 1e9:.0f} GB/s, reading {limits['read'] / 1e9:.0f} GB/s"
    )


def as_text(comparison: "Comparison") -> str:
    """Format one comparison: a table, then its other figures and the absent peers."""
    rows = [
        (side.name, *map(readable_number, (side.median, min(side.values), max(side.values))), times)
        for side in comparison.sides
        for times in [
            "" if side is comparison.sides[0] else f"{comparison.times_as_fast(side):.2f} times as fast"
        ]
    ]
    lines = [
        comparison.what,
        table(("", f"median {comparison.unit}", "lowest", "highest", "clearformer is"), rows),
        *(
            f"  {name.replace('_', ' ')}: {format_fact(name, value)}"
            for name, value in comparison.facts.items()
        ),
        *(f"  {side.name}: {side.note}" for side in comparison.sides if side.note),
        *(f"  {absent.name} skipped: {absent.reason}" for absent in comparison.absent),
    ]
    return "\n".join(lines)


def format_fact(name: str, value: Any) -> str:
    """Format one figure."""
    if value is None:
        return "unknown (no peak known for this device)"
    if name.startswith("of_") or name == "mfu":
        return f"{value:.1%}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return (
        f"{value:,}"
        if isinstance(value, int)
        else readable_number(value)
        if isinstance(value, float)
        else str(value)
    )
