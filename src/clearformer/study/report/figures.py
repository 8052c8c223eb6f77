"""The usual figures of a study, each a frozen dataclass: what is drawn, of which arms.

    figures=(Curves("Loss on the way"), Bars("Loss at the end", "train_loss"))

Each draws what is there: arms that were not measured are left out. Lines and dots are means over seeds. `note` says how
to read the figure, `summary` what it shows, in words, for those who cannot see it.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from clearformer.evaluation.figures import letters
from clearformer.study.outcomes import Estimate, Outcome
from clearformer.study.report.drawing import (
    AXIS_INCHES,
    EDGE,
    GRID,
    INK,
    LABEL_POINTS,
    LINE_INCHES,
    MUTED,
    PAPER,
    TICK_POINTS,
    TITLE_INCHES,
    WIDTH,
    EndLabel,
    colour,
    end_labels,
    head,
    label_x,
    number_ticks,
    panel,
    plain_axes,
    room_for,
    seen,
    text_inches,
    widest,
    wrapped,
)
from clearformer.study.report.words import as_written, estimate_text, named, number
from clearformer.study.running import is_number

Row = Sequence[float]
COLUMNS = {"step": 0, "tokens": 1, "seconds": 2}
TRAINING, HELD_OUT = 3, 4
X_NAMES = {"step": "training step", "tokens": "tokens read", "seconds": "seconds of training"}
LEFT_INCHES = 0.62
START = (
    0.02  # of a curve, left out of the choice of the vertical range: a first loss may be 100 times the last
)
MOST_CELLS_WRITTEN = 14
MOST_CELLS_DRAWN = 40  # to a side, one shape each; of more, one picture


class Drawn:
    """The base of the figures: the arms that they show."""

    title: str
    arms: tuple[str, ...] | None = None

    def labels(self, outcome: Outcome) -> list[str]:
        """The measured arms that are shown: the study's, or those that the figure names."""
        there = outcome.labels
        return there if self.arms is None else [label for label in self.arms if label in there]

    def note(self, outcome: Outcome) -> str:
        """How to read it, in one or two sentences."""
        return ""

    def summary(self, outcome: Outcome) -> str:
        """What it shows, in words."""
        return ""


def seeds_note(outcome: Outcome) -> str:
    """Of how many seeds means are taken."""
    n = outcome.most_seeds
    return "One seed." if n == 1 else f"Means of up to {n} seeds."


@dataclass(frozen=True)
class Point:
    """A point of a curve over seeds."""

    x: float
    mean: float
    low: float
    high: float


def curve_points(curves: Sequence[Sequence[Sequence[float | None]]], x: int, y: int) -> list[Point]:
    """Mean, smallest and largest over seeds of one column of curves, at the steps that all have."""
    by_step = [{row[0]: row for row in rows if row[y] is not None} for rows in curves if rows]
    if not by_step:
        return []
    points = []
    for step in sorted(set.intersection(*(set(rows) for rows in by_step))):  # type: ignore[type-var]
        at = [rows[step] for rows in by_step]
        values = [float(row[y]) for row in at]  # type: ignore[arg-type]
        points.append(
            Point(
                statistics.fmean(float(row[x]) for row in at),  # type: ignore[arg-type]
                statistics.fmean(values),
                min(values),
                max(values),
            )
        )
    return points


