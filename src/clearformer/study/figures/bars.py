"""One number of every arm, with its interval."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clearformer.evaluation.figures import letters
from clearformer.study.figures.base import Drawn
from clearformer.study.figures.drawing import (
    AXIS_INCHES,
    EDGE,
    INK,
    LABEL_POINTS,
    MUTED,
    PAPER,
    WIDTH,
    colour,
    head,
    label_x,
    number_ticks,
    panel,
    plain_axes,
    room_for,
    widest,
    wrapped,
)
from clearformer.study.outcomes import Estimate, Outcome
from clearformer.study.words import as_written, estimate_text, named, number

HEAD_INCHES = 0.46


@dataclass(frozen=True)
class Bars(Drawn):
    """One number of every arm: the mean as a dot, its 95% interval as a line, the seeds as small dots.

    The lecture's number is a vertical tick with its value. The axis need not start at zero.

    Attributes:
        title: The title above the figure.
        value: The name of the measured number.
        arms: The labels of the arms to show; None for all.
        unit: The unit of the number, if its name does not imply it.
        baseline: A number to compare with, or several by name, drawn as lines across the figure.
        log_x: Whether the axis is logarithmic.
    """

    title: str
    value: str
    arms: tuple[str, ...] | None = None
    unit: str = ""
    baseline: float | Mapping[str, float] | None = None
    log_x: bool = False

    def rows(self, outcome: Outcome) -> list[tuple[str, Estimate]]:
        """Return the arms that have the number, with its estimate."""
        found = ((label, outcome.estimate(label, self.value)) for label in self.shown_arms(outcome))
        return [(label, estimate) for label, estimate in found if estimate is not None]

    def inches(self, outcome: Outcome) -> tuple[float, float]:
        lines = sum(max(2, wrapped(label).count("\n") + 1) for label, _ in self.rows(outcome))
        return WIDTH, HEAD_INCHES + AXIS_INCHES + 0.2 * max(lines, 2) + 0.1

    def note(self, outcome: Outcome) -> str:
        parts = ["Dot: mean over seeds. Line: its 95% interval. Small dots: the seeds."]
        if self.most_seeds(outcome, self.value) == 1:
            parts = ["One seed: no interval."]
        if self._published(outcome):
            parts.append(
                "Tick: the lecture's number." if outcome.study.lecture else "Tick: the published number."
            )
        return " ".join(parts)

    def summary(self, outcome: Outcome) -> str:
        return " ".join(f"{label}: {estimate_text(estimate)}." for label, estimate in self.rows(outcome))

    def _published(self, outcome: Outcome) -> dict[str, float]:
        shown = {label for label, _ in self.rows(outcome)}
        return {
            each.arm: each.published
            for each in outcome.study.published
            if each.value == self.value and each.arm in shown and each.published != self.baseline
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
        axes = panel(canvas, left, room_for(values), top=HEAD_INCHES)
        plain_axes(axes, grid="x")
        label_x(axes, named(self.value, self.unit, loss_unit=outcome.loss_unit))
        if self.log_x:
            axes.set_xscale("log")
        places = list(range(len(rows)))
        for place, (label, estimate) in zip(places, rows, strict=True):
            _draw_estimate(axes, place, estimate)
            if label in published:
                whose = "lecture" if outcome.study.lecture else "published"
                _draw_published(axes, place, published[label], whose)
        axes.set_yticks(places, [letters(name) for name in names], color=INK, fontsize=LABEL_POINTS)
        axes.set_ylim(len(rows) - 0.5, -1 if self.baseline is not None else -0.7)
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
            [place + 0.24] * estimate.n,
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


def _draw_published(axes: Any, place: float, at: float, whose: str) -> None:
    axes.plot([at, at], [place - 0.3, place + 0.3], color=colour(1), linewidth=2)
    axes.annotate(
        f"{whose} {as_written(at)}",
        (at, place - 0.3),
        xytext=(0, 1),
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=7.5,
        color=MUTED,
    )


def _draw_baseline(axes: Any, name: str, at: float) -> None:
    axes.axvline(at, color=MUTED, linewidth=1, linestyle=(0, (2, 2)), zorder=0.9)
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
