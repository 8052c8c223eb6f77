"""A view of the page in a notebook."""

from pathlib import Path
from typing import Any

from clearformer.config import resolve
from clearformer.errors import UserError, needs_extra
from clearformer.page.beginning import first_selection
from clearformer.page.look import check_names
from clearformer.page.selection import Selection
from clearformer.page.standalone.export import open_at, open_beside
from clearformer.page.views import find_view
from clearformer.run import Run
from clearformer.runs.folders import folder_of


def show(
    run: Run | str | Path,
    text: str | None = None,
    view: str = "attention",
    *,
    checkpoint: str | int = "latest",
    device: str = "auto",
    **selected: Any,
) -> Any:
    """Return a widget that shows a view of the page in a notebook; see `lens.show`.

    Raises:
        UserError: there is no such view of the run, a field of the selection is unknown, one that the view uses is out
            of range or does not fit the text, the run is open at another checkpoint, or both runs have the same name.
        RunError: there is no such run.
        MissingPackageError: anywidget is not installed.
    """
    with needs_extra("notebook", "a view in a notebook needs anywidget"):
        from clearformer.page.standalone.widget import ViewWidget
    opened = open_at(run, checkpoint, device)
    if find_view(view, opened).beside:
        raise UserError(f"view: {view!r} is part of another view; choose a main view")
    other = open_beside(selected, device)
    if other is not None and other is not opened and None in (folder_of(opened), folder_of(other)):
        check_names([opened, other])  # of a run in a folder, the second may be another checkpoint
    if other is not None and other.name == opened.name:
        selected["versus_checkpoint"] = str(other.step)  # its latest may not be the one that is open here
    begun = first_selection(opened, text, other).model_dump()
    widget = ViewWidget(opened, view, resolve(Selection, begun | selected), other, device)
    if widget.error:
        raise UserError(widget.error)
    return widget
