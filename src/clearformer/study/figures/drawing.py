"""The common style of all figures: colours, fonts, and labels at the ends of lines; matplotlib is imported lazily.

Positions on a figure are given in inches, so that text has the same size in all figures.
"""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from clearformer.evaluation.figures import letters
from clearformer.study.words import as_written

WIDTH = 8.2  # inches: 787 pixels in a browser
PAPER, INK, MUTED, GRID = "#ffffff", "#1f2933", "#5b6775", "#e4e8ed"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
"""The palette of Okabe and Ito, distinguishable by the colour-blind, without yellow, which is too light on white."""

LABEL_COLOURS = ("#0072b1", "#b84f00", "#007a59", "#a3487c", "#8f6200", "#1f78ab", "#666666")
"""The same colours, dark enough for text."""

TITLE_POINTS, LABEL_POINTS, TICK_POINTS = 11.5, 9.0, 8.5
FONT = "DejaVu Sans"  # comes with matplotlib, so that figures have the same layout on every machine
EDGE, TITLE_INCHES, AXIS_INCHES = 0.12, 0.62, 0.52
LINE_INCHES = 0.165  # from one line of text to the next
TEXT_GAP = 0.1
LONGEST_LABEL = 44  # characters at a line's end
SPECIAL = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍", "": "∅"}


def colour(i: int) -> str:
    """Return the colour of the i-th series."""
    return COLOURS[i % len(COLOURS)]


def label_colour(shade: str) -> str:
    """Return the colour of the text that labels a series of a given colour."""
    return LABEL_COLOURS[COLOURS.index(shade)] if shade in COLOURS else shade


@cache
def text_inches(text: str, points: float = LABEL_POINTS) -> float:
    """Return the width of a line of text, in inches."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextToPath

    width, _, _ = TextToPath().get_text_width_height_descent(
        text, FontProperties(family=FONT, size=points), ismath=False
    )
    return width / 72


def widest(texts: Sequence[str], points: float = LABEL_POINTS) -> float:
    """Return the width of the widest line of some texts, in inches."""
    return max((text_inches(line, points) for text in texts for line in text.split("\n")), default=0.0)


def wrapped(text: str, width: int = 30) -> str:
    """Wrap a label to lines of at most `width` characters."""
    return "\n".join(textwrap.wrap(text, width)) or text


def shortened_label(text: str) -> str:
    """Shorten a label that is too long by leaving out its middle."""
    if len(text) <= LONGEST_LABEL:
        return text
    half = (LONGEST_LABEL - 1) // 2
    return f"{text[:half].rstrip()}…{text[-half:].lstrip()}"


def seen(token: Any) -> str:
    """Make a token visible: spaces and line ends become symbols."""
    text = str(token)
    return SPECIAL.get(text, text.replace("\n", "⏎").replace("\t", "⇥"))


def head(canvas: Any, title: str, below: str = "") -> None:
    """Write a figure's title, and what its vertical axis shows, at the top left."""
    canvas.set_layout_engine("none")
    canvas.set_facecolor(PAPER)
    width, height = canvas.get_size_inches()
    canvas.text(
        EDGE / width,
        1 - 0.1 / height,
        letters(title),
        va="top",
        color=INK,
        fontsize=TITLE_POINTS,
        fontweight="bold",
    )
    if below:
        place = 1 - 0.34 / height
        canvas.text(EDGE / width, place, letters(below), va="top", color=MUTED, fontsize=LABEL_POINTS)


def panel(
    canvas: Any, left: float, right: float, top: float = TITLE_INCHES, bottom: float = AXIS_INCHES
) -> Any:
    """Add axes to a figure, with margins in inches."""
    width, height = canvas.get_size_inches()
    return canvas.add_axes(
        (left / width, bottom / height, (width - left - right) / width, (height - top - bottom) / height)
    )


