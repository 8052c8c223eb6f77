"""The results of training runs as text."""

import os
import shlex
import shutil
import sys
from pathlib import Path

from clearformer.cli.views.evaluation import section_lines
from clearformer.presets import preset_of
from clearformer.registry import imported_files
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


def to_type(command: str) -> str:
    """Return the line for a terminal that runs a command of this program with the parts that were imported here."""
    imported = "".join(f" --import {shlex.quote(os.path.relpath(file))}" for file in imported_files())
    return f"{program_as_called()} {command}{imported}"


def program_as_called() -> str:
    """Return what a user types to call this program: its name, or its path if the name is not on the PATH."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return "python -m clearformer"
    return called.name if shutil.which(called.name) else str(called)