@dataclass(frozen=True)
class Curves(Drawn):
    """Training and held-out loss on the way, from the value `curve`: lines of means, bands from the least to the most.

    Attributes:
        title: Stands above.
        y: Of the rows, the loss is drawn; the name says which value's unit is written.
        x: Over steps, tokens or seconds.
        arms: Labels of those that are shown; None for all.
        log_x: Whether the horizontal axis is logarithmic.
    """

    title: str
    y: str = "loss"
    x: Literal["step", "tokens", "seconds"] = "step"
    arms: tuple[str, ...] | None = None
    log_x: bool = False

    def inches(self, outcome: Outcome) -> tuple[float, float]:
        n = 2 * len(self.labels(outcome))
        return WIDTH, max(4.2, TITLE_INCHES + AXIS_INCHES + (n + 1) * LINE_INCHES)

    def note(self, outcome: Outcome) -> str:
        band = "" if outcome.most_seeds < 2 else " Bands: from the lowest seed to the highest."
        return f"Solid: training. Dashed: held-out. {seeds_note(outcome)}{band}"

    def summary(self, outcome: Outcome) -> str:
        return " ".join(
            f"{label} ends at {', '.join(f'{kind} {number(points[-1].mean, 2)}' for kind, points in lines)}."
            for label, lines in self.lines(outcome).items()
        )

    def lines(self, outcome: Outcome) -> dict[str, list[tuple[str, list[Point]]]]:
        """Of every arm its training curve and its held-out curve, as far as they were measured."""
        found = {}
        for label in self.labels(outcome):
            curves = outcome.value(label, "curve")
            kinds = (("training", TRAINING), ("held-out", HELD_OUT))
            lines = [(kind, curve_points(curves, COLUMNS[self.x], column)) for kind, column in kinds]
            found[label] = [(kind, points) for kind, points in lines if points]
        return {label: lines for label, lines in found.items() if lines}

    def draw(self, canvas: Any, outcome: Outcome) -> None:
        lines = self.lines(outcome)
        head(canvas, self.title, named(self.y))
        texts = {
            (label, kind): _end_text(label, kind, points[-1])
            for label, pairs in lines.items()
            for kind, points in pairs
        }
        axes = panel(canvas, LEFT_INCHES, room_for(list(texts.values())))
        plain_axes(axes)
        label_x(axes, X_NAMES[self.x])
        ends = []
        for i, (label, pairs) in enumerate(lines.items()):
            for kind, points in pairs:
                _draw_curve(axes, points, colour(i), is_dashed=kind == "held-out")
                ends.append(EndLabel(texts[label, kind], points[-1].x, points[-1].mean, colour(i)))
        drawn = [points for pairs in lines.values() for _, points in pairs]
        _set_ranges(axes, drawn, self.log_x)
        end_labels(axes, ends)


def _end_text(label: str, kind: str, last: Point) -> str:
    return f"{label}{'' if kind == 'training' else ', held-out'}  {number(last.mean, 2)}"


def _draw_curve(axes: Any, points: list[Point], shade: str, is_dashed: bool) -> None:
    x = [point.x for point in points]
    if any(point.low < point.high for point in points):
        axes.fill_between(
            x, [p.low for p in points], [p.high for p in points], color=shade, alpha=0.18, linewidth=0
        )
    style: Any = (0, (4, 1.6)) if is_dashed else "solid"
    marker = "o" if len(points) == 1 else None
    axes.plot(x, [p.mean for p in points], color=shade, linewidth=1.6, linestyle=style, marker=marker)


def _set_ranges(axes: Any, curves: list[list[Point]], log_x: bool) -> None:
    """Ranges of both axes; the first losses, which may be far above all others, do not count."""
    if not curves:
        return
    first, last = min(c[0].x for c in curves), max(c[-1].x for c in curves)
    since = first + START * (last - first)
    settled = [p for points in curves for p in points if p.x >= since]
    low, high = min(p.low for p in settled), max(p.high for p in settled)
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    axes.set_ylim(low - margin, high + margin)
    if log_x:
        axes.set_xscale("log")
        axes.set_xlim(first, last)
    else:
        axes.set_xlim(0 if first < 0.1 * last else first, last if last > first else first + 1)
        number_ticks(axes.xaxis)


