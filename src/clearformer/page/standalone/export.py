"""The whole page for one selection as a single file that works from disk, contains its numbers, and requests nothing.

The numbers are compressed blocks in base64, so that no text of a model or a user can close one. The file has its own
content security policy, which allows its one script and one style sheet by their hashes, and no requests.
"""

import base64
import gzip
import hashlib
from collections.abc import Iterator, Mapping
from html import escape
from os import PathLike
from pathlib import Path
from typing import Any

from clearformer.config import resolve
from clearformer.errors import ClearformerError, MissingPackageError, RunError, UserError, shortened, shown
from clearformer.files import user_path, write_file
from clearformer.lens import AttentionOverview, BlockNumbers, Difference, Readings, read
from clearformer.lens.activations import check_part, prefix_of
from clearformer.lens.patterns.attention import checked_number, layer_of
from clearformer.page.beginning import first_selection
from clearformer.page.opened import Shelf
from clearformer.page.selection import Selection
from clearformer.page.standalone.modules import bundled, styles
from clearformer.page.views import VIEWS, View, beside_of, find_view, opening_line, step_of
from clearformer.page.wire import encode
from clearformer.run import Run, load
from clearformer.runs.folders import check_open_at
from clearformer.training.store.folder import read_metrics

ENDING = ".html"
MOST_BYTES = 64 * 2**20  # of a page
MEGABYTE = 2**20
MOST_TOKENS = 128  # of a text whose tokens an exported page all explains
DATA = "application/vnd.clearformer.wire+gzip;base64"
PAGE = """\
<!doctype html>
<html lang="en">
  <head>
    <meta charset="utf-8" />
    <meta http-equiv="Content-Security-Policy" content="{policy}" />
    <meta name="viewport" content="width=device-width, initial-scale=1" />
    <meta name="generator" content="clearformer" />
    <title>{title}</title>
    <link rel="icon" href="data:," />
    <style>{style}</style>
  </head>
  <body>
    <div id="page"><p class="state">opening the page</p></div>
    <noscript><p class="state">This page draws itself by JavaScript, which is switched off here.</p></noscript>
{blocks}
    <script type="module">{script}</script>
  </body>
</html>
"""


def export_page(
    run: Run | str | Path,
    file: str | PathLike[str],
    *,
    text: str | None = None,
    checkpoint: str | int = "latest",
    device: str = "auto",
    pictures: bool = True,
    **selected: Any,
) -> Path:
    """Write the page of a run as one HTML file that opens in any browser, without a server or a network.

        cf.export_page("quick-pydoc", "lecture.html", text="To be or not", position=3, layer=1)

    The page shows every view of the selection but those that take long, with all numbers; with `versus=` a second run
    or its name, as the difference of the two. Controls that need the model (another text, position or edit) are
    switched off, and the page says so. Of the numbers inside a block it explains one of each matrix, at the selected
    position.

    Args:
        run: A run, or its name.
        file: A new file whose name ends in `.html`.
        text: The text to read; by default the beginning of the run's held-out text.
        checkpoint: `latest`, `best` or a step, of a run given by its name.
        device: The device of a model that is loaded by name.
        pictures: Whether the page can save views as SVG and PNG; they are drawn during the export, which takes some
            seconds, and left out if matplotlib is not installed.
        **selected: Other fields of the page's selection, such as `position`, `layer`, `head`, `target` and `foil`.

    Returns:
        The path of the file.

    Raises:
        UserError: the file exists or has another ending, a field is unknown or does not fit, or the page would be too
            large for a browser.
        RunError: there is no such run.
        DiskError: the file cannot be written.
    """
    place = new_page(file)
    opened = open_at(run, checkpoint, device)
    other = open_beside(selected, device)
    begun = first_selection(opened, text, other).model_dump()
    with Readings().in_use():
        content = one_file(opened, resolve(Selection, begun | selected), other, pictures)
    write_file(place, content)
    return place


def open_at(run: Run | str | Path, checkpoint: str | int, device: str) -> Run:
    """Return a run at a checkpoint; one that is open already must be so there.

    Raises:
        UserError: it is open at another.
        RunError, CheckpointError: there is no such run or checkpoint.
    """
    if not isinstance(run, Run):
        return load(run, checkpoint, device=device)
    check_open_at(run, checkpoint)
    return run


def open_beside(selected: dict[str, Any], device: str) -> Run | None:
    """Return the second run at its checkpoint, or None if none is named; writes its name into `selected`.

    Raises:
        RunError, CheckpointError: there is no such run or checkpoint.
    """
    versus = selected.get("versus") or None
    if versus is None:
        return None
    at = selected.get("versus_checkpoint") or "latest"
    if isinstance(versus, Run):
        selected |= {"versus": versus.name, "versus_checkpoint": str(versus.step)}
        return versus
    other = load(versus, at, device=device)
    selected["versus"] = other.name
    return other


