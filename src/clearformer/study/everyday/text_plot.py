"""Curves as text, drawn in braille characters, each two dots wide and four high."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bit of each dot in a braille character, by row and column."""
BLANK = 0x2800
COLOURS = (34, 31, 32, 35, 36, 33)  # ANSI codes: blue, red, green, magenta, cyan, yellow
LEAST_WIDTH, LEAST_HEIGHT = 24, 4
MOST_NAME = 24  # columns


@dataclass(frozen=True)
class Line:
    """A curve and its name; `points` are rows of x and y, sorted by x."""

    name: str
    points: Sequence[Sequence[float]]


def text_plot(
    lines: Sequence[Line], width: int, height: int, title: str, x: str, *, colours: bool = False
) -> str:
    """Plot curves under a title, with the bounds of both axes and each curve's name at its end.

    Args:
        lines: The curves.
        width: Columns of the whole plot.
        height: Rows of the curves, without title and axis.
        title: The line above.
        x: The label of the horizontal axis.
        colours: Whether to colour the curves with terminal escape codes.
    """
    points = [point for line in lines for point in line.points]
    left, right = min(p[0] for p in points), max(p[0] for p in points)
    low, high = min(p[1] for p in points), max(p[1] for p in points)
    names = max(min(MOST_NAME, cell_len(line.name)) for line in lines)
    ticks = tick_texts(high, (low + high) / 2, low)
    margin = max(map(len, ticks))
    height, width = max(height, LEAST_HEIGHT), max(width, LEAST_WIDTH)
    columns = max(8, width - margin - names - 4)
    grid = Grid(columns, height, (left, right), (low, high))
    for i, line in enumerate(lines):
        grid.draw(line.points, i)
    labels = grid.labels(lines)
    rows = []
    for row in range(height):
        tick = {0: ticks[0], height // 2: ticks[1], height - 1: ticks[2]}.get(row, "")
        axis = "┤" if tick else "│"
        name = labels.get(row)
        text = "" if name is None else painted(shortened(lines[name].name), name, colours)
        rows.append(f"{tick:>{margin}} {axis}{grid.row(row, colours)} {text}".rstrip())
    first, last = number(left), number(right)
    below = f"{' ' * (margin + 1)}└{'─' * columns}"
    gap = max(1, columns - len(first) - len(last))
    return "\n".join([title, *rows, below, f"{' ' * (margin + 2)}{first}{x:^{gap}}{last}"])


def tick_texts(*ticks: float) -> list[str]:
    """Format numbers with three digits, or as many as tell them apart."""
    each = ([f"{tick:.{digits}g}" for tick in ticks] for digits in range(3, 10))
    return next(
        (texts for texts in each if len(set(texts)) == len(set(ticks))), [f"{tick:.9g}" for tick in ticks]
    )


class Grid:
    """A raster of dots; where two curves share a character, the later one determines its colour."""

    def __init__(self, columns: int, rows: int, x: tuple[float, float], y: tuple[float, float]) -> None:
        self.columns, self.rows = columns, rows
        self._x, self._y = x, y
        self._bits = [[0] * columns for _ in range(rows)]
        self._owner = [[-1] * columns for _ in range(rows)]

    def dot(self, point: Sequence[float]) -> tuple[int, int]:
        """Return the dot of a point, counted from the left and from the top."""
        across = place(point[0], *self._x, 2 * self.columns)
        return across, 4 * self.rows - 1 - place(point[1], *self._y, 4 * self.rows)

    def draw(self, points: Sequence[Sequence[float]], owner: int) -> None:
        """Draw a curve as straight lines between its points."""
        dots = [self.dot(point) for point in points]
        for (x0, y0), (x1, y1) in zip(dots, dots[1:] or dots, strict=False):
            n = max(abs(x1 - x0), abs(y1 - y0), 1)
            for i in range(n + 1):
                self._set(round(x0 + (x1 - x0) * i / n), round(y0 + (y1 - y0) * i / n), owner)

    def _set(self, across: int, down: int, owner: int) -> None:
        row, column = down // 4, across // 2
        self._bits[row][column] |= DOTS[down % 4][across % 2]
        self._owner[row][column] = owner

    def row(self, row: int, colours: bool) -> str:
        """Return the characters of a row."""
        return "".join(
            painted(chr(BLANK + bits), owner, colours) if bits else " "
            for bits, owner in zip(self._bits[row], self._owner[row], strict=True)
        )

    def labels(self, lines: Sequence[Line]) -> dict[int, int]:
        """Map rows to the curves whose names they show: the row of a curve's end, or the nearest that is free."""
        taken: dict[int, int] = {}
        ends = {i: self.dot(line.points[-1])[1] // 4 for i, line in enumerate(lines)}
        for i in sorted(ends, key=lambda i: ends[i]):
            free = [row for row in range(self.rows) if row not in taken]
            if free:
                taken[min(free, key=lambda row: (abs(row - ends[i]), row))] = i
        return taken


def place(value: float, low: float, high: float, n: int) -> int:
    """Return the nearest of `n` evenly spaced places in a range; the middle one if the range is empty."""
    if high <= low:
        return n // 2
    return min(n - 1, max(0, round((value - low) / (high - low) * (n - 1))))


def painted(text: str, i: int, colours: bool) -> str:
    """Colour a text like the curve with index `i`."""
    return f"\033[{COLOURS[i % len(COLOURS)]}m{text}\033[0m" if colours else text


def shortened(name: str) -> str:
    """Shorten a name to at most `MOST_NAME` columns."""
    return name if cell_len(name) <= MOST_NAME else set_cell_size(name, MOST_NAME - 1).rstrip() + "…"


def number(value: float) -> str:
    """Format a bound of the horizontal axis."""
    return f"{value:,.0f}" if value == round(value) or abs(value) >= 100 else f"{value:.3g}"