@dataclass(frozen=True)
class Bars(Drawn):
    """One number of every arm: the mean as a dot, its 95% interval as a line, the seeds as small dots.

    A number of the lecture is a tick across, with its value. The axis need not begin at zero.

    Attributes:
        title: Stands above.
        value: The name of the measured number.
        arms: Labels of those that are shown; None for all.
        unit: Of the number, where its name does not say it.
        baseline: A number to compare with, or several by their names: lines across the whole figure.
        log_x: Whether the axis is logarithmic.
    """

    title: str
    value: str
    arms: tuple[str, ...] | None = None
    unit: str = ""
    baseline: float | Mapping[str, float] | None = None
    log_x: bool = False

    def rows(self, outcome: Outcome) -> list[tuple[str, Estimate]]:
        """The arms that have the number, and it."""
        found = ((label, outcome.estimate(label, self.value)) for label in self.labels(outcome))
        return [(label, estimate) for label, estimate in found if estimate is not None]

    def inches(self, outcome: Outcome) -> tuple[float, float]:
        lines = sum(max(2, wrapped(label).count("\n") + 1) for label, _ in self.rows(outcome))
        return WIDTH, TITLE_INCHES + AXIS_INCHES + 0.2 * max(lines, 2) + 0.1

    def note(self, outcome: Outcome) -> str:
        parts = ["Dot: mean over seeds. Line: its 95% interval. Small dots: the seeds."]
        if outcome.most_seeds == 1:
            parts = ["One seed: no interval."]
        if self._published(outcome):
            parts.append("Tick: the lecture's number.")
        return " ".join(parts)

    def summary(self, outcome: Outcome) -> str:
        return " ".join(f"{label}: {estimate_text(estimate)}." for label, estimate in self.rows(outcome))

    def _published(self, outcome: Outcome) -> dict[str, float]:
        shown = {label for label, _ in self.rows(outcome)}
        return {
            each.arm: each.published
            for each in outcome.study.published
            if each.value == self.value and each.arm in shown
        }

    def _baselines(self) -> Mapping[str, float]:
        if self.baseline is None:
            return {}
        return self.baseline if isinstance(self.baseline, Mapping) else {"baseline": self.baseline}

    def draw(self, canvas: Any, outcome: Outcome) -> None:
        rows, published = self.rows(outcome), self._published(outcome)
        head(canvas, self.title)
        names = [wrapped(label) for label, _ in rows]
        values = [estimate_text(estimate) for _, estimate in rows]
        left = EDGE + widest(names) + 0.16
        axes = panel(canvas, left, room_for(values))
        plain_axes(axes, grid="x")
        label_x(axes, named(self.value, self.unit))
        if self.log_x:
            axes.set_xscale("log")
        places = list(range(len(rows)))
        for place, (label, estimate) in zip(places, rows, strict=True):
            _draw_estimate(axes, place, estimate)
            if label in published:
                _draw_published(axes, place, published[label])
        axes.set_yticks(places, [letters(name) for name in names], color=INK, fontsize=LABEL_POINTS)
        axes.set_ylim(len(rows) - 0.4, -1 if self.baseline is not None else -0.7)
        axes.margins(x=0.06)
        for name, at in self._baselines().items():
            _draw_baseline(axes, name, at)
        if not self.log_x:
            number_ticks(axes.xaxis)
        _values_at_right(axes, places, values)


def _draw_estimate(axes: Any, place: float, estimate: Estimate) -> None:
    if estimate.n > 1:
        axes.plot(
            estimate.values,
            [place] * estimate.n,
            "o",
            color=colour(0),
            alpha=0.4,
            markersize=3.2,
            markeredgewidth=0,
        )
    if estimate.low is not None and estimate.high is not None:
        axes.plot([estimate.low, estimate.high], [place, place], color=colour(0), linewidth=1.8)
    axes.plot(
        estimate.mean, place, "o", color=colour(0), markersize=6.5, markeredgecolor=PAPER, markeredgewidth=0.8
    )


def _draw_published(axes: Any, place: float, at: float) -> None:
    axes.plot([at, at], [place - 0.3, place + 0.3], color=colour(1), linewidth=2)
    axes.annotate(
        f"lecture {as_written(at)}",
        (at, place - 0.3),
        xytext=(0, 1),
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=7.5,
        color=MUTED,
    )


def _draw_baseline(axes: Any, name: str, at: float) -> None:
    axes.axvline(at, color=MUTED, linewidth=1, linestyle=(0, (2, 2)))
    axes.annotate(
        letters(f"{name}: {number(at)}"),
        (at, 1),
        xycoords=("data", "axes fraction"),
        xytext=(0, 3),
        textcoords="offset points",
        ha="center",
        fontsize=7.5,
        color=MUTED,
    )


def _values_at_right(axes: Any, places: Sequence[float], values: Sequence[str]) -> None:
    for place, value in zip(places, values, strict=True):
        axes.annotate(
            value,
            (1, place),
            xycoords=("axes fraction", "data"),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            fontsize=LABEL_POINTS,
            color=INK,
        )


