"""Tables, lists and paragraphs as wide as the terminal, in which no number is cut."""

import shutil
import textwrap
from collections.abc import Iterable, Sequence

GAP = "   "
LEAST_BESIDE = 60  # columns; in a narrower terminal, a list's explanations stand below its names


def terminal_width() -> int | None:
    """The terminal's columns, or $COLUMNS; None where the output goes elsewhere and may be as wide as it is."""
    return shutil.get_terminal_size((0, 0)).columns or None


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], n_left: int = 1) -> str:
    """Columns under their heads, the first `n_left` to the left and the others, numbers, to the right.

    Where that is wider than the terminal, each row is a list of its own.
    """
    cells = [list(heads), *map(list, rows)]
    widths = [max(map(_width, column)) for column in zip(*cells, strict=True)]
    limit = terminal_width()
    if limit is not None and sum(widths) + len(GAP) * (len(widths) - 1) > limit:
        return "\n".join(_as_list(heads, row) for row in cells[1:])
    return "\n".join(
        GAP.join(
            _padded(cell, width, left=i < n_left)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    )


def _as_list(heads: Sequence[str], row: Sequence[str]) -> str:
    named = [(head, cell) for head, cell in zip(heads[1:], row[1:], strict=True) if cell]
    return "\n".join([row[0], *(f"  {head}: {cell}" if head else f"  {cell}" for head, cell in named)])


def paragraph(text: str) -> str:
    """A text broken between words, where there is a terminal."""
    limit = terminal_width()
    if limit is None:
        return text
    return textwrap.fill(text, limit, break_long_words=False, break_on_hyphens=False)


def definitions(pairs: Sequence[tuple[str, str]]) -> str:
    """Names, and beside each what it is."""
    limit, indent = terminal_width(), max(len(name) for name, _ in pairs) + 2
    if limit is None:
        return "\n".join(f"{name:{indent}}{about}" for name, about in pairs)
    if limit < LEAST_BESIDE:
        return "\n".join(
            f"{name}\n{textwrap.fill(about, limit, initial_indent='  ', subsequent_indent='  ')}"
            for name, about in pairs
        )
    return "\n".join(
        textwrap.fill(f"{name:{indent}}{about}", limit, subsequent_indent=" " * indent)
        for name, about in pairs
    )


def _padded(cell: str, width: int, left: bool) -> str:
    blank = " " * (width - _width(cell))
    return cell + blank if left else blank + cell


def _width(cell: str) -> int:
    from rich.cells import cell_len

    return cell_len(cell)
