"""The whole page of one selection as one file: it works from disk, its numbers stand in it, and nothing is asked for.

The numbers are blocks of packed data in base64, so that no text of a model or a user can end one. The file carries its
own policy: its one script and its one style sheet by their hashes, and no request to anywhere.
"""

import base64
import gzip
import hashlib
from collections.abc import Iterator, Mapping
from functools import cache
from html import escape
from os import PathLike
from pathlib import Path
from typing import Any

from clearformer.config import resolve
from clearformer.errors import ClearformerError, MissingPackageError, RunError, UserError, shortened, shown
from clearformer.files import user_path, write_file
from clearformer.lens import AttentionOverview, BlockNumbers, Difference, Readings
from clearformer.lens.patterns.attention import layer_of
from clearformer.page.beginning import first_selection
from clearformer.page.live import whole_lines
from clearformer.page.opened import Shelf
from clearformer.page.selection import Selection
from clearformer.page.standalone.modules import STATIC, bundled
from clearformer.page.views import VIEWS, View, beside_of, find_view, opening, step_of
from clearformer.page.wire import encode
from clearformer.run import Run, load

ENDING = ".html"
MOST_BYTES = 64 * 2**20  # of a page
MEGABYTE = 2**20
MOST_TOKENS = 128  # of a text, each of which an exported page can take apart
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

    It shows every view of what is selected, with all numbers; with `versus=` another run or its name,
    as the difference of the two. What needs the model (another text, position or edit) is
    switched off there, and said. Of the numbers on the way through a block it explains those at the selected position,
    one of each matrix.

    Args:
        run: A run, or its name.
        file: A new one, whose name ends in `.html`.
        text: What is read; where not given, the beginning of the run's held-out text.
        checkpoint: `latest`, `best` or a step, of a run that is given by its name.
        device: Of a model that is opened by name.
        pictures: Whether each view can be saved as SVG and PNG there: they are drawn now, which takes some seconds, and
            are left out where matplotlib is not installed.
        **selected: Other fields of the page's selection, such as `position`, `layer`, `head`, `target` and `foil`.

    Returns:
        Where it was written.

    Raises:
        UserError: the file is there already or has another ending, a field is unknown or does not fit, or the page
            would be too large to be opened.
        RunError: there is no such run.
        DiskError: it cannot be written.
    """
    place = new_page(file)
    opened = run if isinstance(run, Run) else load(run, checkpoint, device)
    other = open_beside(selected, device)
    begun = first_selection(opened, text, other).model_dump()
    with Readings().in_use():
        content = one_file(opened, resolve(Selection, begun | selected), other, pictures)
    write_file(place, content)
    return place


def open_beside(selected: dict[str, Any], device: str) -> Run | None:
    """The run beside, at its checkpoint, where one is named; `selected` then holds its name.

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
    other = load(versus, at, device)
    selected["versus"] = other.name
    return other


def new_page(file: str | PathLike[str]) -> Path:
    """The path of a page that is to be written.

    Raises:
        UserError: something is there already, or the name has another ending.
    """
    place = user_path(file)
    if place.suffix.lower() != ENDING:
        raise UserError(f"a page is written to a file that ends in {ENDING}; got {shown(str(file))}")
    if place.exists():
        raise UserError(f"{place} exists; choose another name, or delete it")
    return place


def one_file(run: Run, selection: Selection, other: Run | None = None, pictures: bool = True) -> bytes:
    """The page of a selection as an HTML file; of two runs, their difference.

    Raises:
        UserError: the selection fits no text of the run, or the page would be too large.
    """
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


def at_its_place(run: Run, selection: Selection) -> Selection:
    """The selection with its position counted from the beginning, as the page counts what is chosen there.

    Raises:
        UserError: the text cannot be read.
    """
    n = len(find_view("tokens", run).call(run, selection).tokens)  # type: ignore[attr-defined]
    return selection.replace(
        position=selection.position + n if selection.position < 0 else selection.position
    )


def answers_of(
    run: Run, selection: Selection, other: Run | None = None
) -> Iterator[tuple[str, Selection, dict[str, Any]]]:
    """Each view with the selection that it is of; in place of one that cannot be had, why, in one line."""
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
    """Whether a page of these runs has a view."""
    return view.fits(run) and not (view.is_of_two and other is None)