@dataclass(frozen=True)
class Lines(Drawn):
    """A value that is rows [x, y], or such rows by name, of every arm: lines of means over seeds.

    Attributes:
        title: Stands above.
        value: The name of the measured value.
        x: The name of what is at x, for words; `x_label` is written.
        x_label: With its unit.
        y_label: With its unit.
        series: Of rows by name, the names that are shown; None for all.
        log_x: Whether the horizontal axis is logarithmic.
        log_y: Whether the vertical axis is.
        ideal: What theory says: a number, a function of x, or rows; a dotted line.
        ideal_label: Its label.
        arms: Labels of those that are shown; None for all.
    """

    title: str
    value: str
    x: str = ""
    x_label: str = ""
    y_label: str = ""
    series: tuple[str, ...] | None = None
    log_x: bool = False
    log_y: bool = False
    ideal: float | Callable[[float], float] | Sequence[Row] | None = None
    ideal_label: str = "theory"
    arms: tuple[str, ...] | None = None

    def inches(self, outcome: Outcome) -> tuple[float, float]:
        n = len(self.lines(outcome)) + (self.ideal is not None)
        return WIDTH, max(4.0, TITLE_INCHES + AXIS_INCHES + (n + 1) * LINE_INCHES)

    def note(self, outcome: Outcome) -> str:
        band = "" if outcome.most_seeds < 2 else " Bands: from the lowest seed to the highest."
        return f"{seeds_note(outcome)}{band}"

    def summary(self, outcome: Outcome) -> str:
        return " ".join(
            f"{label}: from {number(points[0].mean)} at {number(points[0].x)} "
            f"to {number(points[-1].mean)} at {number(points[-1].x)}."
            for label, points in self.lines(outcome).items()
        )

    def lines(self, outcome: Outcome) -> dict[str, list[Point]]:
        """The lines by their labels."""
        labels = self.labels(outcome)
        found: dict[str, list[Point]] = {}
        for label in labels:
            for name, curves in self._rows(outcome.value(label, self.value)).items():
                known = ", ".join(
                    part for part in (label if len(labels) > 1 or not name else "", name) if part
                )
                found[known] = curve_points(curves, 0, 1)
        return {label: points for label, points in found.items() if points}

    def _rows(self, by_seed: list[Any]) -> dict[str, list[Any]]:
        """Rows of every seed, by the name of the series; of a single series the name is empty."""
        if not by_seed or not isinstance(by_seed[0], Mapping):
            return {"": by_seed}
        names = self.series if self.series is not None else tuple(by_seed[0])
        return {name: [rows[name] for rows in by_seed if name in rows] for name in names}

    def draw(self, canvas: Any, outcome: Outcome) -> None:
        lines = self.lines(outcome)
        head(canvas, self.title, self.y_label or named(self.value))
        ideal = self.ideal_points(lines)
        axes = panel(canvas, LEFT_INCHES, room_for([*lines, *([self.ideal_label] if ideal else [])]))
        plain_axes(axes)
        label_x(axes, self.x_label or self.x)
        for i, points in enumerate(lines.values()):
            _draw_line(axes, points, colour(i))
        if ideal:
            axes.plot(*zip(*ideal, strict=True), color=MUTED, linewidth=1.2, linestyle=(0, (1.5, 1.8)))
        _set_scales(axes, self.log_x, self.log_y)
        ends = [
            EndLabel(name, pts[-1].x, pts[-1].mean, colour(i)) for i, (name, pts) in enumerate(lines.items())
        ]
        if ideal:
            ends.append(EndLabel(self.ideal_label, *ideal[-1], MUTED))
        end_labels(axes, ends)

    def ideal_points(self, lines: Mapping[str, list[Point]]) -> list[tuple[float, float]]:
        """The points of what theory says, at every x of the lines."""
        places = sorted({point.x for points in lines.values() for point in points})
        if self.ideal is None or not places:
            return []
        if isinstance(self.ideal, Sequence):
            return [(row[0], row[1]) for row in self.ideal]
        if callable(self.ideal):
            return [(x, self.ideal(x)) for x in places]
        return [(x, self.ideal) for x in (places[0], places[-1])]


def _draw_line(axes: Any, points: list[Point], shade: str) -> None:
    x = [point.x for point in points]
    if any(point.low < point.high for point in points):
        axes.fill_between(
            x, [p.low for p in points], [p.high for p in points], color=shade, alpha=0.18, linewidth=0
        )
    marker = "o" if len(points) <= 16 else None
    axes.plot(
        x,
        [p.mean for p in points],
        color=shade,
        linewidth=1.6,
        marker=marker,
        markersize=4.5,
        markeredgecolor=PAPER,
    )


