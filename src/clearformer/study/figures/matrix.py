"""A matrix as colours."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clearformer.evaluation.figures import letters
from clearformer.study.figures.base import Drawn
from clearformer.study.figures.drawing import (
    AXIS_INCHES,
    EDGE,
    MUTED,
    TICK_POINTS,
    TITLE_INCHES,
    WIDTH,
    head,
    label_x,
    panel,
    plain_axes,
    seen,
    widest,
)
from clearformer.study.outcomes import Outcome
from clearformer.study.words import decimals_of, number

ON_DARK, ON_LIGHT, BETWEEN = (
    "#fefefe",
    "#10161d",
    "#e4e8ee",
)  # not colours of the style, which turn dark with the page: cells keep theirs
MOST_CELLS_WRITTEN = 14
MOST_CELLS_DRAWN = 40  # per side, as one shape each; a larger matrix is an image


@dataclass(frozen=True)
class Matrix(Drawn):
    """A matrix of one arm's first seed as colours, such as attention weights, a mask or a weight matrix.

    Attributes:
        title: The title above the figure.
        value: The name of the measured value: rows of numbers; or of True and False for a mask, without a scale.
        arm: The label of the arm.
        row_label: The label of the rows.
        column_label: The label of the columns.
        labels: The names of rows and columns: a tuple of names, or the name of a measured value that lists them or maps
            `rows` and `columns` to lists.
    """

    title: str
    value: str
    arm: str
    row_label: str = ""
    column_label: str = ""
    labels: str | tuple[str, ...] | None = None

    def cells(self, outcome: Outcome) -> list[list[float]]:
        """Return the numbers, row by row; empty if they were not measured."""
        return [[float(x or 0) for x in row] for row in outcome.first(self.arm, self.value) or []]

    def is_mask(self, outcome: Outcome) -> bool:
        """Whether all cells are True or False."""
        return all(isinstance(x, bool) for row in outcome.first(self.arm, self.value) or [] for x in row)

    def names(self, outcome: Outcome) -> tuple[list[str], list[str]]:
        """Return the names of the rows and of the columns."""
        found = outcome.first(self.arm, self.labels) if isinstance(self.labels, str) else self.labels
        if isinstance(found, Mapping):
            return [seen(name) for name in found["rows"]], [seen(name) for name in found["columns"]]
        both = [seen(name) for name in found or ()]
        return both, both

    def inches(self, outcome: Outcome) -> tuple[float, float]:
        cells = self.cells(outcome)
        n_rows, n_columns = len(cells) or 1, len(cells[0]) if cells else 1
        side = self._side(n_rows, n_columns)
        return WIDTH, TITLE_INCHES + self._below(outcome, side) + side * n_rows

    def _side(self, n_rows: int, n_columns: int) -> float:
        """Return the side of a cell, in inches."""
        return min(0.42, 5.6 / n_columns, 5.2 / n_rows)

    def _below(self, outcome: Outcome, side: float) -> float:
        """Return the space below the cells for the names of the columns, in inches."""
        _, names = self.names(outcome)
        return AXIS_INCHES + (widest(names, TICK_POINTS) - 0.1 if are_turned(names, side) else 0.0)

    def note(self, outcome: Outcome) -> str:
        return "First seed only." if len(outcome.value(self.arm, self.value)) > 1 else ""

    def summary(self, outcome: Outcome) -> str:
        cells = self.cells(outcome)
        if not cells:
            return ""
        flat = [x for row in cells for x in row]
        size = f"{len(cells)} rows and {len(cells[0])} columns"
        return f"{size}, from {number(min(flat))} to {number(max(flat))}."

    def draw(self, canvas: Any, outcome: Outcome) -> None:
        cells = self.cells(outcome)
        head(canvas, self.title, self.row_label and f"rows: {self.row_label}")
        if not cells:
            return
        row_names, column_names = self.names(outcome)
        width, _ = canvas.get_size_inches()
        left = EDGE + max(widest(row_names, TICK_POINTS), 0.3) + 0.16
        side = self._side(len(cells), len(cells[0]))
        axes = panel(canvas, left, width - left - side * len(cells[0]), bottom=self._below(outcome, side))
        image = _draw_cells(axes, cells, side, is_written=not self.is_mask(outcome))
        plain_axes(axes, grid="x")
        axes.grid(visible=False)
        axes.spines["bottom"].set_visible(False)
        axes.tick_params(axis="x", length=0)
        _name_cells(axes, row_names, column_names, side)
        label_x(axes, self.column_label and f"columns: {self.column_label}")
        if not self.is_mask(outcome):
            self._key(canvas, axes, image)

    def _key(self, canvas: Any, axes: Any, image: Any) -> None:
        """Draw the colour scale at the right."""
        width, height = canvas.get_size_inches()
        box = axes.get_position()
        high = min(1.6 / height, box.height)
        place = canvas.add_axes((box.x1 + 0.25 / width, box.y1 - high, 0.14 / width, high))
        bar = canvas.colorbar(image, cax=place)
        bar.outline.set_visible(False)
        bar.ax.tick_params(length=0, labelsize=TICK_POINTS, labelcolor=MUTED)


def _draw_cells(axes: Any, cells: list[list[float]], side: float, is_written: bool) -> Any:
    low, high = min(map(min, cells)), max(map(max, cells))
    size = max(abs(low), abs(high)) or 1.0
    shades, least = ("PuOr_r", -size) if low < 0 else ("Blues", 0.0)
    if max(len(cells), len(cells[0])) > MOST_CELLS_DRAWN:
        return axes.imshow(cells, cmap=shades, vmin=least, vmax=size, aspect="auto", interpolation="nearest")
    image = axes.pcolormesh(
        [i - 0.5 for i in range(len(cells[0]) + 1)],
        [i - 0.5 for i in range(len(cells) + 1)],
        cells,
        cmap=shades,
        vmin=least,
        vmax=size,
        edgecolors=BETWEEN,
        linewidth=0.5,
    )
    axes.invert_yaxis()
    if is_written and len(cells[0]) <= MOST_CELLS_WRITTEN and side >= 0.36:
        _write_cells(axes, cells, size)
    return image


def _write_cells(axes: Any, cells: list[list[float]], size: float) -> None:
    decimals = max(2, decimals_of(size, 2))
    for i, row in enumerate(cells):
        for j, value in enumerate(row):
            if abs(value) >= 0.005 * size:
                shade = ON_DARK if abs(value) > 0.6 * size else ON_LIGHT
                text = re.sub(r"^(-?)0\.", r"\1.", f"{value:.{decimals}f}")
                axes.text(j, i, text, ha="center", va="center", fontsize=7, color=shade)


def _name_cells(axes: Any, rows: list[str], columns: list[str], side: float) -> None:
    size = min(TICK_POINTS, 72 * side)
    for names, ticks in ((rows, axes.set_yticks), (columns, axes.set_xticks)):
        if names:
            ticks(range(len(names)), [letters(name) for name in names], fontsize=size)
    if are_turned(columns, side):
        axes.tick_params(axis="x", labelrotation=90)


def are_turned(names: list[str], side: float) -> bool:
    """Whether the columns' names are rotated, because they are wider than the cells."""
    return widest(names, min(TICK_POINTS, 72 * side)) > 0.9 * side
