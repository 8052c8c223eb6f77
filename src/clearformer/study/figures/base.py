"""The base of the figures, and means over seeds along an axis."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np

from clearformer.study.outcomes import Outcome

Row = Sequence[float]
LEFT_INCHES = 0.62


class Drawn:
    """The base class of the figures."""

    title: str
    arms: tuple[str, ...] | None = None

    def shown_arms(self, outcome: Outcome) -> list[str]:
        """Return the measured arms and sides to show: those that the figure names, or else all of the study."""
        return outcome.compared if self.arms is None else measured(outcome, self.arms)

    def most_seeds(self, outcome: Outcome, name: str) -> int:
        """Return the largest number of seeds of which the figure shows the value `name`."""
        return max((len(outcome.value(label, name)) for label in self.shown_arms(outcome)), default=0)

    def seeds_note(self, outcome: Outcome, name: str) -> str:
        """Return sentences on the number of seeds, and on the bands that `draw_band` draws of them."""
        n = self.most_seeds(outcome, name)
        if n == 1:
            return "One seed."
        return f"Means of up to {n} seeds. Bands: from the lowest seed to the highest."

    def is_there(self, outcome: Outcome) -> bool:
        """Whether the figure has anything to show."""
        return bool(self.summary(outcome))

    def note(self, outcome: Outcome) -> str:
        """Return how to read the figure, in one or two sentences."""
        return ""

    def summary(self, outcome: Outcome) -> str:
        """Return a description in words, for those who cannot see the figure."""
        return ""


def measured(outcome: Outcome, labels: Iterable[str]) -> list[str]:
    """Return those of the labels that are measured arms or sides."""
    there = {*outcome.labels, *outcome.compared}
    return [label for label in labels if label in there]


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
    """Return the mean, minimum and maximum over seeds of column `y` of curves, from the step at which all have begun.

    There is a point for each step of any curve; one that has no row for it is straight between its neighbours, and
    keeps its last row once it has ended: runs that end by the clock end at different steps.
    """
    given = ([[row[0], row[x], row[y]] for row in rows if row[y] is not None] for rows in curves)
    known = [np.array(sorted(rows, key=itemgetter(0)), dtype=float) for rows in given if rows]
    if not known:
        return []
    steps = np.unique(np.concatenate([rows[:, 0] for rows in known]))
    steps = steps[steps >= max(rows[0, 0] for rows in known)]
    xs, ys = (np.array([np.interp(steps, rows[:, 0], rows[:, at]) for rows in known]).T for at in (1, 2))
    return [
        Point(statistics.fmean(each_x), statistics.fmean(each_y), float(min(each_y)), float(max(each_y)))
        for each_x, each_y in zip(xs, ys, strict=True)
    ]