def _set_scales(axes: Any, log_x: bool, log_y: bool) -> None:
    from matplotlib.ticker import FuncFormatter

    for is_log, axis, set_scale in (
        (log_x, axes.xaxis, axes.set_xscale),
        (log_y, axes.yaxis, axes.set_yscale),
    ):
        if is_log:
            set_scale("log", base=2 if axis is axes.xaxis and _doubles(axes) else 10)
            axis.set_major_formatter(FuncFormatter(lambda value, _: number(float(f"{value:.6g}"))))
            axis.set_minor_formatter("")
        else:
            number_ticks(axis)


def _doubles(axes: Any) -> bool:
    """Whether all points stand at powers of two."""
    places = {float(x) for line in axes.get_lines() for x in line.get_xdata()}
    return bool(places) and all(x > 0 and math.log2(x).is_integer() for x in places)


@dataclass(frozen=True)
class Trend(Drawn):
    """One number of every arm against a number that the arm has: depth, width, context; a line for each group.

    Attributes:
        title: Stands above.
        value: The name of the measured number.
        at: Of an arm's label, where it stands.
        x_label: With its unit.
        groups: Of an arm's label, the name of its line; all are one line, where empty.
        y_label: With its unit; the value's own name, where empty.
        log_x: Whether the horizontal axis is logarithmic.
        log_y: Whether the vertical axis is.
    """

    title: str
    value: str
    at: Mapping[str, float]
    x_label: str
    groups: Mapping[str, str] = field(default_factory=dict)
    y_label: str = ""
    log_x: bool = False
    log_y: bool = False

    def inches(self, outcome: Outcome) -> tuple[float, float]:
        return WIDTH, 4.0

    def note(self, outcome: Outcome) -> str:
        if outcome.most_seeds == 1:
            return "One seed: no interval."
        return "Dot: mean over seeds. Line up and down: its 95% interval."

    def summary(self, outcome: Outcome) -> str:
        return " ".join(
            f"{group + ', ' if group else ''}{self.x_label} {number(x)}: {estimate_text(estimate)}."
            for group, points in self.lines(outcome).items()
            for x, estimate in points
        )

    def lines(self, outcome: Outcome) -> dict[str, list[tuple[float, Estimate]]]:
        """The points of every group, by x."""
        found: dict[str, list[tuple[float, Estimate]]] = {}
        for label in outcome.labels:
            estimate = outcome.estimate(label, self.value)
            if label in self.at and estimate is not None:
                found.setdefault(self.groups.get(label, ""), []).append((self.at[label], estimate))
        return {group: sorted(points, key=lambda point: point[0]) for group, points in found.items()}

    def draw(self, canvas: Any, outcome: Outcome) -> None:
        lines = self.lines(outcome)
        head(canvas, self.title, self.y_label or named(self.value))
        axes = panel(canvas, LEFT_INCHES, room_for(list(lines)))
        plain_axes(axes)
        label_x(axes, self.x_label)
        for i, points in enumerate(lines.values()):
            _draw_trend(axes, points, colour(i))
        _set_scales(axes, self.log_x, self.log_y)
        if self.at and not self.log_x and len(set(self.at.values())) <= 8:
            axes.set_xticks(sorted(set(self.at.values())))
        end_labels(
            axes,
            [
                EndLabel(group, pts[-1][0], pts[-1][1].mean, colour(i))
                for i, (group, pts) in enumerate(lines.items())
                if group
            ],
        )


def _draw_trend(axes: Any, points: list[tuple[float, Estimate]], shade: str) -> None:
    for x, estimate in points:
        if estimate.low is not None:
            axes.plot([x, x], [estimate.low, estimate.high], color=shade, linewidth=1.4, alpha=0.6)
    axes.plot(
        [x for x, _ in points],
        [estimate.mean for _, estimate in points],
        color=shade,
        linewidth=1.6,
        marker="o",
        markersize=5.5,
        markeredgecolor=PAPER,
    )


