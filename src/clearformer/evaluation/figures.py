"""Measurements as figures, drawn by matplotlib, which is imported only when needed."""

import warnings
from collections.abc import Iterator, Set
from contextlib import contextmanager, suppress
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

from clearformer.errors import UserError, needs_extra, shortened
from clearformer.evaluation.classes.metrics import LONGEST_NAME, ClassificationReport
from clearformer.files import write_file

SUFFIXES = (".png", ".svg", ".pdf")
DOTS_PER_INCH = 150
CELL_INCHES, SMALLEST_SIDE, LARGEST_SIDE = 0.42, 2.6, 24.0
LABEL_POINTS = 10
LAST_RESORT = "Last Resort High-Efficiency"  # matplotlib's font that has a box for every letter
MOST_CELLS_WITH_COUNTS = 40  # classes; with more, the counts would be too small to read
DARK_SHARE = 0.55  # of a row; in darker cells the counts are white


def confusion_matrix_figure(report: ClassificationReport, path: Path, title: str = "") -> None:
    """Draw a confusion matrix with counts, each cell coloured by its share of the row's texts.

    Args:
        report: The report; its labels are the rows, its predictions the columns.
        path: The file to write: `.png`, `.svg` or `.pdf`.
        title: A title above the accuracy and the macro-F1, which are always shown.

    Raises:
        MissingPackageError: matplotlib is not installed.
        UserError: the path has another suffix.
        DiskError: the file cannot be written.
    """
    side = min(max(CELL_INCHES * len(report.names), SMALLEST_SIDE), LARGEST_SIDE)
    with saved_figure(path, side + 2.6, side + 1.9) as figure:
        _draw_confusion_matrix(figure, report, side, title)


@contextmanager
def saved_figure(path: Path, width: float, height: float) -> Iterator[Any]:
    """Yield a matplotlib figure of a size in inches; it is written to `path` at the end of the `with` block.

    Raises:
        MissingPackageError: matplotlib is not installed.
        UserError: the path's suffix is not in `SUFFIXES`.
        DiskError: the file cannot be written; an earlier one is intact.
    """
    check_can_be_drawn(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # An explicit canvas, without pyplot's global state, works without a screen and in a notebook.
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    yield figure
    drawn = BytesIO()
    with warnings.catch_warnings():
        # A character that no font has is drawn as a box, which needs no warning.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        _take_missing_letters_from_other_fonts(figure)
        figure.savefig(drawn, format=path.suffix[1:].lower(), dpi=DOTS_PER_INCH)
    write_file(path, drawn.getvalue())


def _take_missing_letters_from_other_fonts(figure: Any) -> None:
    """Let the figure's texts take letters that their font lacks, such as Chinese ones, from other installed fonts."""
    from matplotlib.font_manager import findfont
    from matplotlib.text import Text

    figure.draw_without_rendering()  # the labels of an axis get their texts only now
    texts = figure.findobj(Text)
    wanted = {ord(character) for text in texts for character in text.get_text() if character.isprintable()}
    own = {findfont(text.get_fontproperties()) for text in texts}
    others = _fonts_with(wanted.difference(*map(_letters_of, own)))
    for text in texts if others else ():
        text.set_fontfamily([*text.get_fontfamily(), *others])


def _fonts_with(missing: set[int]) -> list[str]:
    """Return the names of installed fonts that have the missing letters between them, if there are any."""
    if not missing:
        return []
    from matplotlib.font_manager import findSystemFonts, fontManager

    for path in set(findSystemFonts()) - {font.fname for font in fontManager.ttflist}:
        with suppress(RuntimeError, OSError):  # a damaged font
            fontManager.addfont(path)  # installed since matplotlib listed them
    found: list[str] = []
    for font in fontManager.ttflist:
        if font.name == LAST_RESORT:
            continue
        with suppress(RuntimeError, OSError):  # a damaged font, or one removed since matplotlib listed it
            if not missing.isdisjoint(letters := _letters_of(font.fname)):
                found.append(font.name)
                missing = missing - letters
    return found


@cache
def _letters_of(font: str) -> Set[int]:
    from matplotlib.ft2font import FT2Font

    return FT2Font(font).get_charmap().keys()


def _draw_confusion_matrix(figure: Any, report: ClassificationReport, side: float, title: str) -> None:
    from matplotlib.ticker import PercentFormatter

    n_classes = len(report.names)
    n_of_row = report.confusion.sum(1, keepdims=True)
    shares = report.confusion / n_of_row.clip(min=1)
    axes = figure.subplots()
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    names = [letters(shortened(name, LONGEST_NAME)) for name in report.names]
    size = min(LABEL_POINTS, 72 * side / n_classes)  # no taller than a row
    axes.set_yticks(range(n_classes), names, fontsize=size)
    axes.set_xticks(range(n_classes), names, fontsize=size, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_xlabel("prediction")
    axes.set_ylabel("label")
    axes.set_xticks([i - 0.5 for i in range(1, n_classes)], minor=True)
    axes.set_yticks([i - 0.5 for i in range(1, n_classes)], minor=True)
    axes.grid(which="minor", color="#e4e8ee", linewidth=0.6)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)
    if n_classes <= MOST_CELLS_WITH_COUNTS:
        size = LABEL_POINTS - 1 if n_classes <= 12 else LABEL_POINTS - 3
        for (row, column), count in _counts(report):
            colour = "white" if shares[row, column] > DARK_SHARE else "#1f2a38"
            axes.text(column, row, f"{count:,}", ha="center", va="center", fontsize=size, color=colour)
    bar = figure.colorbar(image, ax=axes, format=PercentFormatter(1.0), shrink=0.8, aspect=30, pad=0.02)
    bar.set_label("share of the label's texts")
    bar.outline.set_visible(False)
    scores = f"accuracy {report.accuracy:.1%} of {report.n:,}, macro-F1 {report.macro_f1:.3f}"
    axes.set_title(f"{letters(title)}\n{scores}" if title else scores, fontsize=11)


def check_can_be_drawn(path: Path) -> None:
    """Check that a figure can be drawn, before what it shows is computed.

    Raises:
        UserError: the path's suffix is not in `SUFFIXES`.
        MissingPackageError: matplotlib is not installed.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(
            f"{path}: a figure is written as {', '.join(SUFFIXES)}: end the name with one of them"
        )
    with needs_extra("figures", "a figure needs matplotlib"):
        import matplotlib  # noqa: F401


def _counts(report: ClassificationReport) -> list[tuple[tuple[int, int], int]]:
    counts = enumerate(report.confusion.tolist())
    return [((row, column), n) for row, line in counts for column, n in enumerate(line) if n]


def letters(text: str) -> str:
    """Escape dollar signs, between which matplotlib would read a formula."""
    return text.replace("$", r"\$")