def plain_axes(axes: Any, grid: str = "y") -> None:
    """Reduce the axes' lines to the lower edge and a thin grid."""
    axes.set_facecolor("none")
    for name, spine in axes.spines.items():
        spine.set_visible(name == "bottom")
        spine.set_color(MUTED)
        spine.set_linewidth(0.8)
    axes.grid(axis=grid, which="major", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", length=0, labelsize=TICK_POINTS, labelcolor=MUTED, pad=4)
    axes.tick_params(axis="x", which="major", length=3, color=MUTED)


def label_x(axes: Any, text: str) -> None:
    """Name the horizontal axis."""
    axes.set_xlabel(letters(text), fontsize=LABEL_POINTS, color=MUTED, labelpad=4)


def number_ticks(axis: Any) -> None:
    """Put ticks at round numbers, all with the same decimals, with separators between thousands."""
    from matplotlib.ticker import MaxNLocator, ScalarFormatter, StrMethodFormatter

    axis.set_major_locator(MaxNLocator(6))
    low, high = axis.get_view_interval()
    is_large = max(abs(low), abs(high)) >= 1000
    if is_large and high - low >= 6:
        axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    else:
        formatter = ScalarFormatter(useOffset=False)
        formatter.set_powerlimits((-4, 6))
        axis.set_major_formatter(formatter)


@dataclass(frozen=True)
class EndLabel:
    """A label next to the end of a line."""

    text: str
    x: float
    y: float
    colour: str


def room_for(labels: Sequence[str]) -> float:
    """Return the inches to keep free at the right of axes for labels at the ends of lines."""
    return widest([shortened_label(label) for label in labels]) + TEXT_GAP + 0.16


def end_labels(axes: Any, labels: Sequence[EndLabel]) -> None:
    """Write labels next to the ends of lines, moved apart where they would overlap, with a thin line to each."""
    if not labels:
        return
    box = axes.get_window_extent()
    inches_wide, inches_high = (size / axes.figure.dpi for size in (box.width, box.height))
    to_axes = axes.transAxes.inverted()
    ends = [to_axes.transform(axes.transData.transform((label.x, label.y))) for label in labels]
    wished = [min(max(float(y), 0.0), 1.0) for _, y in ends]
    places = spread(wished, LINE_INCHES / inches_high, room=1.0)
    start = 1 + TEXT_GAP / inches_wide
    for label, (x, _), y, place in zip(labels, ends, wished, places, strict=True):
        near = start - 0.03 / inches_wide
        bend = max(float(x), near - 0.07 / inches_wide)
        axes.plot(
            [float(x), bend, near],
            [y, y, place],
            transform=axes.transAxes,
            clip_on=False,
            color=label.colour,
            linewidth=0.8,
            linestyle=(0, (1, 2)),
        )
        axes.text(
            start,
            place,
            letters(shortened_label(label.text)),
            transform=axes.transAxes,
            va="center",
            fontsize=LABEL_POINTS,
            color=label_colour(label.colour),
        )


def spread(wished: Sequence[float], gap: float, room: float = math.inf) -> list[float]:
    """Move the wished places at least `gap` apart, as little as possible (least squares), in the same order.

    They lie between 0 and `room`, if that is finite and large enough.
    """
    order = sorted(range(len(wished)), key=lambda i: wished[i])
    groups: list[tuple[float, int]] = []  # the sum of wished places minus the gaps, and their number
    for rank, i in enumerate(order):
        groups.append((wished[i] - rank * gap, 1))
        while len(groups) > 1 and groups[-2][0] / groups[-2][1] > groups[-1][0] / groups[-1][1]:
            (sum_above, n_above), (sum_below, n_below) = groups.pop(), groups.pop()
            groups.append((sum_above + sum_below, n_above + n_below))
    highest = room - gap * (len(wished) - 1)
    level = [total / n for total, n in groups for _ in range(n)]
    if 0 <= highest < math.inf:
        level = [min(max(place, 0.0), highest) for place in level]
    places = [0.0] * len(wished)
    for rank, i in enumerate(order):
        places[i] = level[rank] + rank * gap
    return places


def set_scales(axes: Any, log_x: bool, log_y: bool) -> None:
    from matplotlib.ticker import FuncFormatter

    for is_log, axis, set_scale in (
        (log_x, axes.xaxis, axes.set_xscale),
        (log_y, axes.yaxis, axes.set_yscale),
    ):
        if is_log:
            set_scale("log", base=2 if axis is axes.xaxis and _doubles(axes) else 10)
            axis.set_major_formatter(FuncFormatter(lambda value, _: as_written(float(f"{value:.6g}"))))
            axis.set_minor_formatter("")
        else:
            number_ticks(axis)


def _doubles(axes: Any) -> bool:
    """Whether the x of all points are powers of two."""
    places = {float(x) for line in axes.get_lines() for x in line.get_xdata()}
    return bool(places) and all(x > 0 and math.log2(x).is_integer() for x in places)