@dataclass(frozen=True)
class Matrix(Drawn):
    """A matrix of one arm's first seed as colours: attention weights, a mask, a weight matrix.

    Attributes:
        title: Stands above.
        value: The name of the measured value, rows of numbers; True and False of a mask.
        arm: The label of the arm.
        row_label: What the rows are.
        column_label: What the columns are.
        labels: Names of the rows and columns: themselves, or the name of the measured value that lists them, or that
            maps `rows` and `columns` to lists.
    """

    title: str
    value: str
    arm: str
    row_label: str = ""
    column_label: str = ""
    labels: str | tuple[str, ...] | None = None

    def cells(self, outcome: Outcome) -> list[list[float]]:
        """The numbers, row by row; empty where they were not measured."""
        return [[float(x or 0) for x in row] for row in outcome.first(self.arm, self.value) or []]

    def names(self, outcome: Outcome) -> tuple[list[str], list[str]]:
        """Names of the rows and of the columns."""
        found = outcome.first(self.arm, self.labels) if isinstance(self.labels, str) else self.labels
        if isinstance(found, Mapping):
            return [seen(name) for name in found["rows"]], [seen(name) for name in found["columns"]]
        both = [seen(name) for name in found or ()]
        return both, both

    def inches(self, outcome: Outcome) -> tuple[float, float]:
        cells = self.cells(outcome)
        n_rows, n_columns = len(cells) or 1, len(cells[0]) if cells else 1
        side = self._side(n_rows, n_columns)
        return WIDTH, TITLE_INCHES + AXIS_INCHES + 0.3 + side * n_rows

    def _side(self, n_rows: int, n_columns: int) -> float:
        """Of a cell, in inches."""
        return min(0.42, 5.6 / n_columns, 5.2 / n_rows)

    def note(self, outcome: Outcome) -> str:
        return "Of the first seed." if outcome.most_seeds > 1 else ""

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
        axes = panel(canvas, left, width - left - side * len(cells[0]), bottom=AXIS_INCHES + 0.3)
        image = _draw_cells(axes, cells, side)
        plain_axes(axes, grid="x")
        axes.grid(visible=False)
        axes.spines["bottom"].set_visible(False)
        axes.tick_params(axis="x", length=0)
        _name_cells(axes, row_names, column_names, side)
        label_x(axes, self.column_label and f"columns: {self.column_label}")
        self._key(canvas, axes, image)

    def _key(self, canvas: Any, axes: Any, image: Any) -> None:
        """Draw the scale of the colours at the right."""
        width, height = canvas.get_size_inches()
        box = axes.get_position()
        high = min(1.6 / height, box.height)
        place = canvas.add_axes((box.x1 + 0.25 / width, box.y1 - high, 0.14 / width, high))
        bar = canvas.colorbar(image, cax=place)
        bar.outline.set_visible(False)
        bar.ax.tick_params(length=0, labelsize=TICK_POINTS, labelcolor=MUTED)


def _draw_cells(axes: Any, cells: list[list[float]], side: float) -> Any:
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
        edgecolors=GRID,
        linewidth=0.5,
    )
    axes.invert_yaxis()
    if len(cells[0]) <= MOST_CELLS_WRITTEN and side >= 0.36:
        _write_cells(axes, cells, size)
    return image


def _write_cells(axes: Any, cells: list[list[float]], size: float) -> None:
    for i, row in enumerate(cells):
        for j, value in enumerate(row):
            if abs(value) >= 0.005 * size:
                shade = PAPER if abs(value) > 0.6 * size else INK
                axes.text(
                    j, i, f"{value:.2f}".replace("0.", "."), ha="center", va="center", fontsize=7, color=shade
                )


def _name_cells(axes: Any, rows: list[str], columns: list[str], side: float) -> None:
    size = min(TICK_POINTS, 72 * side)
    for names, ticks in ((rows, axes.set_yticks), (columns, axes.set_xticks)):
        if names:
            ticks(range(len(names)), [letters(name) for name in names], fontsize=size)
    if columns and widest(columns, size) > 0.9 * side:
        axes.tick_params(axis="x", labelrotation=90)


