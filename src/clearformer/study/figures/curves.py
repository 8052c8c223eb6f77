"""Losses during training."""

from dataclasses import dataclass
from typing import Any, Literal

from clearformer.study.figures.base import (
    LEFT_INCHES,
    Drawn,
    Point,
    curve_points,
    draw_band,
)
from clearformer.study.figures.drawing import (
    AXIS_INCHES,
    LINE_INCHES,
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
)
from clearformer.study.measures.losses import HELD_OUT, SECONDS, STEP, TOKENS, TRAINING
from clearformer.study.outcomes import Outcome
from clearformer.study.words import named, number

COLUMNS = {"step": STEP, "tokens": TOKENS, "seconds": SECONDS}
X_NAMES = {"step": "training step", "tokens": "tokens read", "seconds": "seconds of training"}
KINDS = {"training": TRAINING, "held-out": HELD_OUT}
AT_THE_END = {"training": "train_loss", "held-out": "val_loss"}
START = 0.02  # of a curve, ignored in choosing the vertical range: a first loss may be 100 times the last


@dataclass(frozen=True)
class Curves(Drawn):
    """Training and held-out loss during training, from the value `curve`: means as lines, the range of seeds as bands.

    Attributes:
        title: The title above the figure.
        y: The value name that labels the vertical axis; the losses are drawn in any case.
        x: The horizontal axis: steps, tokens or seconds.
        arms: The labels of the arms to show; None for all.
        log_x: Whether the horizontal axis is logarithmic.
        highest: The upper end of the vertical axis; None to fit everything but an initial peak.
        bound: The name of a measured number that each arm's losses can at best reach, drawn as a dotted line.
    """

    title: str
    y: str = "loss"
    x: Literal["step", "tokens", "seconds"] = "step"
    arms: tuple[str, ...] | None = None
    log_x: bool = False
    highest: float | None = None
    bound: str = ""

    def inches(self, outcome: Outcome) -> tuple[float, float]:
        n = 2 * len(self.shown_arms(outcome))
        return WIDTH, max(4.2, TITLE_INCHES + AXIS_INCHES + (n + 1) * LINE_INCHES)

    def note(self, outcome: Outcome) -> str:
        bound = f" Dotted: {named(self.bound)}." if self.bounds(outcome) else ""
        return (
            f"Solid: training. Dashed: held-out text, on the way often a part of it.{bound} Numbers: the losses at the "
            f"end, as in the table. {self.seeds_note(outcome, 'curve')}"
        )

    def summary(self, outcome: Outcome) -> str:
        return " ".join(
            f"{label} ends at "
            + ", ".join(
                f"{kind} {number(self._last(outcome, label, kind, points), 2)}" for kind, points in lines
            )
            + "."
            for label, lines in self.lines(outcome).items()
        )

    def _last(self, outcome: Outcome, label: str, kind: str, points: list[Point]) -> float:
        """Return the loss at the end that the tables give, else that of the curve's last point."""
        measured = outcome.estimate(label, AT_THE_END[kind])
        return points[-1].mean if measured is None else measured.mean

    def lines(self, outcome: Outcome) -> dict[str, list[tuple[str, list[Point]]]]:
        """Return the measured training and held-out curves of every arm."""
        found = {}
        for label in self.shown_arms(outcome):
            curves = outcome.value(label, "curve")
            lines = [(kind, curve_points(curves, COLUMNS[self.x], column)) for kind, column in KINDS.items()]
            found[label] = [(kind, points) for kind, points in lines if points]
        return {label: lines for label, lines in found.items() if lines}

    def bounds(self, outcome: Outcome) -> dict[str, float]:
        """Return the mean of `bound` of every arm in which it is measured."""
        found = {label: outcome.estimate(label, self.bound) for label in self.lines(outcome) if self.bound}
        return {label: estimate.mean for label, estimate in found.items() if estimate is not None}

    def draw(self, canvas: Any, outcome: Outcome) -> None:
        lines = self.lines(outcome)
        head(canvas, self.title, named(self.y, loss_unit=outcome.loss_unit))
        texts = {
            (label, kind): _end_text(label, kind, self._last(outcome, label, kind, points))
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
        bounds = self.bounds(outcome)
        for i, label in enumerate(lines):
            if label in bounds:
                axes.axhline(bounds[label], color=colour(i), linewidth=1.2, linestyle=(0, (1, 1.6)))
        drawn = [points for pairs in lines.values() for _, points in pairs]
        _set_ranges(axes, drawn, self.log_x, list(bounds.values()))
        if self.highest is not None:
            axes.set_ylim(top=self.highest)
        end_labels(axes, ends)


def _end_text(label: str, kind: str, loss: float) -> str:
    return f"{label}{'' if kind == 'training' else ', held-out'} {number(loss, 2)}"


def _draw_curve(axes: Any, points: list[Point], shade: str, is_dashed: bool) -> None:
    draw_band(axes, points, shade)
    style: Any = (0, (4, 1.6)) if is_dashed else "solid"
    marker = "o" if len(points) == 1 else None
    x, y = [p.x for p in points], [p.mean for p in points]
    axes.plot(x, y, color=shade, linewidth=1.6, linestyle=style, marker=marker)


def _set_ranges(axes: Any, curves: list[list[Point]], log_x: bool, bounds: list[float]) -> None:
    """Set the ranges of both axes; the first losses, which may be far above all others, are ignored."""
    if not curves:
        return
    first, last = min(c[0].x for c in curves), max(c[-1].x for c in curves)
    since = first + START * (last - first)
    settled = [p for points in curves for p in points if p.x >= since]
    low, high = min([*(p.low for p in settled), *bounds]), max([*(p.high for p in settled), *bounds])
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    axes.set_ylim(low - margin, high + margin)
    if log_x:
        axes.set_xscale("log")
        axes.set_xlim(first, last)
    else:
        axes.set_xlim(0 if first < 0.1 * last else first, last if last > first else first + 1)
        number_ticks(axes.xaxis)
