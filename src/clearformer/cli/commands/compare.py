"""`clearformer compare`: several runs side by side."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from clearformer.cli.importing import importing
from clearformer.cli.options import AsJson, check_not_empty
from clearformer.cli.tables import paragraph, table

if TYPE_CHECKING:
    from clearformer.study.everyday.comparison import Comparison, Difference, Group

Runs = Annotated[list[str], typer.Argument(metavar="RUN...", help="Names or folders of runs.")]

app = typer.Typer(add_completion=False)


@app.command()
def compare(runs: Runs, as_json: AsJson = False) -> None:
    """Compare runs: settings, parameters, losses, paired differences.

    Shows the settings that differ, and losses with intervals. Runs that differ only in their seed form one group;
    differences between groups are paired by seed.
    """
    with importing():
        from clearformer.study.everyday import comparison

    check_not_empty("RUN", runs)
    found = comparison.compare(*runs)
    typer.echo(json.dumps(found.to_dict()) if as_json else as_text(found))


def as_text(found: "Comparison") -> str:
    """Format a comparison as text."""
    from clearformer.study.everyday.sweep import short_names

    short = list(short_names(dict.fromkeys(found.differ)).values())
    heads = ("run", *short, "seeds", "steps", "parameters", "training loss", "held-out loss")
    parts = [paragraph(caveat) for caveat in found.caveats]  # first: they say what the numbers are worth
    parts.append(table(heads, [row(group, found.differ) for group in found.groups], n_left=1 + len(short)))
    if any(not _is_final(group) for group in found.groups):
        parts.append("~ of runs that are not finished, which may be measured on a part of the held-out data.")
    if found.differences:
        parts.append("\n".join(map(line, found.differences)))
    return "\n\n".join(parts)


def row(group: "Group", differ: list[str]) -> tuple[str, ...]:
    """Format a group as a row of the table."""
    from clearformer.cli.views.study import interval
    from clearformer.study.everyday.sweep import written

    steps = sorted({run.step for run in group.runs})
    name = group.name if len(group.runs) == 1 else f"{group.name} and {len(group.runs) - 1} more"
    part = "" if _is_final(group) else "~"
    return (
        name,
        *("-" if group.settings[key] is None else written(group.settings[key]) for key in differ),
        ", ".join(str(run.seed) for run in group.runs),
        " to ".join(f"{step:,}" for step in (steps[0], steps[-1])[: len(steps)]),
        f"{group.parameters:,}",
        part + interval(group.train_loss),
        part + interval(group.val_loss),
    )


def _is_final(group: "Group") -> bool:
    """Whether a group's losses are of finished runs, on all of the held-out data if there are any."""
    from clearformer.study.everyday.comparison import counted

    return all(run.is_finished and (run.is_whole or run.val_loss is None) for run in counted(group.runs))


def line(difference: "Difference") -> str:
    """Format a difference as a sentence."""
    value = {"train_loss": "training loss", "val_loss": "held-out loss"}[difference.value]
    found = difference.difference
    head = f"{value}, {difference.group} minus {difference.less}: {found.mean:+.4g}"
    if found.low is None or found.high is None:
        return paragraph(f"{head} (one seed: no interval)")
    holds_zero = ", which contains zero" if found.low <= 0 <= found.high else ""
    bounds = f"{found.low:+.4g} to {found.high:+.4g}"
    return paragraph(f"{head}, 95% interval {bounds} over {found.n} seeds{holds_zero}")
