"""The results of training runs as text."""

import shlex

from clearformer.cli.commands_to_type import to_type
from clearformer.cli.views.evaluation import section_lines
from clearformer.resolving import preset_of
from clearformer.runs.folders import name_of
from clearformer.training.loop import TrainResult
from clearformer.training.store.folder import RunFolder


def result_text(result: TrainResult, folder: RunFolder) -> str:
    """Format a run's held-out figures, a sample from its model, and the commands to try next."""
    step = result.progress.step
    report = result.report(shlex.quote(name_of(folder)), preset_of(folder))
    lines = [
        f"\n{folder.path}: {step} step{'s' * (step != 1)} in {result.progress.seconds:.1f} s of training",
        *(line for section in report.figures for line in section_lines(section)),
        "",
        report.sample,
        "",
        "Next:",
        *(f"  {to_type(command)}" for command in report.next_commands),
    ]
    return "\n".join(lines)
