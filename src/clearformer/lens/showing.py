"""How results of the lens are displayed: a table in a notebook or terminal, a figure in a file, an interactive view."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from html import escape
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from clearformer.decoding.text.samples import Run
from clearformer.errors import UserError, shown
from clearformer.evaluation.figures import letters, saved_figure
from clearformer.files import user_path
from clearformer.late import made_above
from clearformer.results import Result

MOST_ROWS = 40  # in a notebook's table
CELL = "padding:1px 8px;text-align:{}"
LEAST_SHOWN = 0.005  # of a weight, which is written with two digits
MOST_INCHES = 22.0
LABEL_POINTS = 8
AMOUNT, FIRST, EITHER = "amount", "first", "either"
"""Metadata of fields that say how `lens.difference` treats them: AMOUNT, subtract a whole number; FIRST, keep the value
of the first result; EITHER, a list whose parts may be missing from one of the two."""

_changing: ContextVar[bool] = ContextVar("changing", default=False)


class Table(NamedTuple):
    """Rows and their headings; the first `n_left` columns hold words, the others numbers."""

    heads: list[str]
    rows: list[list[str]]
    n_left: int = 1


class Shown(Result, ABC):
    """Base class of the lens' results: each is a value, a table and a figure."""

    @abstractmethod
    def caption(self) -> str:
        """Return one line that says what is shown."""

    @abstractmethod
    def table(self) -> Table:
        """Return the content as a table."""

    def table_of_changes(self) -> Table:
        """Return the content as a table of differences."""
        with changing():
            return self.table()

    def notes(self) -> list[str]:
        """Return lines to print with the table, such as the error of a sum."""
        return []

    @abstractmethod
    def draw(self, figure: Any) -> None:
        """Draw the result on a matplotlib figure."""

    @abstractmethod
    def inches(self) -> tuple[float, float]:
        """Return the figure's width and height."""

    def figure(self, path: str | PathLike[str]) -> Path:
        """Write the result as a `.png`, `.svg` or `.pdf` picture; return its path.

        Raises:
            MissingPackageError: matplotlib is not installed.
            UserError: the path has another ending.
            DiskError: the file cannot be written.
        """
        if not isinstance(path, str | PathLike):
            raise UserError(f"a figure is written to a path, such as 'ledger.png'; got {shown(path)}")
        target = user_path(Path(path))
        width, height = self.inches()
        with saved_figure(target, min(width, MOST_INCHES), min(height, MOST_INCHES)) as canvas:
            self.draw(canvas)
        return target

    def _repr_html_(self) -> str:
        """Return the table as HTML for a notebook."""
        table = self.table()
        head = "".join(_cell("th", name, i < table.n_left) for i, name in enumerate(table.heads))
        rows = (
            "".join(_cell("td", cell, i < table.n_left) for i, cell in enumerate(row))
            for row in table.rows[:MOST_ROWS]
        )
        more = len(table.rows) - MOST_ROWS
        notes = [f"... and {more:,} more rows"] * (more > 0) + self.notes()
        return (
            f"<p>{escape(self.caption())}</p><table><tr>{head}</tr>"
            + "".join(f"<tr>{row}</tr>" for row in rows)
            + f"</table>{''.join(f'<p>{escape(note)}</p>' for note in notes)}"
        )


def _cell(tag: str, content: str, left: bool) -> str:
    return f"<{tag} style='{CELL.format('left' if left else 'right')}'>{escape(content)}</{tag}>"


def show(
    run: Run | str | Path,
    text: str | None = None,
    view: str = "attention",
    *,
    checkpoint: str | int = "latest",
    device: str = "auto",
    **selected: Any,
) -> Any:
    """Show a view of a run in a notebook (Jupyter, VS Code, Colab, marimo), as on the page.

        seen = cf.lens.show(run, "To be or not", "ledger", position=3, foil=" a")
        seen.select(position=5)
        seen.found.logit

    Interaction with the view is computed here, in the kernel.

    Args:
        run: A run, or its name.
        text: What to read; by default the beginning of the run's held-out text.
        view: A view of the page, such as `overview`, `tokens`, `block`, `attention`, `ledger`, `score`, `lens`,
            `sampling`, `interventions` or `learned`.
        checkpoint: `latest`, `best` or a step, if the run is given by its name.
        device: The device of a model that is opened by name.
        **selected: Other fields of the page's selection, such as `position`, `layer`, `head`, `target` and `foil`;
            `versus`, another run or its name, shows the view as a difference.

    Returns:
        An `anywidget.AnyWidget`: `found` is the lens result of the current `selection`; `select` changes it.

    Raises:
        UserError: there is no such view of the run, a field of the selection is unknown, or one that the view uses is
            out of range.
        RunError: there is no such run.
        MissingPackageError: anywidget is not installed.
    """
    return made_above("lens.show")(run, text, view, checkpoint=checkpoint, device=device, **selected)


