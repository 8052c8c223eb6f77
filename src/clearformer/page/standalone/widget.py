"""The notebook widget of a view: the page's modules in the browser, the lens in the kernel, anywidget in between."""

import json
import logging
import re
from functools import cache
from typing import Any

import anywidget
import traitlets

from clearformer.errors import ClearformerError, UserError, shown
from clearformer.lens import Readings, Shown
from clearformer.page.live import news
from clearformer.page.opened import OpenedRuns
from clearformer.page.selection import Selection, read_selection
from clearformer.page.standalone.modules import bundled, styles
from clearformer.page.views import View, find_view
from clearformer.page.wire import encode
from clearformer.run import Run

FAILED = "this view failed; the traceback is in the notebook's log"

logger = logging.getLogger(__name__)


class ViewWidget(anywidget.AnyWidget):
    """One view of a run, displayed when it is the last value of a notebook cell.

    Whenever the selection changes, in the browser or by `select`, the kernel computes the view and updates `found`.

    Attributes:
        run: The run.
        found: The lens's result for the current selection; None if it cannot be shown.
        selection: The current selection, by the fields of the page's selection.
        error: Why the selection cannot be shown, in one line; empty if it can.
    """

    _esm = bundled("notebook.js")
    view = traitlets.Unicode().tag(sync=True)
    title = traitlets.Unicode().tag(sync=True)
    about = traitlets.Unicode().tag(sync=True)
    uses = traitlets.List(traitlets.Unicode()).tag(sync=True)
    stylesheet = traitlets.Unicode().tag(sync=True)
    selection = traitlets.Dict().tag(sync=True)
    answer = traitlets.Bytes().tag(sync=True)
    asked = traitlets.Dict().tag(sync=True)  # the selection that the answer is of
    error = traitlets.Unicode().tag(sync=True)
    answered = traitlets.Int().tag(sync=True)

    def __init__(
        self, run: Run, view: str, selection: Selection, other: Run | None = None, device: str = "auto"
    ) -> None:
        self.run, self.found, self._key = run, None, None
        runs = [run] if other is None or other.name == run.name else [run, other]
        self._opened, self._readings = OpenedRuns(runs, device), Readings()
        if other is not None and other not in runs:
            self._opened.hold(other)
        shown_view = find_view(view, run)
        super().__init__(
            view=view,
            title=shown_view.title,
            about=shown_view.about,
            uses=shown_view.fields,
            stylesheet=stylesheet(),
            selection=plain_selection(selection),
        )
        self.on_msg(self._reply)

    def select(self, **fields: Any) -> "ViewWidget":
        """Change the given fields of the selection; all others stay.

        Raises:
            UserError: a field is unknown, or one that the view uses is out of range or does not fit the text.
        """
        before = self.selection
        self.selection = plain_selection(read_selection(before | fields))
        if refused := self.error:
            self.selection = before
            raise UserError(refused)
        return self

    @traitlets.observe("selection")
    def _compute(self, _: Any) -> None:
        """Compute the view if a field that it depends on has changed, and send it to the browser."""
        found: Shown | None = None
        answer, error = b"", ""
        try:
            selection = read_selection(self.selection)
            view = find_view(self.view, self.run)
            key = [getattr(selection, field) for field in view.fields]
            if key == self._key:
                return
            with self._readings.in_use():
                run, other = self._runs(view, selection)
                told = view.answer(run, selection, other)
            found, answer = told["found"], encode(told)
        except ClearformerError as refused:
            key, error = None, str(refused)
        except Exception:
            logger.exception("the view %s failed", self.view)
            key, error = None, FAILED
        self._key, self.found = key, found
        with self.hold_sync():
            if answer:
                self.answer, self.asked = answer, dict(self.selection)
            self.error = error
            self.answered += 1

    def _reply(self, _: Any, question: Any, buffers: Any) -> None:
        """Answer another request of the browser: for another view, a picture, or new metrics."""
        number = question.get("id") if isinstance(question, dict) else None
        try:
            self.send({"id": number}, buffers=[self._answer(question)])
        except ClearformerError as refused:
            self.send({"id": number, "error": str(refused)})
        except Exception:
            logger.exception("a question of the view %s failed", self.view)
            self.send({"id": number, "error": FAILED})

    def _answer(self, question: dict[str, Any]) -> bytes:
        if question["kind"] == "metrics":
            run = self._opened.get(str(question["run"]))
            return encode(news(run.folder, int(question["cursor"])))
        if question["kind"] not in ("view", "picture"):
            raise UserError(f"a widget asks for a view, a picture or metrics; got {shown(question['kind'])}")
        selection = read_selection(question["selection"])
        view = find_view(question["view"], self.run)
        run, other = self._runs(view, selection)
        if question["kind"] == "picture":
            return view.picture(run, selection, question["picture"], other)
        with self._readings.in_use():
            return encode(view.answer(run, selection, other))

    def _runs(self, view: View, selection: Selection) -> tuple[Run, Run | None]:
        """Return the run at the selected checkpoint, and the second run."""
        return self._opened.get(selection.run, selection.checkpoint), self._opened.beside(view, selection)


def plain_selection(selection: Selection) -> dict[str, Any]:
    """Return a selection as JSON values, with lists for tuples, so that it compares equal after a round trip."""
    return json.loads(selection.model_dump_json())


DARK = re.compile(r"@media \(prefers-color-scheme: dark\) \{\n?((?:[^{}]*\{[^{}]*\})*)\s*\}")
RULE = re.compile(r"([^{}]+)(\{[^{}]*\})")
WIDTH = re.compile(r"@media (?=\((?:min|max)-width)")


@cache
def stylesheet() -> str:
    """Adapt the page's styles to a shadow DOM: `:root` becomes the host, `body` an element, the window its container.

    Dark mode follows the notebook, not the browser.
    """
    in_dark = DARK.sub(
        lambda found: "".join(f"{_when_dark(each[1])} {each[2]}\n" for each in RULE.finditer(found[1])),
        styles(),
    )
    rooted = re.sub(r"(?m)^(\s*):root\b", r"\1:host", in_dark)
    of_body = re.sub(r"(?m)^body \{", ".notebook {", rooted)
    return f"{WIDTH.sub('@container ', of_body)}\n{OWN}"


def _when_dark(selectors: str) -> str:
    selectors = selectors.strip()
    return ":host(.is-dark)" if selectors == ":root" else f":host(.is-dark) :is({selectors})"


OWN = """\
:host { all: initial; display: block; container-type: inline-size; color-scheme: light; }
:host(.is-dark) { color-scheme: dark; }
.notebook { background: none; }
.notebook .view { min-height: 0; }
"""