Distribution = Mapping[str, float] | Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Distributions(Drawn):
    """Probabilities of next tokens beside each other: the most probable ones as bars, a panel for each.

    A value is {token: probability} or rows [token, probability]: then there is a panel for each arm. Or it is such
    distributions by name: then there is a panel for each name, and the arms are bars beside each other.

    Attributes:
        title: Stands above.
        value: The name of the measured value, of each arm's first seed.
        arms: Labels of those that are shown; None for all.
        top: How many tokens.
        together: Whether the arms are bars of one panel, where the value is one distribution.
        names: Of distributions by name, those that are shown; None for all.
    """

    title: str
    value: str
    arms: tuple[str, ...] | None = None
    top: int = 10
    together: bool = False
    names: tuple[str, ...] | None = None

    def panels(self, outcome: Outcome) -> dict[str, dict[str, dict[str, float]]]:
        """Of every panel, the distributions by their arms."""
        found: dict[str, dict[str, dict[str, float]]] = {}
        for label in self.labels(outcome):
            value = outcome.first(label, self.value)
            for name, each in self._by_name(value).items():
                panel_name = name or ("" if self.together else label)
                found.setdefault(panel_name, {})[label] = _probabilities(each)
        return found

    def _by_name(self, value: Any) -> Mapping[str, Distribution]:
        if not value:
            return {}
        if not (isinstance(value, Mapping) and not is_number(next(iter(value.values())))):
            return {"": value}
        return {name: value[name] for name in self.names or tuple(value) if name in value}

    def _grid(self, outcome: Outcome) -> tuple[int, int]:
        """Rows and columns of panels."""
        n = max(len(self.panels(outcome)), 1)
        columns = min(n, 3 if n % 3 == 0 or n > 4 else 2)
        return math.ceil(n / columns), columns

    def _panel_inches(self, outcome: Outcome) -> float:
        n = max((len(arms) for arms in self.panels(outcome).values()), default=1)
        tokens = max(
            (len(shown_tokens(arms, self.top)) for arms in self.panels(outcome).values()), default=self.top
        )
        return 0.5 + tokens * (0.18 if n == 1 else 0.13 * n + 0.06)

    def inches(self, outcome: Outcome) -> tuple[float, float]:
        rows, _ = self._grid(outcome)
        return WIDTH, TITLE_INCHES + rows * self._panel_inches(outcome)

    def note(self, outcome: Outcome) -> str:
        return f"The {self.top} most probable tokens; ␣ is a space, ⏎ the end of a line."

    def summary(self, outcome: Outcome) -> str:
        return " ".join(
            f"{', '.join(part for part in (name, arm if arm != name else '') if part)}: "
            + ", ".join(f"{seen(token)} {p:.0%}" for token, p in list(each.items())[:3])
            + "."
            for name, arms in self.panels(outcome).items()
            for arm, each in arms.items()
        )

    def draw(self, canvas: Any, outcome: Outcome) -> None:
        panels = self.panels(outcome)
        arms = list(dict.fromkeys(arm for each in panels.values() for arm in each))
        is_grouped = any(len(each) > 1 for each in panels.values())
        head(canvas, self.title, "" if is_grouped else "probability of the next token")
        if is_grouped:
            _key_of_arms(canvas, arms)
        rows, columns = self._grid(outcome)
        width, height = canvas.get_size_inches()
        wide, high = (width - EDGE) / columns, self._panel_inches(outcome)
        for i, (name, each) in enumerate(panels.items()):
            tokens = shown_tokens(each, self.top)
            left = i % columns * wide + EDGE + widest([seen(token) for token in tokens], TICK_POINTS) + 0.12
            top = TITLE_INCHES + i // columns * high + 0.28
            axes = panel(
                canvas,
                left,
                width - (i % columns + 1) * wide + 0.5,
                top,
                height - top - high + 0.5,
            )
            shades = {arm: colour(arms.index(arm) if is_grouped else 0) for arm in each}
            _draw_distribution(axes, seen(name) if is_grouped else name, tokens, each, shades)


def _probabilities(distribution: Distribution) -> dict[str, float]:
    """Tokens and their probabilities, the most probable first."""
    pairs = distribution.items() if isinstance(distribution, Mapping) else distribution
    return dict(sorted(((str(token), float(p)) for token, p in pairs), key=lambda pair: -pair[1]))


def shown_tokens(arms: Mapping[str, Mapping[str, float]], top: int) -> list[str]:
    """The most probable tokens of the first arm of a panel."""
    return list(next(iter(arms.values()), {}))[:top]