def plain_result(found: Any) -> Any:
    """The part that one run's view would hold: of a difference, the changes."""
    return found.changes if isinstance(found, Difference) else found


def cells_of(found: Mapping[str, Any], selection: Selection) -> Iterator[Selection]:
    """The numbers that the page explains: the one that is inspected, and of each matrix the first at the position."""
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
    """All heads, whichever is selected."""
    overview: AttentionOverview | None = found.get("attention")
    if overview is None:
        return
    for name in overview.patterns:
        part = (
            "cross_attn" if ".cross_attn." in name else "encoder" if name.startswith("encoder_") else "attn"
        )
        for head in overview.heads:
            yield selection.replace(layer=layer_of(name), part=part, head=head)


def as_selected(_: Mapping[str, Any], selection: Selection) -> Iterator[Selection]:
    """The present selection alone."""
    yield selection


def tokens_of(found: Mapping[str, Any], selection: Selection) -> Iterator[Selection]:
    """Each token of a text that is not long; of a long one the selected."""
    n = len(found["tokens"].tokens)
    for position in range(n) if n <= MOST_TOKENS else [selection.position]:
        yield selection.replace(position=position)


def nothing(_: Mapping[str, Any], __: Selection) -> Iterator[Selection]:
    """None: what it would hold is a part of what another view holds whole."""
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
"""Of each view that is opened beside others: the selections of which a page holds it, by what the others found."""


HELD = (("pattern", "position"), ("pattern", "key"))
"""Fields that change nothing in an exported view: a head is whole, or of a long text stays at the exported place."""


def _answered(run: Run, view: str, selection: Selection, other: Run | None) -> dict[str, Any]:
    if VIEWS[view].is_long:
        return {
            "error": f"{VIEWS[view].title}: this takes long, and is not part of an exported page; open it live"
        }
    try:
        return VIEWS[view].whole.answer(run, selection, beside_of(VIEWS[view], run, other))
    except ClearformerError as error:
        return {"error": str(error)}


def picture_of(view: View, answer: Mapping[str, Any]) -> str | None:
    """A view as SVG; None of one that has no place of its own or is not there, and without matplotlib."""
    if view.beside or "found" not in answer:
        return None
    try:
        return view.drawn(answer["found"], "svg").decode()
    except MissingPackageError:
        return None


def recorded(run: Run) -> list[Any]:
    """The lines of a run's metrics, as far as they are whole; none of a run without a folder."""
    try:
        path = run.folder.metrics_file
    except RunError:
        return []
    return whole_lines(path, 0)[0] if path.exists() else []


def about(run: Run, selection: Selection, other: Run | None) -> str:
    """A few sentences on an exported page."""
    beside = f", beside the run {step_of(other)}" if other is not None else ""
    return (
        f"This is an exported page of the run {run.name} at step {run.step:,}{beside}, reading "
        f"“{shortened(selection.text, 60)}”. Its numbers are the model's own. Another text, target, edit or draw "
        "needs the model and is switched off here; a view of one position or one block stays with the one that was "
        "exported."
    )


def as_python(run: Run, selection: Selection, other: Run | None) -> str:
    """The lines that open the same page live."""
    is_second = other is not None and other.name != run.name
    opened = [opening(run), *([opening(other, "other")] if other is not None and is_second else [])]
    lines = "\n".join(opened)
    runs = "run, other" if is_second else "run"
    return f"import clearformer as cf\n\n{lines}\ncf.look({runs}, text={selection.text!r})\n"


def check_size(size: int, selection: Selection) -> None:
    """Raise UserError where a page is larger than browsers open well."""
    if size > MOST_BYTES:
        raise UserError(
            f"text: a page of its {len(selection.text):,} characters is larger than {MOST_BYTES // MEGABYTE} MB, the "
            "most that is exported; give a shorter one"
        )


def _block(name: str, value: Any) -> str:
    packed = base64.b64encode(gzip.compress(encode(value), mtime=0)).decode()
    return f'<script type="{DATA}" id="{name}">{packed}</script>'


def _page(title: str, blocks: list[str]) -> str:
    style, script = _style(), bundled("exported.js")
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


@cache
def _style() -> str:
    return "\n".join(
        (STATIC / name).read_text(encoding="utf-8") for name in ("vendor/uplot.css", "style.css")
    )


def _hashed(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
