"""The base of the figures, and means over seeds along an axis."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clearformer.study.outcomes import Outcome

Row = Sequence[float]
LEFT_INCHES = 0.62


class Drawn:
    """The base class of the figures."""

    title: str
    arms: tuple[str, ...] | None = None

    def shown_arms(self, outcome: Outcome) -> list[str]:
        """Return the measured arms and sides to show: those that the figure names, or else all of the study."""
        if self.arms is None:
            return outcome.compared
        there = {*outcome.labels, *outcome.compared}
        return [label for label in self.arms if label in there]

    def is_there(self, outcome: Outcome) -> bool:
        """Whether the figure has anything to show."""
        return bool(self.summary(outcome))

    def note(self, outcome: Outcome) -> str:
        """Return how to read the figure, in one or two sentences."""
        return ""

    def summary(self, outcome: Outcome) -> str:
        """Return a description in words, for those who cannot see the figure."""
        return ""


def seeds_note(outcome: Outcome) -> str:
    """Return sentences on the number of seeds, and on the bands that `draw_band` draws of them."""
    n = outcome.most_seeds
    return "One seed." if n == 1 else f"Means of up to {n} seeds. Bands: from the lowest seed to the highest."


@dataclass(frozen=True)
class Point:
    """A point of a curve over seeds."""

    x: float
    mean: float
    low: float
    high: float


def draw_band(axes: Any, points: Sequence[Point], shade: str) -> None:
    """Draw the range from the lowest seed to the highest as a band, where there is one."""
    if any(point.low < point.high for point in points):
        x, low, high = [p.x for p in points], [p.low for p in points], [p.high for p in points]
        axes.fill_between(x, low, high, color=shade, alpha=0.18, linewidth=0)


def curve_points(curves: Sequence[Sequence[Sequence[float | None]]], x: int, y: int) -> list[Point]:
    """Return the mean, minimum and maximum over seeds of column `y` of curves, at the steps that all curves have."""
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
