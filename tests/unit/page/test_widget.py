"""A view in a notebook, seen from Python: what is selected is found, and what the browser asks is answered."""

import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import clearformer as cf
from clearformer import lens
from clearformer.errors import MissingPackageError, UserError
from clearformer.page import opened
from clearformer.page.views import views_of
from clearformer.page.wire import decode

from ..lens.test_embeddings import TEXT
from .conftest import FAMILIES
from .test_server import same


@pytest.fixture
def anywidget() -> Any:
    return pytest.importorskip("anywidget", reason="anywidget is not installed")


@pytest.fixture
def without_anywidget(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.delitem(sys.modules, "clearformer.page.standalone.widget", raising=False)
    yield
    sys.modules.pop("clearformer.page.standalone.widget", None)


def asked(widget: Any, **question: Any) -> tuple[Any, list[bytes]]:
    """What a widget answers a message of the browser."""
    sent = []
    widget.send = lambda content, buffers=(): sent.append((content, list(buffers)))
    widget._handle_custom_msg({"id": "7", **question}, [])
    [answer] = sent
    return answer


@pytest.mark.parametrize("family", FAMILIES)
def test_every_view_holds_the_numbers_of_its_lens(anywidget: Any, runs: dict[str, Any], family: str) -> None:
    run = runs[family]
    outputs = {"output": "the river"} if family == "encoder-decoder" else {}
    for name, view in views_of(run).items():
        if view.beside or view.is_long:
            continue
        widget = lens.show(run, TEXT, name, **outputs)
        assert isinstance(widget, anywidget.AnyWidget)
        assert (widget.error, widget.answered, widget.title) == ("", 1, view.title)
        answer = decode(widget.answer)
        scope: dict[str, Any] = {}
        exec(answer["python"], scope)  # noqa: S102  (our own snippet)
        same(answer["found"], scope["found"])
        same(answer["found"], widget.found)


def test_what_is_selected_is_found(anywidget: Any, runs: dict[str, Any]) -> None:
    run = runs["decoder"]
    widget = lens.show(run, TEXT, "ledger", position=2, foil="t")
    assert widget.found.logit == lens.ledger(run, TEXT, position=2, foil="t").logit
    widget.selection = widget.selection | {"position": 4}  # as the browser does
    assert widget.found.logit == lens.ledger(run, TEXT, position=4, foil="t").logit
    assert decode(widget.answer)["found"]["logit"] == widget.found.logit
    assert widget.select(foil=None) is widget
    assert widget.found.logit == lens.ledger(run, TEXT, position=4).logit
    before = widget.answered
    widget.select(layer=1)  # which the ledger does not change with
    assert (widget.answered, widget.selection["layer"]) == (before, 1)


def test_another_run_is_taken_away(anywidget: Any, runs: dict[str, Any], tmp_path: Any) -> None:
    run = runs["decoder"]
    other = cf.Run(cf.build(run.model.config), run.tokenizer).save(tmp_path / "other")
    widget = lens.show(run, TEXT, "ledger", versus=other)
    assert widget.error == ""
    assert widget.found.changes == lens.beside(lens.ledger, run, other, TEXT).changes
    [picture] = asked(widget, kind="picture", view="ledger", picture="svg", selection=widget.selection)[1]
    assert b"</svg>" in picture
    assert widget.select(versus="").found.logit == lens.ledger(run, TEXT).logit
    with pytest.raises(UserError, match="versus: this page does not show"):
        widget.select(versus="nobody")


def test_two_runs_of_one_name_are_told_apart_or_refused(anywidget: Any, runs: dict[str, Any]) -> None:
    run = cf.Run(runs["decoder"].model, runs["decoder"].tokenizer)
    other = cf.Run(cf.build(run.model.config), run.tokenizer)
    with pytest.raises(UserError, match="both runs are called model"):
        lens.show(run, TEXT, "ledger", versus=other)
    for each in (run, runs["decoder"]):
        assert lens.show(each, TEXT, "ledger", versus=each).found.changes.logit == 0


def test_a_checkpoint_is_opened_where_it_is_selected(anywidget: Any, runs: dict[str, Any]) -> None:
    widget = lens.show(runs["decoder"], TEXT, "ledger")
    assert widget.select(checkpoint="0").error == ""
    with pytest.raises(UserError, match="17"):
        widget.select(checkpoint="17")
    with pytest.raises(UserError, match="this page does not show 'another'"):
        widget.select(run="another")
    assert widget.selection["checkpoint"] == "0"


def test_another_checkpoint_is_opened_on_the_device_that_was_given(
    anywidget: Any, runs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = []

    def noted(path: Any, checkpoint: str, device: str) -> Any:
        devices.append(device)
        return cf.load(path, checkpoint, device=device)

    monkeypatch.setattr(opened, "load", noted)
    widget = lens.show(runs["decoder"], TEXT, "ledger", device="cpu")
    with pytest.raises(UserError, match="17"):
        widget.select(checkpoint="17")
    assert devices == ["cpu"]


def test_what_cannot_be_shown_is_said_in_one_line(anywidget: Any, runs: dict[str, Any]) -> None:
    widget = lens.show(runs["decoder"], TEXT, "ledger")
    found = widget.found
    with pytest.raises(UserError, match="position 4000 is beyond the text"):
        widget.select(position=4000)
    assert widget.selection["position"] == -1
    assert widget.found.to_dict() == found.to_dict()
    with pytest.raises(UserError, match="did you mean 'position'"):
        widget.select(positoin=3)
    widget.selection = widget.selection | {"target": "no such token"}
    assert "target: 'no such token' is not a token" in widget.error
    assert widget.found is None
    assert widget.answered == 4
    with pytest.raises(UserError, match="position 99 is beyond the text"):
        lens.show(runs["decoder"], TEXT, "ledger", position=99)
    with pytest.raises(UserError, match="foil: 'no such token' is not a token"):
        lens.show(runs["decoder"], TEXT, "ledger", foil="no such token")
    with pytest.raises(UserError, match="layer 9: there are 3 layers, 0 to 2"):
        lens.show(runs["decoder"], TEXT, "block", layer=9)
    with pytest.raises(UserError, match="there is no view 'legder'; did you mean 'ledger'"):
        lens.show(runs["decoder"], TEXT, "legder")
    with pytest.raises(UserError, match=r"there is no view \[0\]"):
        lens.show(runs["decoder"], TEXT, [0])  # type: ignore[arg-type]
    with pytest.raises(UserError, match="view: 'cell' is part of another view"):
        lens.show(runs["decoder"], TEXT, "cell")
    with pytest.raises(UserError, match="no such view"):
        lens.show(runs["encoder"], TEXT, "beams")


def test_a_view_that_fails_says_so_and_why_in_the_log(
    anywidget: Any, runs: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    widget = lens.show(runs["decoder"], TEXT, "ledger")
    monkeypatch.setattr(lens, "ledger", lambda *_, **__: 1 / 0)
    widget.selection = widget.selection | {"position": 0}
    assert "this view failed" in widget.error
    assert asked(widget, kind="view", view="ledger", selection=widget.selection)[0]["error"] == widget.error
    assert caplog.text.count("ZeroDivisionError") == 2


def test_the_browsers_questions_are_answered(anywidget: Any, runs: dict[str, Any]) -> None:
    run = runs["decoder"]
    widget = lens.show(run, TEXT, "block")
    chosen = widget.selection | {"matrix": "blocks.0.attn.hook_q", "row": 1, "column": 2}
    content, [number] = asked(widget, kind="view", view="cell", selection=chosen)
    assert content == {"id": "7"}
    same(decode(number)["found"], lens.cell(run, TEXT, name="blocks.0.attn.hook_q", row=1, column=2))
    _, [picture] = asked(widget, kind="picture", view="block", picture="png", selection=chosen)
    assert picture.startswith(b"\x89PNG")
    for question, words in (
        ({"kind": "picture", "view": "block", "picture": "pdf", "selection": chosen}, "svg or png"),
        ({"kind": "view", "view": "cel", "selection": chosen}, "did you mean 'cell'"),
        ({"kind": "view", "view": "cell", "selection": []}, "selection: an object of"),
        ({"kind": "shell"}, "a view, a picture or metrics; got 'shell'"),
        ({}, "this view failed"),
    ):
        content, buffers = asked(widget, **question)
        assert words in content["error"]
        assert (content["id"], buffers) == ("7", [])


def test_metrics_come_from_a_cursor_on(anywidget: Any, runs: dict[str, Any], tmp_path: Any) -> None:
    run = runs["decoder"].save(tmp_path / "live")
    widget = lens.show(run, TEXT, "training")

    def news(cursor: int) -> Any:
        return decode(asked(widget, kind="metrics", run=widget.run.name, cursor=cursor)[1][0])

    kept = run.kept_steps()
    assert news(0) == {"lines": [], "cursor": 0, "restarted": False, "steps": kept}
    lines = ['{"step": 1, "loss": 3.0}\n', '{"step": 2, "loss": 2.0}\n']
    run.folder.metrics_file.write_text(lines[0] + lines[1][:9])
    first = {"lines": [{"step": 1, "loss": 3.0}], "cursor": len(lines[0]), "restarted": False, "steps": kept}
    assert news(0) == first
    run.folder.metrics_file.write_text("".join(lines))
    assert [line["step"] for line in news(len(lines[0]))["lines"]] == [2]
    assert news(4000) == news(0) | {"restarted": True}
    assert news(0)["cursor"] == len("".join(lines))


def test_its_styles_reach_only_itself(anywidget: Any) -> None:
    from clearformer.page.standalone.widget import stylesheet

    styles = stylesheet()
    assert not re.search(r"(?m)^\s*(:root|body) *\{", styles)
    assert "prefers-color-scheme" not in styles
    assert ":host(.is-dark) {\n    --paper" in styles
    assert ":host(.is-dark) :is(.drawn, .changes)" in styles
    assert "@container (max-width: 900px)" in styles
    assert styles.count("{") == styles.count("}")


def test_without_anywidget_the_extra_is_named(without_anywidget: None, runs: dict[str, Any]) -> None:
    with pytest.raises(
        MissingPackageError,
        match=re.escape("needs anywidget, which is not installed: pip install 'clearformer[notebook]'"),
    ):
        cf.lens.show(runs["decoder"], TEXT)
