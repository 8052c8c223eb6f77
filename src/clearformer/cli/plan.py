"""`clearformer plan`: what a run will cost, before it is made."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:  # these take time to import, and `--help` needs none of them
    from rich.table import Table

    from clearformer.train.config import RunConfig
    from clearformer.train.plan import Plan

MEASURE = "measure"
GUESSED_CHARACTERS = 65  # of Tiny Shakespeare

app = typer.Typer(add_completion=False)


@app.command()
def plan(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PRESET] [KEY=VALUE]...", help="A preset, and settings such as model.d_model=256."
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(metavar="F.toml", help="Settings from a TOML file.")] = None,
    device: Annotated[
        str,
        typer.Option(
            metavar="NAME|measure",
            help="Estimate the time on a named GPU, such as a100, or on this machine by a short measurement.",
        ),
    ] = MEASURE,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show a run's parameters, FLOPs, memory and time, without training."""
    from clearformer.presets import resolve_run

    run = resolve_run(arguments or [], config)
    if note := vocabulary_note(run):
        typer.echo(note, err=True)
    planned = plan_run(run, device)
    if as_json:
        typer.echo(json.dumps(asdict(planned)))
    else:
        show(planned)


def plan_run(run: "RunConfig", device: str) -> "Plan":
    """The plan of a run on a named device, or on this machine where the name is `measure`.

    Raises:
        ConfigError: there is no such device, or it does not go with the run's settings.
    """
    from clearformer.train.device import resolve_device, resolve_dtype
    from clearformer.train.plan import measured_rate, named_rate, plan

    model = run.model
    if model.vocab_size is None:
        model = model.replace(vocab_size=expected_vocabulary(run))
    if device == MEASURE:
        here = resolve_device(run.train.device)
        device_type, rate = here.type, measured_rate(resolve_dtype(run.train.dtype, here), here)
    else:
        device_type, rate = "cuda", named_rate(device, run.train.dtype)
    return plan(model, run.train.replace(dtype=rate.dtype), rate, device_type)


def expected_vocabulary(run: "RunConfig") -> int:
    """The tokeniser's vocabulary before it has read any text; that of characters is a guess."""
    from clearformer.text import BPETokenizerSpec, ByteTokenizerSpec, CharTokenizerSpec, GPT2TokenizerSpec

    match run.tokenizer:
        case CharTokenizerSpec() as tokenizer:
            return GUESSED_CHARACTERS + tokenizer.bos + tokenizer.eos + tokenizer.unk
        case ByteTokenizerSpec() as tokenizer:
            return 256 + tokenizer.bos + tokenizer.eos
        case BPETokenizerSpec() as tokenizer:
            return tokenizer.vocab_size
        case GPT2TokenizerSpec():
            return 50_257


def vocabulary_note(run: "RunConfig") -> str | None:
    """What to tell the user where the plan rests on a guess."""
    if run.model.vocab_size is not None or run.tokenizer.kind != "char":
        return None
    return (
        f"note: how many characters the text has is not known yet; the plan takes {expected_vocabulary(run)}. "
        f"model.vocab_size=N sets another number"
    )


# --- what is printed --------------------------------------------------------------------------------------


def show(plan: "Plan", console: "Console") -> None:
    """Print a plan for a person to read."""
    console.print(component_table(plan))
    console.print()
    for name, lines in (("parameters", parameter_lines(plan)), ("memory", memory_lines(plan)), ("time", time_lines(plan))):
        for line in lines:
            console.print(f"{name:<12}{line}", soft_wrap=True)
            name = ""


def component_table(plan: "Plan") -> "Table":
    """Parameters and forward FLOPs of every component."""
    from rich.table import Table

    parameters, flops = plan.parameters, plan.flops_per_token
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("component")
    for header in ("parameters", "share", "FLOPs per token"):
        table.add_column(header, justify="right")
    for component, count in parameters.by_component.items():
        share = f"{count / parameters.total:.1%}"
        table.add_row(component, f"{count:,}", share, f"{flops.by_component[component]:,.0f}")
    table.add_row("total", f"{parameters.total:,}", "", f"{flops.forward:,.0f}", style="bold")
    return table


def parameter_lines(plan: "Plan") -> list[str]:
    parameters, flops = plan.parameters, plan.flops_per_token
    return [
        f"{parameters.by_formula:,} by the formula; {parameters.matrices:,} of them in matrices, not biases or norms",
    ]