def new_page(file: str | PathLike[str]) -> Path:
    """Return the path of a page to write.

    Raises:
        UserError: the path exists, or has another ending.
    """
    place = user_path(file)
    if place.suffix.lower() != ENDING:
        raise UserError(f"a page is written to a file that ends in {ENDING}; got {shown(str(file))}")
    if place.exists():
        raise UserError(f"{place} exists; choose another name, or delete it")
    return place


def one_file(run: Run, selection: Selection, other: Run | None = None, pictures: bool = True) -> bytes:
    """Return the page of a selection as an HTML file; with two runs, of their difference.

    Raises:
        UserError: the selection does not fit the run, or the page would be too large.
    """
    check_fits(run, selection)
    beside = {"versus": "" if other is None else other.name}
    placed = at_its_place(run, selection.replace(run=run.name, **beside))
    blocks: list[str] = []
    answers: list[dict[str, Any]] = []
    size = 0
    for view, chosen, answer in answers_of(run, placed, other):
        picture = picture_of(VIEWS[view], answer) if pictures else None
        added = [_block(f"answer-{len(answers)}", answer)]
        if picture is not None:
            added.append(_block(f"picture-{len(answers)}", picture))
        answers.append({"view": view, "selection": chosen.model_dump(), "is_drawn": picture is not None})
        blocks += added
        size += sum(map(len, added))
        check_size(size, selection)
    index = {
        "run": Shelf(run).card(),
        "first": placed.model_dump(),
        "uses": {
            name: [field for field in view.fields if (name, field) not in HELD]
            for name, view in VIEWS.items()
        },
        "answers": answers,
        "lines": {each.name: recorded(each) for each in (other, run) if each is not None},
        "about": about(run, placed, other),
        "python": as_python(run, placed, other),
    }
    blocks.append(_block("index", index))
    content = _page(f"{run.name} · clearformer", blocks).encode()
    check_size(len(content), selection)
    return content


def check_fits(run: Run, selection: Selection) -> None:
    """Raise UserError if the text has no such position, or the model no such part, layer, head, target or foil."""
    part, config = selection.part, run.model.config
    inputs = read(run, selection.text, **find_view("tokens", run).arguments(run, selection))
    inputs.position(selection.position, of_source=part == "encoder")
    check_part(run.model, part)
    checked_number("layer", selection.layer, len(run.model.stack(prefix_of(run.model, part)).blocks))
    checked_number("head", selection.head, config.attention.heads(config.d_model)[0])
    for name, chosen in (("target", selection.target), ("foil", selection.foil)):
        if chosen:
            inputs.output(name, chosen)


def at_its_place(run: Run, selection: Selection) -> Selection:
    """Return the selection with its position, key, layer and head counted from the first, as the page counts them.

    Raises:
        UserError: the model cannot read the text.
    """
    found, config = find_view("tokens", run).call(run, selection), run.model.config
    n = n_positions(found, selection.part)
    n_of = {
        "position": n,
        "key": n_positions(found, "encoder") if selection.part == "cross_attn" else n,
        "layer": len(run.model.stack(prefix_of(run.model, selection.part)).blocks),
        "head": config.attention.heads(config.d_model)[0],
    }
    chosen = {name: getattr(selection, name) for name in n_of}
    return selection.replace(**{name: at + n_of[name] if at < 0 else at for name, at in chosen.items()})


def n_positions(found: Any, part: str) -> int:
    """Return how many positions a part has, by a result with both texts: the encoder those of the source."""
    return len(found.source if part == "encoder" else found.tokens)


def answers_of(
    run: Run, selection: Selection, other: Run | None = None
) -> Iterator[tuple[str, Selection, dict[str, Any]]]:
    """Yield each view's name, selection and answer; a one-line error stands in for a view that cannot be computed."""
    found: dict[str, Any] = {}
    for name, view in VIEWS.items():
        if is_held(view, run, other) and not view.beside:
            answer = _answered(run, name, selection, other)
            found[name] = plain_result(answer.get("found"))
            yield name, selection, answer
    for name, chosen_of in BESIDE.items():
        for chosen in chosen_of(found, selection) if is_held(VIEWS[name], run, other) else ():
            yield name, chosen, _answered(run, name, chosen, other)


def is_held(view: View, run: Run, other: Run | None) -> bool:
    """Whether a page of these runs includes a view."""
    return view.fits(run) and not (view.is_of_two and other is None)


def plain_result(found: Any) -> Any:
    """Return a result in the form that a single run has: of a difference, the changes."""
    return found.changes if isinstance(found, Difference) else found


def cells_of(found: Mapping[str, Any], selection: Selection) -> Iterator[Selection]:
    """Yield the numbers to explain: the inspected one, and the first of each matrix at the selected position."""
    block: BlockNumbers | None = found["block"]
    if block is None:
        return
    places = [(selection.matrix, selection.row, selection.column)] if selection.matrix else []
    for array in block.arrays:
        rows = [int(row) for row in array.rows]
        of_tokens = array.row_axis != "text"
        row = block.position if of_tokens and block.position in rows else rows[0]
        places.append((array.name, row, int(array.columns[0])))
    for name, row, column in dict.fromkeys(places):
        yield selection.replace(matrix=name, row=row, column=column)


