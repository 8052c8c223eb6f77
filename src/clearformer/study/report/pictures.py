"""Figures as SVG: with real text, a title and a description, no requests, and the same bytes for the same values."""

import io
import re
import warnings
from html import escape
from typing import Any

from clearformer.errors import needs_extra
from clearformer.study.figures.drawing import COLOURS, FONT, GRID, INK, LABEL_COLOURS, MUTED, PAPER
from clearformer.study.outcomes import Outcome
from clearformer.study.study import Figure

FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
MONOSPACE = "ui-monospace, 'SF Mono', Menlo, Consolas, monospace"
VARIABLES = {
    **{PAPER: "paper", INK: "ink", MUTED: "muted", GRID: "grid"},
    **{colour: f"series-{i}" for i, colour in enumerate(COLOURS)},
    **{colour: f"label-{i}" for i, colour in enumerate(LABEL_COLOURS)},
}
"""The CSS variable of every colour of the style."""
PIXELS_PER_POINT = 96 / 72
SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": FONT,
    "axes.unicode_minus": True,
    "path.simplify": True,
    "mathtext.default": "regular",
}


def svg_of(figure: Figure, outcome: Outcome, name: str) -> str:
    """Return a figure as the text of an SVG.

    Args:
        figure: The figure.
        outcome: The outcome to draw.
        name: A word unique in the page that will contain it, used as the prefix of ids.

    Raises:
        MissingPackageError: matplotlib is not installed.
    """
    with needs_extra("figures", "a figure needs matplotlib"):
        from matplotlib import rc_context
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure as Canvas
    with rc_context({**SETTINGS, "svg.hashsalt": name}), warnings.catch_warnings():
        # A character that the font lacks is measured as a box; browsers have other fonts that include it.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        canvas = Canvas(figsize=figure.inches(outcome), dpi=72)
        FigureCanvasSVG(canvas)
        figure.draw(canvas, outcome)
        written = io.StringIO()
        canvas.savefig(written, format="svg", facecolor=PAPER, metadata={"Date": None, "Creator": None})
    return tidy(written.getvalue(), name, figure.title, " ".join(filter(None, in_words(figure, outcome))))


def is_there(figure: Figure, outcome: Outcome) -> bool:
    """Whether a figure has anything to show; for figures without `is_there`, whether anything was measured."""
    says = getattr(figure, "is_there", None)
    return bool(outcome.labels) if says is None else says(outcome)


def in_words(figure: Figure, outcome: Outcome) -> tuple[str, str]:
    """Return a figure's note and its summary; empty where it has none."""
    note, told = (
        getattr(figure, method)(outcome) if hasattr(figure, method) else "" for method in ("note", "summary")
    )
    return note, told


def tidy(svg: str, name: str, title: str, told: str) -> str:
    """Make matplotlib's SVG small and accessible, and remove what is not needed."""
    _, _, body = svg.partition("<svg ")
    opening, _, body = body.partition(">")
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)
    body = with_own_ids(body, name)
    body = re.sub(r"<[^>]*>", lambda tag: re.sub(r"-?\d+\.\d{3,}", _in_hundredths, tag[0]), body)
    body = with_fonts(body)
    body = re.sub(r">\s+<", ">\n<", body)
    found = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', opening)
    assert found is not None
    width, height = (float(size) for size in found.groups())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="0 0 {width:g} {height:g}" width="{width * PIXELS_PER_POINT:.0f}" '
        f'height="{height * PIXELS_PER_POINT:.0f}" role="img" aria-labelledby="{name}-title {name}-desc">\n'
        f'<title id="{name}-title">{escape(title)}</title>\n<desc id="{name}-desc">{escape(told)}</desc>'
        f"{body.rstrip()}\n"
    )


def _in_hundredths(found: re.Match[str]) -> str:
    return f"{float(found[0]):.2f}".rstrip("0").rstrip(".")


def with_own_ids(body: str, name: str) -> str:
    """Remove ids that nothing refers to, and prefix the others with a name."""
    used = sorted(set(re.findall(r'(?:url\(|href=")#([\w-]+)', body)))
    body = re.sub(r' id="([^"]+)"', lambda found: found[0] if found[1] in used else "", body)
    for i, each in enumerate(used):
        body = re.sub(rf'(?<=["#]){re.escape(each)}(?=[")])', f"{name}-{i}", body)
    return re.sub(r"<defs>\s*</defs>", "", body)


def with_variables(body: str) -> str:
    """Replace the style's colours in an SVG by CSS variables, so that a page can have a dark mode."""
    for colour, name in VARIABLES.items():
        body = re.sub(rf"(?<=: ){colour}\b", f"var(--{name}, {colour})", body)
    return body


def with_fonts(body: str) -> str:
    """Replace the font used for layout by fonts of the reader's system."""
    body = body.replace(f"'{FONT}', sans-serif", FONTS).replace(f"'{FONT}'", FONTS)
    return re.sub(r"('DejaVu Sans Mono'[^;\"]*|(?<=px )monospace)", MONOSPACE, body)
