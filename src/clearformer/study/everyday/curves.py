"""Training and held-out curves of runs over steps, tokens or seconds, as values, as a figure, or as text."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Literal, get_args

from clearformer.errors import UserError, did_you_mean, shown
from clearformer.evaluation.figures import letters, saved_figure
from clearformer.files import user_path
from clearformer.results import Result
from clearformer.runs.folders import find_run, name_of
from clearformer.study.everyday.comparison import caveats_between, lines_of
from clearformer.study.everyday.text_plot import Line, text_plot
from clearformer.study.figures.drawing import COLOURS, number_ticks
from clearformer.study.measures.losses import HELD_OUT, SECONDS, STEP, TOKENS, TRAINING, curve
from clearformer.training.objectives import loss_unit
from clearformer.training.store.folder import RunFolder

Over = Literal["steps", "tokens", "seconds"]
COLUMNS: dict[str, int] = {"steps": STEP, "tokens": TOKENS, "seconds": SECONDS}

INK = "#444444"
DASHES = ("-", "--", ":", "-.")  # where there are more runs than colours
WIDTH, HEIGHT = 8.0, 4.5  # inches
LONGEST_LABEL = 24  # characters


@dataclass(frozen=True, repr=False, eq=False)
class RunCurve(Result):
    """The curves of one run.

    Attributes:
        run: Its name.
        training: Rows of x and the mean training loss since the previous row.
        held_out: Rows of x and the held-out loss.
    """

    run: str
    training: list[list[float]]
    held_out: list[list[float]]


@dataclass(frozen=True, repr=False, eq=False)
class Curves(Result):
    """The curves of some runs, as `curves` returns them.

    Attributes:
        x: The horizontal axis: steps, tokens, or seconds of training.
        unit: What a loss counts: nats a token, or of classifiers nats a text; nats where the runs are of both kinds.
        runs: The runs.
        caveats: A sentence for each reason not to compare their losses.
    """

    x: str
    unit: str
    runs: list[RunCurve]
    caveats: list[str] = field(default_factory=list)

    def text(self, width: int, height: int = 18, *, colours: bool = False) -> str:
        """Plot both kinds of curves as text, `width` columns wide, with each curve's name at its end."""
        panels = [
            text_plot(lines, width, height, title, self.x, colours=colours)
            for title, lines in self._panels()
            if lines
        ]
        return "\n\n".join(panels)

    def _panels(self) -> list[tuple[str, list[Line]]]:
        named = list(zip(labels_of(self.runs), self.runs, strict=True))
        if len(named) == 1:
            label, run = named[0]
            both = [Line("training", run.training), Line("held-out", run.held_out)]
            return [(f"{label}: loss in {self.unit}", [line for line in both if line.points])]
        training = [Line(label, run.training) for label, run in named]
        held_out = [Line(label, run.held_out) for label, run in named if run.held_out]
        return [(f"training loss in {self.unit}", training), (f"held-out loss in {self.unit}", held_out)]

    def figure(self, path: str | PathLike[str]) -> Path:
        """Draw the curves: training thin, held-out thick with points, one colour per run, named at the end.

        Raises:
            MissingPackageError: matplotlib is not installed.
            UserError: the path has another ending than .png, .svg or .pdf.
            DiskError: the file cannot be written.
        """
        file = user_path(path)
        with saved_figure(file, WIDTH, HEIGHT) as figure:
            draw(self, figure.subplots())
        return file


def curves(*runs: str | PathLike[str], over: Over = "steps") -> Curves:
    """Return the curves of runs.

    Args:
        *runs: Names of runs, or paths of their folders.
        over: `steps`, `tokens`, or `seconds` of training.

    Raises:
        RunError: there is no such run, or it has no metrics yet.
        UserError: `over` is none of these, or no run is named.
    """
    if over not in COLUMNS:
        raise UserError(
            f"x: one of {', '.join(get_args(Over))}; got {shown(over)}{did_you_mean(str(over), COLUMNS)}"
        )
    if not runs:
        raise UserError("plot: name the runs to draw")
    folders = [find_run(Path(run) if isinstance(run, PathLike) else run) for run in runs]
    each = [_of_run(folder, COLUMNS[over]) for folder in folders]
    unit = loss_unit(folder.read_config().train.objective for folder in folders)
    return Curves(over, unit, each, caveats_between(folders))


def _of_run(folder: RunFolder, column: int) -> RunCurve:
    rows: list[list[Any]] = curve(lines_of(folder))
    return RunCurve(
        name_of(folder),
        [[row[column], row[TRAINING]] for row in rows],
        [[row[column], row[HELD_OUT]] for row in rows if row[HELD_OUT] is not None],
    )


def labels_of(runs: Sequence[RunCurve]) -> list[str]:
    """Return short names of runs that tell them apart: the last part of each path, of a long one its beginning."""
    last = [Path(run.run).name for run in runs]
    short = [name if len(name) <= LONGEST_LABEL else f"{name[: LONGEST_LABEL - 1]}…" for name in last]
    return [
        run.run if last.count(name) > 1 else name if short.count(label) > 1 else label
        for run, name, label in zip(runs, last, short, strict=True)
    ]


def draw(curves: Curves, axes: Any) -> None:
    """Draw curves on matplotlib axes."""
    ends: list[tuple[list[float], str, str]] = []
    is_one = len(curves.runs) == 1
    for i, (run, label) in enumerate(zip(curves.runs, labels_of(curves.runs), strict=True)):
        colour, dashes = COLOURS[i % len(COLOURS)], DASHES[i // len(COLOURS) % len(DASHES)]
        alone = "o" if len(run.training) == 1 else None  # a line of one point would not be seen
        style = {"color": colour, "linestyle": dashes}
        axes.plot(*zip(*run.training, strict=True), **style, linewidth=0.8, alpha=0.6, marker=alone)
        if is_one or not run.held_out:
            ends.append((run.training[-1], "training" if is_one else label, colour))
        if run.held_out:
            axes.plot(*zip(*run.held_out, strict=True), **style, linewidth=2, marker="o", markersize=3)
            ends.append((run.held_out[-1], "held-out" if is_one else label, colour))
    axes.set_xlabel("seconds of training" if curves.x == "seconds" else curves.x, color=INK)
    axes.set_ylabel(f"loss, {curves.unit}", color=INK)
    title = labels_of(curves.runs)[0] if is_one else "held-out thick, training thin"
    axes.set_title(letters(title), loc="left", fontsize=9, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK, labelsize=8)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)
    number_ticks(axes.xaxis)
    name_at_ends(axes, ends)


def name_at_ends(axes: Any, ends: Sequence[tuple[list[float], str, str]]) -> None:
    """Write each curve's name next to its end, moved apart where two would overlap."""
    low, high = axes.get_ylim()
    apart, right = (high - low) * 0.045, max(x for (x, _), _, _ in ends)
    lowest = -float("inf")
    for (_, y), name, colour in sorted(ends, key=lambda end: end[0][1]):
        lowest = max(y, lowest + apart)
        axes.annotate(
            letters(name), (right, lowest), (6, 0), textcoords="offset points", va="center", fontsize=8, color=colour,
            annotation_clip=False,
        )  # fmt: skip