def heads_of(found: Mapping[str, Any], selection: Selection) -> Iterator[Selection]:
    """Yield every head, whichever is selected; a position beyond the text that a head reads is moved to its end."""
    overview: AttentionOverview | None = found.get("attention")
    if overview is None:
        return
    for name in overview.patterns:
        part = (
            "cross_attn" if ".cross_attn." in name else "encoder" if name.startswith("encoder_") else "attn"
        )
        position = min(selection.position, n_positions(overview, part) - 1)
        for head in overview.heads:
            yield selection.replace(layer=layer_of(name), part=part, head=head, position=position)


def as_selected(_: Mapping[str, Any], selection: Selection) -> Iterator[Selection]:
    """Yield the selection itself."""
    yield selection


def tokens_of(found: Mapping[str, Any], selection: Selection) -> Iterator[Selection]:
    """Yield each token of a text; of one longer than `MOST_TOKENS`, only the selected token."""
    if found["tokens"] is None:
        return
    n = len(found["tokens"].tokens)
    for position in range(n) if n <= MOST_TOKENS else [selection.position]:
        yield selection.replace(position=position)


def nothing(_: Mapping[str, Any], __: Selection) -> Iterator[Selection]:
    """Yield nothing: another exported view already contains all numbers of this one."""
    yield from ()


BESIDE = {
    "matrix": nothing,
    "vocabulary": nothing,
    "cell": cells_of,
    "pieces": tokens_of,
    "pattern": heads_of,
    "events": as_selected,
    "matched": as_selected,
}
"""For each view that opens inside another: the selections to export it for, given the results of the other views."""


HELD = (("pattern", "position"), ("pattern", "key"))
"""Fields that change nothing in an exported view: a head is exported whole, or if the text is long, at one place."""


def _answered(run: Run, view: str, selection: Selection, other: Run | None) -> dict[str, Any]:
    if VIEWS[view].is_long:
        return {"error": f"{VIEWS[view].title}: takes too long for an exported page; open the page live"}
    try:
        return VIEWS[view].whole.answer(run, selection, beside_of(VIEWS[view], run, other))
    except ClearformerError as error:
        return {"error": str(error)}


def picture_of(view: View, answer: Mapping[str, Any]) -> str | None:
    """Return a view as SVG; None if it opens inside another, has no result, or matplotlib is not installed."""
    if view.beside or "found" not in answer:
        return None
    try:
        return view.drawn(answer["found"], "svg").decode()
    except MissingPackageError:
        return None


def recorded(run: Run) -> list[Any]:
    """Return the complete lines of a run's metrics.

    Return none for a run without a folder, or if a line is damaged, which the view `training` reports.
    """
    try:
        return read_metrics(run.folder.metrics_file)
    except RunError:
        return []


def about(run: Run, selection: Selection, other: Run | None) -> str:
    """Return the sentences that introduce an exported page."""
    beside = f", compared with the run {step_of(other)}" if other is not None else ""
    return (
        f"This is an exported page of the run {step_of(run)}{beside}, reading "
        f"“{shortened(selection.text, 60)}”. Its numbers are the model's own. Another text, target, edit or draw "
        "needs the model and is switched off here; a view of one position or one block keeps the exported one."
    )


def as_python(run: Run, selection: Selection, other: Run | None) -> str:
    """Return the lines of Python that open the same page live."""
    is_second = other is not None and other.name != run.name
    lines = [opening_line(run), *([opening_line(other, "other")] if other is not None and is_second else [])]
    runs = "run, other" if is_second else "run"
    called = f"cf.look({runs}, text={selection.text!r})"
    if other is not None and not is_second:
        called += f"\n# then choose step {other.step} under “Compare with”"
    return "\n".join(["import clearformer as cf", "", *lines, called, ""])


def check_size(size: int, selection: Selection) -> None:
    """Raise UserError if a page is too large for browsers to open well."""
    if size > MOST_BYTES:
        raise UserError(
            f"text: a page of its {len(selection.text):,} characters exceeds {MOST_BYTES // MEGABYTE} MB, the "
            "limit of an exported page; give a shorter text"
        )


def _block(name: str, value: Any) -> str:
    packed = base64.b64encode(gzip.compress(encode(value), mtime=0)).decode()
    return f'<script type="{DATA}" id="{name}">{packed}</script>'


def _page(title: str, blocks: list[str]) -> str:
    style, script = styles(), bundled("exported.js")
    for text, end in ((style, "</style"), (script, "</script"), (script, "<!--")):
        assert end not in text.lower(), f"{end} stands in what the page is made of"
    policy = (
        f"default-src 'none'; script-src {_hashed(script)}; style-src {_hashed(style)}; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    return PAGE.format(
        policy=policy,
        title=escape(title),
        style=style,
        blocks="\n".join(blocks),
        script=script,
    )


def _hashed(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