def visible(label: str) -> str:
    """Return a token's label with visible spaces."""
    return label.replace(" ", "␣")


def quoted(label: str) -> str:
    """Return a token's label quoted for a sentence."""
    return f"'{visible(label)}'"


def place_name(token: str, position: int) -> str:
    """Return the place of a prediction in words: that of a token, or the text as a whole, which has none."""
    return f"at {quoted(token)} (position {position})" if token else "of the text"


def logit_name(target: str, foil: str | None) -> str:
    """Return the name of a logit, or of the difference of two."""
    wanted = f"the logit of {quoted(target)}"
    return wanted if foil is None else f"{wanted} minus that of {quoted(foil)}"


def number(value: float) -> str:
    """Format a signed number for a table."""
    return f"{value:+.4f}" if abs(value) >= 1e-4 or value == 0 else f"{value:+.1e}"


@contextmanager
def changing() -> Iterator[None]:
    """Mark the numbers formatted or drawn in this block as differences, so that amounts are shown with their signs."""
    before = _changing.set(True)
    try:
        yield
    finally:
        _changing.reset(before)


def is_changing() -> bool:
    """Whether what is formatted or drawn now is a difference, whose amounts may be below zero."""
    return _changing.get()


def amount(value: float, digits: int) -> str:
    """Format an amount for a table; differences get a sign."""
    if np.isnan(value):
        return "unknown"
    return f"{value:{'+' if _changing.get() else ''}.{digits}f}"


def is_shown(value: float) -> bool:
    """Whether a weight is large enough to mention; for a difference, in absolute value."""
    return (abs(value) if _changing.get() else value) >= LEAST_SHOWN


# --- what figures are made of -----------------------------------------------------------------------------


def heat_map(
    axes: Any,
    values: Any,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    signed: bool = False,
    limits: tuple[float, float] | None = None,
) -> Any:
    """Draw a matrix as colours, from 0 up or, if signed, on both sides of 0; return the image."""
    matrix = np.asarray(values, dtype=float)
    if _changing.get():
        signed, limits = True, None
    known = np.abs(matrix[np.isfinite(matrix)])
    largest = float(known.max(initial=0)) or 1.0
    low, high = limits or ((-largest, largest) if signed else (0.0, largest))
    image = axes.imshow(matrix, cmap="RdBu" if signed else "Blues", vmin=low, vmax=high, aspect="auto")
    name_ticks(axes, rows, columns)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return image


def name_ticks(axes: Any, rows: Sequence[str], columns: Sequence[str]) -> None:
    """Label the rows and columns of a matrix; with more than 120, only every second, third, ..."""
    every_row, every_column = (-(-len(names) // 120) or 1 for names in (rows, columns))
    axes.set_yticks(
        range(0, len(rows), every_row),
        [letters(visible(name)) for name in rows[::every_row]],
        fontsize=LABEL_POINTS,
    )
    axes.set_xticks(
        range(0, len(columns), every_column),
        [letters(visible(name)) for name in columns[::every_column]],
        fontsize=LABEL_POINTS,
        rotation=90 if max(map(len, columns), default=0) > 2 else 0,
    )


def bars(axes: Any, names: Sequence[str], values: Sequence[float]) -> None:
    """Draw numbers as horizontal bars from the top down: blue if positive, red if negative."""
    colours = ["#2f6f9f" if value >= 0 else "#b5483a" for value in values]
    axes.barh(range(len(values)), values, color=colours, height=0.72)
    axes.set_yticks(range(len(names)), list(map(letters, names)), fontsize=LABEL_POINTS)
    axes.set_ylim(len(values) - 0.4, -0.6)
    axes.axvline(0, color="#1f2a38", linewidth=0.8)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
