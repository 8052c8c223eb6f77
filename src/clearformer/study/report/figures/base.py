"""The base of the figures, and means over seeds along an axis."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from clearformer.study.outcomes import Outcome

Row = Sequence[float]
LEFT_INCHES = 0.62


class Drawn:
    """The base of the figures: the arms that they show."""

    title: str
    arms: tuple[str, ...] | None = None

    def shown_arms(self, outcome: Outcome) -> list[str]:
        """The measured arms that are shown, of a side its best: the study's, or those that the figure names."""
        if self.arms is None:
            return outcome.compared
        there = {*outcome.labels, *outcome.compared}
        return [label for label in self.arms if label in there]

    def is_there(self, outcome: Outcome) -> bool:
        """Whether something of it was measured."""
        return bool(self.summary(outcome))

    def note(self, outcome: Outcome) -> str:
        """How to read it, in one or two sentences."""
        return ""

    def summary(self, outcome: Outcome) -> str:
        """The figure in words, for those who cannot see it."""
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
