"""Values along an axis: measured rows, or one number of each arm."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from clearformer.study.figures.base import (
    LEFT_INCHES,
    Drawn,
    Point,
    Row,
    curve_points,
    draw_band,
    measured,
)
from clearformer.study.figures.drawing import (
    AXIS_INCHES,
    LINE_INCHES,
    MUTED,
    PAPER,
    TITLE_INCHES,
    WIDTH,
    EndLabel,
    colour,
    end_labels,
    head,
    label_x,
    panel,
    plain_axes,
    room_for,
    set_scales,
)
from clearformer.study.outcomes import Estimate, Outcome
from clearformer.study.words import as_written, estimate_text, named, number


@dataclass(frozen=True)
class Lines(Drawn):
    """A value of every arm that is rows [x, y], or a mapping of names to such rows, as lines of means over seeds.

    Attributes:
        title: The title above the figure.
        value: The name of the measured value.
        x: The label of the horizontal axis if `x_label` is empty.
        x_label: The label of the horizontal axis, with its unit.
        y_label: The label of the vertical axis, with its unit; if empty, the value's name.
        series: The names of the rows to show; None for all.
        log_x: Whether the horizontal axis is logarithmic.
        log_y: Whether the vertical axis is.
        ideal: The theoretical value, drawn as a dotted line: a number, a function of x, or rows.
        ideal_label: Its label.
        arms: The labels of the arms to show; None for all.
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
        return self.seeds_note(outcome, self.value)

    def summary(self, outcome: Outcome) -> str:
        return " ".join(
            f"{label}: from {number(points[0].mean)} at {as_written(points[0].x)} "
            f"to {number(points[-1].mean)} at {as_written(points[-1].x)}."
            for label, points in self.lines(outcome).items()
        )

    def lines(self, outcome: Outcome) -> dict[str, list[Point]]:
        """Return the lines by label."""
        labels = self.shown_arms(outcome)
        found: dict[str, list[Point]] = {}
        for label in labels:
            for name, curves in self._rows(outcome.value(label, self.value)).items():
                known = ", ".join(
                    part for part in (label if len(labels) > 1 or not name else "", name) if part
                )
                points = curve_points(curves, 0, 1)
                ends = [max(row[0] for row in rows) for rows in curves if rows]
                found[known] = [point for point in points if point.x <= min(ends)]  # where all were measured
        return {label: points for label, points in found.items() if points}

    def _rows(self, by_seed: list[Any]) -> dict[str, list[Any]]:
        """Return the rows of every seed by the name of the series; a single series has an empty name."""
        if not by_seed or not isinstance(by_seed[0], Mapping):
            return {"": by_seed}
        names = (
            dict.fromkeys(name for rows in by_seed for name in rows) if self.series is None else self.series
        )
        return {name: [rows[name] for rows in by_seed if name in rows] for name in names}

    def draw(self, canvas: Any, outcome: Outcome) -> None:
        lines = self.lines(outcome)
        head(canvas, self.title, self.y_label or named(self.value, loss_unit=outcome.loss_unit))
        ideal = self.ideal_points(lines)
        axes = panel(canvas, LEFT_INCHES, room_for([*lines, *([self.ideal_label] if ideal else [])]))
        plain_axes(axes)
        label_x(axes, self.x_label or self.x)
        for i, points in enumerate(lines.values()):
            _draw_line(axes, points, colour(i))
        if ideal:
            axes.plot(*zip(*ideal, strict=True), color=MUTED, linewidth=1.2, linestyle=(0, (1.5, 1.8)))
        set_scales(axes, self.log_x, self.log_y)
        places = {point.x for points in lines.values() for point in points}
        if not self.log_x and are_layers(places):
            axes.set_xticks(sorted(places))
        ends = [
            EndLabel(name, pts[-1].x, pts[-1].mean, colour(i)) for i, (name, pts) in enumerate(lines.items())
        ]
        if ideal:
            ends.append(EndLabel(self.ideal_label, *ideal[-1], MUTED))
        end_labels(axes, ends)

    def ideal_points(self, lines: Mapping[str, list[Point]]) -> list[tuple[float, float]]:
        """Return the points of the theoretical line, over the x of the lines."""
        places = sorted({point.x for points in lines.values() for point in points})
        if self.ideal is None or not places:
            return []
        if isinstance(self.ideal, Sequence):
            return [(row[0], row[1]) for row in self.ideal]
        if callable(self.ideal):
            return [(x, self.ideal(x)) for x in places]
        return [(x, self.ideal) for x in (places[0], places[-1])]


def are_layers(places: Collection[float]) -> bool:
    """Whether the x of a line are a few whole numbers next to each other, such as layers, so that each has a tick."""
    whole = all(place == int(place) for place in places)
    return 1 < len(places) <= 16 and whole and max(places) - min(places) < len(places)


def _draw_line(axes: Any, points: list[Point], shade: str) -> None:
    draw_band(axes, points, shade)
    marker = "o" if len(points) <= 16 else None
    axes.plot(
        [p.x for p in points],
        [p.mean for p in points],
        color=shade,
        linewidth=1.6,
        marker=marker,
        markersize=4.5,
        markeredgecolor=PAPER,
    )


@dataclass(frozen=True)
class Trend(Drawn):
    """One number of every arm against a property of the arm, such as depth, width or context; one line per group.

    Attributes:
        title: The title above the figure.
        value: The name of the measured number.
        at: The x of each arm, by label.
        x_label: The label of the horizontal axis, with its unit.
        groups: The name of each arm's line, by label; if empty, all arms are one line.
        y_label: The label of the vertical axis, with its unit; if empty, the value's name.
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
        if self.most_seeds(outcome, self.value) == 1:
            return "One seed: no interval."
        return "Dot: mean over seeds. Vertical line: its 95% interval."

    def summary(self, outcome: Outcome) -> str:
        return " ".join(
            f"{group + ', ' if group else ''}{self.x_label} {as_written(x)}: {estimate_text(estimate)}."
            for group, points in self.lines(outcome).items()
            for x, estimate in points
        )

    def shown_arms(self, outcome: Outcome) -> list[str]:
        return measured(outcome, self.at)

    def lines(self, outcome: Outcome) -> dict[str, list[tuple[float, Estimate]]]:
        """Return the points of every group, sorted by x."""
        found: dict[str, list[tuple[float, Estimate]]] = {}
        for label in self.shown_arms(outcome):
            estimate = outcome.estimate(label, self.value)
            if estimate is not None:
                found.setdefault(self.groups.get(label, ""), []).append((self.at[label], estimate))
        return {group: sorted(points, key=lambda point: point[0]) for group, points in found.items()}

    def draw(self, canvas: Any, outcome: Outcome) -> None:
        lines = self.lines(outcome)
        head(canvas, self.title, self.y_label or named(self.value, loss_unit=outcome.loss_unit))
        axes = panel(canvas, LEFT_INCHES, room_for(list(lines)))
        plain_axes(axes)
        label_x(axes, self.x_label)
        for i, points in enumerate(lines.values()):
            _draw_trend(axes, points, colour(i))
        set_scales(axes, self.log_x, self.log_y)
        if len(set(self.at.values())) <= 8:
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
