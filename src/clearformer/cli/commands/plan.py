"""`clearformer plan`: the cost of a run before it is trained."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from clearformer.cli.importing import importing
from clearformer.cli.options import AsJson, Config, Settings, named_as_options, show_log
from clearformer.cli.tables import paragraph, table
from clearformer.cli.units import readable_bytes, readable_rate, readable_seconds
from clearformer.errors import count

if TYPE_CHECKING:  # these take time to import, and `--help` needs none of them
    from clearformer.cost.rates import Rate
    from clearformer.training.planning.plan import Plan

MEASURE = "measure"

app = typer.Typer(add_completion=False)


@app.command()
def plan(
    options: typer.Context,
    arguments: Settings = None,
    config: Config = None,
    device: Annotated[
        str,
        typer.Option(
            metavar="NAME|measure",
            help="Estimate the time on a GPU by name, such as a100, or on this machine by a short measurement.",
        ),
    ] = MEASURE,
    as_json: AsJson = False,
) -> None:
    """Show a run's parameters, FLOPs, memory and time, without training."""
    with importing():
        from clearformer.resolving import resolve_settings, split_arguments
        from clearformer.training.planning.run_plan import notes_on, plan_run

    show_log()
    preset, given = split_arguments(arguments or [], config)
    run = resolve_settings(preset, given)
    with named_as_options(options.params):
        planned = plan_run(run, device)
    notes = notes_on(run)
    if preset == "auto" and device != MEASURE:
        notes.append(f"note: auto chose this run for the time that it has here, not on {device}")
    for note in notes:
        typer.echo(note, err=True)
    if as_json:
        typer.echo(json.dumps(asdict(planned)))
    else:
        typer.echo(as_text(planned))


# --- output -----------------------------------------------------------------------------------------------


def as_text(plan: "Plan") -> str:
    """Format a plan as text."""
    return "\n\n".join(
        (component_table(plan), paragraph(formula_line(plan)), memory_table(plan), paragraph(time_line(plan)))
    )


def component_table(plan: "Plan") -> str:
    """Format the parameters and FLOPs of every component as a table."""
    parameters, flops = plan.parameters, plan.flops_per_token
    rows = [
        (name, f"{n:,}", f"{n / parameters.total:.1%}", f"{flops.by_component[name]:,.0f}")
        for name, n in parameters.by_component.items()
    ]
    rows.append(("total", f"{parameters.total:,}", "", f"{flops.forward:,.0f}"))
    return table(("component", "parameters", "share", "FLOPs/token, forward"), rows)


def formula_line(plan: "Plan") -> str:
    """Format the figures from the formulas next to the counted ones."""
    parameters, flops = plan.parameters, plan.flops_per_token
    if parameters.by_formula is None or flops.by_formula is None:
        return "By formula: not known, since a kind is your own; all figures are counted in the model."
    return (
        f"By formula: {count(parameters.by_formula, 'parameter')}, {parameters.matrices:,} without biases and norms; "
        f"{flops.by_formula:,.0f} FLOPs per token, the backward pass as twice the forward pass "
        f"({flops.forward + flops.backward:,.0f} counted)."
    )


def memory_table(plan: "Plan") -> str:
    """Format the bytes of each use of memory, and their peak, as a table."""
    rows = [(name, readable_bytes(n_bytes)) for name, n_bytes in asdict(plan.memory_bytes).items()]
    return table(("memory in training", ""), rows)


def time_line(plan: "Plan") -> str:
    """Format the estimated time with every assumption behind it."""
    if plan.rate is None or plan.seconds is None or plan.seconds_per_step is None:
        return "Time: no estimate, since the device's rate is not known."
    rate = plan.rate
    steps = "an unknown number of steps" if plan.steps is None else count(plan.steps, "step")
    return (
        f"Time (estimate): {readable_seconds(plan.seconds)} of training, {steps} of "
        f"{count(plan.tokens_per_step, 'token')} and {readable_seconds(plan.seconds_per_step)} each, if training "
        f"reaches {rate.utilisation:.0%} of {readable_rate(rate.flops_per_second)} "
        f"({rate.device} in {rate.dtype}, {rate.source}).{of_a_busy_machine(rate)}"
    )


def of_a_busy_machine(rate: "Rate") -> str:
    """Return a warning if other work slowed the machine down while it was measured, otherwise nothing."""
    if not rate.is_uneven:
        return ""
    return (
        f" The machine was busy during the measurement (the median product took {rate.spread:.1f} times as long as "
        "the fastest): the estimate is rough; measure again when it is idle."
    )