def _key_of_arms(canvas: Any, arms: Sequence[str]) -> None:
    """Name the colours in a line below the title."""
    width, height = canvas.get_size_inches()
    at, y = EDGE, 1 - 0.42 / height
    for i, arm in enumerate(arms):
        canvas.text(at / width, y, "■", va="center", color=colour(i), fontsize=LABEL_POINTS)
        canvas.text((at + 0.16) / width, y, letters(arm), va="center", color=INK, fontsize=LABEL_POINTS)
        at += text_inches(arm) + 0.42


def _draw_distribution(
    axes: Any,
    name: str,
    tokens: list[str],
    arms: Mapping[str, Mapping[str, float]],
    shades: Mapping[str, str],
) -> None:
    plain_axes(axes, grid="x")
    axes.grid(visible=False)
    axes.spines["bottom"].set_visible(False)
    axes.set_xticks([])
    thick = 0.78 / len(arms)
    most = max((arms[arm].get(token, 0.0) for arm in arms for token in tokens), default=1.0) or 1.0
    for i, arm in enumerate(arms):
        places = [row + (i - (len(arms) - 1) / 2) * thick for row in range(len(tokens))]
        values = [arms[arm].get(token, 0.0) for token in tokens]
        axes.barh(places, values, height=thick * 0.88, color=shades[arm])
        for place, value in zip(places, values, strict=True):
            axes.annotate(
                f"{value:.1%}" if value < 0.1 else f"{value:.0%}",
                (value, place),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                fontsize=7.5 if len(arms) == 1 else 7,
                color=MUTED,
            )
    axes.set_yticks(range(len(tokens)), [letters(seen(token)) for token in tokens], color=INK)
    axes.set_ylim(len(tokens) - 0.4, -0.6)
    axes.set_xlim(0, most)
    axes.set_title(letters(name), fontsize=LABEL_POINTS, color=INK, loc="left", pad=3, fontweight="bold")


@dataclass(frozen=True)
class Texts(Drawn):
    """Samples of text beside each other; in a report they are text and no picture.

    A value is a text, several, or texts by name.

    Attributes:
        title: Stands above.
        value: The name of the measured value, of each arm's first seed.
        arms: Labels of those that are shown; None for all.
    """

    title: str
    value: str
    arms: tuple[str, ...] | None = None

    def blocks(self, outcome: Outcome) -> list[tuple[str, str]]:
        """The texts, each with its label."""
        labels = self.labels(outcome)
        found = []
        for label in labels:
            for name, text in _named_texts(outcome.first(label, self.value)):
                known = (label if len(labels) > 1 or not name else "", name)
                found.append((", ".join(part for part in known if part), text))
        return found

    def note(self, outcome: Outcome) -> str:
        return "Of the first seed." if outcome.most_seeds > 1 else ""

    def inches(self, outcome: Outcome) -> tuple[float, float]:
        n_lines = sum(2 + wrapped_lines(text) for _, text in self.blocks(outcome))
        return WIDTH, TITLE_INCHES + LINE_INCHES * max(n_lines, 1)

    def draw(self, canvas: Any, outcome: Outcome) -> None:
        head(canvas, self.title)
        width, height = canvas.get_size_inches()
        y = TITLE_INCHES
        for label, text in self.blocks(outcome):
            canvas.text(
                EDGE / width, 1 - y / height, letters(label), color=MUTED, fontsize=LABEL_POINTS, va="top"
            )
            y += LINE_INCHES
            canvas.text(
                EDGE / width,
                1 - y / height,
                letters(_wrapped_text(text)),
                color=INK,
                fontsize=8,
                family="monospace",
                va="top",
            )
            y += LINE_INCHES * (1 + wrapped_lines(text))


def _named_texts(value: Any) -> list[tuple[str, str]]:
    if value is None:
        return []
    if isinstance(value, str):
        return [("", value)]
    if isinstance(value, Mapping):
        return [(str(name), str(text)) for name, text in value.items()]
    return [(f"sample {i}", str(text)) for i, text in enumerate(value, 1)]


def _wrapped_text(text: str) -> str:
    return "\n".join(wrapped(line, 96) for line in text.split("\n"))


def wrapped_lines(text: str) -> int:
    """How many lines a text has on a figure."""
    return _wrapped_text(text).count("\n") + 1
