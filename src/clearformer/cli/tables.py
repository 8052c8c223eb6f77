"""Tables, lists and paragraphs that fit the terminal without cutting a number."""

import shutil
import textwrap
from collections.abc import Iterable, Sequence

from clearformer.errors import columns_of

GAP = "   "
LEAST_BESIDE = 60  # columns; in a narrower terminal, explanations go below the names instead of next to them


def terminal_width() -> int | None:
    """Return the terminal's columns, or $COLUMNS; None if the output goes elsewhere and may have any width."""
    return shutil.get_terminal_size((0, 0)).columns or None


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], n_left: int = 1) -> str:
    """Format rows as columns under their heads: the first `n_left` are left-aligned, the rest, numbers, right-aligned.

    If the table is wider than the terminal, each row becomes a list.
    """
    cells = [list(heads), *map(list, rows)]
    widths = [max(map(columns_of, column)) for column in zip(*cells, strict=True)]
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
    """Wrap a text between words to the terminal's width; without a terminal, leave it as it is."""
    limit = terminal_width()
    if limit is None:
        return text
    return textwrap.fill(text, limit, break_long_words=False, break_on_hyphens=False)


def definitions(pairs: Sequence[tuple[str, str]]) -> str:
    """Format names with their explanations next to them, or below them in a narrow terminal."""
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
    blank = " " * (width - columns_of(cell))
    return cell + blank if left else blank + cell
