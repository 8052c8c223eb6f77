"""A bar that shows on a terminal how far a command is."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clearformer.data import Progress


@contextmanager
def progress_bar() -> Iterator["Progress"]:
    """Show a progress bar on standard error if it is a terminal, and remove it when the work is done."""
    from rich.console import Console
    from rich.progress import Progress as RichProgress

    with RichProgress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        bar.add_task("")
        [task] = bar.tasks

        def report(doing: str, done: int, total: int | None) -> None:
            if doing != task.description:  # the time left is that of a part, not of what came before
                bar.reset(task.id, description=doing)
            bar.update(task.id, description=doing, completed=done, total=total)

        yield report
