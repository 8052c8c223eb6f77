"""What the page is answered: the numbers of `clearformer.lens`, to the bit."""

import asyncio
import http.client
import json
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import websockets
from starlette.requests import Request

import clearformer as cf
from clearformer.page import live, look, server
from clearformer.page.opened import OpenedRuns
from clearformer.page.selection import Selection, read_selection
from clearformer.page.views import VIEWS, views_of
from clearformer.results import plain

from ..lens.test_embeddings import TEXT, run_of
from .conftest import FAMILIES, Client, entered


def card(page: Client) -> dict[str, Any]:
    status, _, body = page.ask("GET", "/api/runs")
    assert status == 200
    return json.loads(body)


def same(sent: Any, own: Any) -> None:
    """Whether what was sent is a result of the lens, field by field."""
    if is_dataclass(own):
        assert sent.keys() == {field.name for field in fields(own)}
        for field in fields(own):
            same(sent[field.name], getattr(own, field.name))
    elif isinstance(own, np.ndarray):
        np.testing.assert_array_equal(sent, own)
    elif isinstance(own, dict):
        assert list(sent) == [str(key) for key in own]
        for key, value in own.items():
            same(sent[str(key)], value)
    elif isinstance(own, list | tuple):
        assert len(sent) == len(own)
        for one, other in zip(sent, own, strict=True):
            same(one, other)
    else:
        assert sent == plain(own)


def whole(name: str, python: str, found: Any) -> Any:
    """The result of a view's snippet without what bounds the answer, which is what the page's table has."""
    if not VIEWS[name].at_once:
        return found
    for argument, value in VIEWS[name].at_once:
        bound = f", {argument}={value}"
        assert bound in python
        python = python.replace(bound, "")
    scope: dict[str, Any] = {}
    exec(python, scope)  # noqa: S102  (our own snippet)
    return scope["found"]


def test_every_view_is_what_its_python_gives(page: Client) -> None:
    """The snippet that the page copies is run, and each number that was sent is compared."""
    told = card(page)
    first = told["first"]
    [shown] = told["runs"]
    assert {"overview", "tokens", "attention", "ledger", "lens", "sampling"} <= shown["views"].keys()
    marks = {"before": shown["steps"][0], "after": shown["steps"][-1]}
    translated = ("tokens",)  # the others are given a translation, which takes none of the tests' time
    for name in shown["views"]:
        is_given = shown["family"] == "encoder-decoder" and name not in translated
        chosen = first | marks | ({"output": "the river"} if is_given else {})
        answer = page.view(name, **chosen)
        scope: dict[str, Any] = {}
        exec(answer["python"], scope)  # noqa: S102  (our own snippet)
        same(answer["found"], scope["found"])
        table = whole(name, answer["python"], scope["found"]).table()
        sent = page.table(name, **chosen)
        assert (sent["heads"], sent["rows"], sent["words"]) == (table.heads, table.rows, table.n_left)
        assert answer["caption"] == scope["found"].caption()


@pytest.mark.parametrize("family", FAMILIES)
def test_every_difference_is_what_its_python_gives(runs: dict[str, Any], family: str, tmp_path: Path) -> None:
    """Also of views that are of the first run alone, and of those that take two."""
    other = cf.Run(run_of(family).model, runs[family].tokenizer).save(tmp_path / "other")
    other.folder.metrics_file.write_text('{"step": 1, "loss": 2.0}\n')
    for page in entered(look(runs[family], other, text=TEXT, browser=False)):
        told = card(page)
        first, shown = told["first"], told["runs"][0]
        assert first["versus"] == other.name
        names = [*shown["views"], *shown["views_of_two"]]
        given = first | ({"output": "the river"} if family == "encoder-decoder" else {})
        for name in [each for each in names if not VIEWS[each].is_long]:
            chosen = first if name == "tokens" else given
            answer = page.view(name, **chosen)
            assert ("changes" in answer["found"]) == VIEWS[name].subtracts
            if (
                not VIEWS[name].takes_other and name != "sources"
            ):  # as without the second run, which is tested above
                assert answer["runs"] == [f"{runs[family].name} step 0"]
                assert answer["python"] == VIEWS[name].as_python(runs[family], read_selection(chosen))
                continue
            scope: dict[str, Any] = {}
            exec(answer["python"], scope)  # noqa: S102  (our own snippet)
            same(answer["found"], scope["found"])
            assert (
                answer["runs"]
                == [f"{runs[family].name} step 0", f"{other.name} step 0"][: 1 + VIEWS[name].takes_other]
            )
            assert (
                page.table(name, **chosen)["rows"]
                == whole(name, answer["python"], scope["found"]).table().rows
            )
        changes = page.view("tokens", **given)["found"]["changes"]["losses"]
        backwards = given | {"run": other.name, "versus": runs[family].name}
        np.testing.assert_array_equal(
            -changes, page.view("tokens", **backwards)["found"]["changes"]["losses"]
        )
        assert page.ask("POST", "/api/figure/pattern.svg", first)[0] == 200


def test_two_checkpoints_of_one_run_are_subtracted(runs: dict[str, Any], tmp_path: Path) -> None:
    run = runs["decoder"].save(tmp_path / "grown")
    torch.manual_seed(5)  # other weights than those of the fixture
    later = cf.Run(cf.build(run.model.config), run.tokenizer, run.config, step=3).save(tmp_path / "later")
    (later.folder.checkpoints / "step-00000003").rename(run.folder.checkpoints / "step-00000003")
    for page in entered(look(cf.load(run.folder.path, checkpoint=0), text=TEXT, browser=False)):
        chosen = card(page)["first"]
        chosen |= {"versus": chosen["run"], "versus_checkpoint": "3"}
        answer = page.view("ledger", **chosen)
        assert answer["runs"] == [f"{run.name} step 0", f"{run.name} step 3"]
        assert f"other = cf.load({run.name!r}, checkpoint=3)" in answer["python"]
        assert any(part["value"] for part in answer["found"]["changes"]["parts"])
        assert "changes" not in page.view("training", **chosen)["found"]  # one run has one training


def test_a_run_that_cannot_be_set_beside_another_is_refused_in_one_line(runs: dict[str, Any]) -> None:
    for page in entered(look(runs["decoder"], runs["encoder"], text=TEXT, browser=False)):
        chosen = card(page)["first"]
        assert "decoder and encoder cannot be compared" in page.refusal("ledger", **chosen)
        assert page.view("sampling", **chosen)["runs"] == [f"{chosen['run']} step 0"]
        missing = page.refusal("ledger", **(chosen | {"versus": "../secret"}))
        assert "versus: this page does not show '../secret'" in missing
        assert "17" in page.refusal(
            "ledger", **(chosen | {"versus": chosen["run"], "versus_checkpoint": "17"})
        )
        assert "no run to compare with is set" in page.refusal("comparison", **(chosen | {"versus": ""}))


def test_every_field_of_a_selection_reaches_its_views(decoder_page: Client) -> None:
    run = card(decoder_page)["runs"][0]["name"]
    chosen = {"run": run, "text": TEXT}
    before = decoder_page.view("ledger", **chosen)
    after = decoder_page.view("ledger", **chosen, position=2, target="he", foil="t")
    assert before["found"]["position"] != after["found"]["position"] == 2
    assert after["found"]["foil"] == "t"
    warm = decoder_page.view("sampling", **chosen, temperature=2.0)["found"]
    plain = decoder_page.view("sampling", **chosen)["found"]
    assert warm["entropy_after"] > plain["entropy_after"]
    assert warm["entropy_before"] == plain["entropy_before"]
    most = dict(VIEWS["sampling"].at_once)["most"]  # a drawn token that is none of these comes after them
    assert warm["tokens"][:most] == plain["tokens"][:most]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"text": ""}, "the text is empty"),
        ({"text": "the bank " * 99}, "101"),
        ({"position": 4000}, "position 4000 is beyond the text"),
        ({"target": "no such token here"}, "target: 'no such token here' is not a token"),
        ({"run": "../secret"}, "this page does not show '../secret'"),
        ({"checkpoint": "17"}, "17"),
        ({"checkpoint": "../.."}, "checkpoint"),
        ({"temperature": 0}, "temperature"),
        ({"positoin": 1}, "positoin"),
        ({"position": "first"}, "position"),
    ],
)
def test_what_cannot_be_shown_is_said_in_one_line(
    decoder_page: Client, changes: dict[str, Any], words: str
) -> None:
    run = card(decoder_page)["runs"][0]["name"]
    line = decoder_page.refusal("ledger", **({"run": run, "text": TEXT} | changes))
    assert words in line
    assert "\n" not in line


def test_a_character_that_the_vocabulary_lacks_is_named() -> None:
    made = run_of("decoder", "char")
    for page in entered(look(cf.Run(made.model, made.tokenizer), text=TEXT, browser=False)):
        line = page.refusal("tokens", **(card(page)["first"] | {"text": "the 猫"}))
        assert "猫" in line
        assert "characters" in line


def test_what_is_no_selection_is_refused(decoder_page: Client) -> None:
    for body in (b"[]", b"{", b"\xff", b"null", b'"text"'):
        status, _, answer = decoder_page.ask("POST", "/api/view/tokens", body)
        assert status == 400
        assert json.loads(answer)["error"]
    line = decoder_page.refusal("legder", run=card(decoder_page)["runs"][0]["name"])
    assert "there is no view 'legder'; did you mean 'ledger'?" in line


@pytest.mark.parametrize(
    "body", [b"[" * 200_000, b'{"text": ' * 994 + b"1" + b"}" * 994, b'{"seed": ' + b"1" * 6000 + b"}"]
)
def test_what_is_too_deep_or_too_long_to_read_is_refused(decoder_page: Client, body: bytes) -> None:
    status, _, answer = decoder_page.ask("POST", "/api/view/tokens", body)
    assert (status, list(json.loads(answer))) == (400, ["error"])


def test_a_step_of_thousands_of_digits_is_refused(decoder_page: Client) -> None:
    chosen = card(decoder_page)["first"] | {"checkpoint": "9" * 5000}
    status, _, answer = decoder_page.ask("POST", "/api/replay", chosen)
    assert status == 400
    assert "checkpoint" in json.loads(answer)["error"]
    line = decoder_page.refusal(
        "tokens", **(chosen | {"checkpoint": "latest", "versus_checkpoint": "9" * 5000})
    )
    assert "versus_checkpoint" in line


def test_pictures_are_the_lens_own(decoder_page: Client) -> None:
    chosen = {"run": card(decoder_page)["runs"][0]["name"], "text": TEXT}
    status, headers, svg = decoder_page.ask("POST", "/api/figure/ledger.svg", chosen)
    assert (status, headers["content-type"]) == (200, "image/svg+xml")
    assert b"contribution to the logit" in svg
    assert decoder_page.ask("POST", "/api/figure/tokens.png", chosen)[2].startswith(b"\x89PNG")
    status, _, answer = decoder_page.ask("POST", "/api/figure/tokens.pdf", chosen)
    assert status == 400
    assert b"svg or png" in answer


def test_the_python_is_of_the_step_that_is_shown(runs: dict[str, Any], tmp_path: Path) -> None:
    """Also where the page was opened at an earlier step than the run has by now."""
    run = runs["decoder"].save(tmp_path / "grown")
    later = cf.Run(cf.build(run.model.config), run.tokenizer, run.config, step=3).save(tmp_path / "later")
    (later.folder.checkpoints / "step-00000003").rename(run.folder.checkpoints / "step-00000003")
    for page in entered(look(cf.load(run.folder.path, checkpoint=0), text=TEXT, browser=False)):
        answer = page.view("tokens", **card(page)["first"])
        scope: dict[str, Any] = {}
        exec(answer["python"], scope)  # noqa: S102  (our own snippet)
        assert scope["run"].step == 0
        same(answer["found"], scope["found"])
        at_3 = page.view("tokens", **(card(page)["first"] | {"checkpoint": "3"}))
        assert "checkpoint=3" in at_3["python"]
        assert not np.array_equal(at_3["found"]["losses"], answer["found"]["losses"])


def test_a_view_that_fails_says_so_here_and_why_in_the_log(
    decoder_page: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cf.lens, "tokens", lambda *_: 1 / 0)
    status, _, answer = decoder_page.ask("POST", "/api/view/tokens", card(decoder_page)["first"])
    assert status == 500
    assert "this view failed" in json.loads(answer)["error"]
    assert "ZeroDivisionError" in caplog.text


def test_a_question_that_was_dropped_is_not_computed(
    decoder_page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page drops a question when it asks a newer one."""
    chosen = card(decoder_page)["first"]
    begun, go_on, asked = threading.Event(), threading.Event(), []
    own = cf.lens.tokens

    def slow(run: Any, text: str, **given: Any) -> Any:
        asked.append(text)
        begun.set()
        assert go_on.wait(20)
        return own(run, text, **given)

    monkeypatch.setattr(cf.lens, "tokens", slow)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(decoder_page.view, "tokens", **(chosen | {"text": "the bank"}))
        assert begun.wait(20)
        connection = http.client.HTTPConnection(decoder_page.host)
        headers = {"Origin": f"http://{decoder_page.host}", "Cookie": decoder_page.cookie}
        connection.request("POST", "/api/view/tokens", json.dumps(chosen | {"text": "the river"}), headers)
        card(decoder_page)
        connection.close()
        for _ in range(5):  # by then the server has seen that nobody is there
            card(decoder_page)
        last = threads.submit(decoder_page.view, "tokens", **(chosen | {"text": "the money"}))
        go_on.set()
        assert first.result()["found"]["tokens"] != last.result()["found"]["tokens"]
    assert asked == ["the bank", "the money"]


def test_tables_are_asked_for_and_refused_as_views_are(decoder_page: Client) -> None:
    chosen = card(decoder_page)["first"]
    assert "table" not in decoder_page.view("ledger", **chosen)
    table = decoder_page.table("ledger", **chosen)
    assert all(len(row) == len(table["heads"]) for row in table["rows"])
    status, _, body = decoder_page.ask("POST", "/api/table/ledger", chosen | {"position": 4000})
    assert status == 400
    assert "position 4000" in json.loads(body)["error"]


def test_a_model_kept_nowhere_is_shown_without_its_training(runs: dict[str, Any]) -> None:
    run = cf.Run(runs["decoder"].model, runs["decoder"].tokenizer)
    for page in entered(look(run, text=TEXT, browser=False)):
        views = card(page)["runs"][0]["views"]
        assert "training" not in views
        assert len(page.view("tokens", **card(page)["first"])["found"]["tokens"]) > 3


def test_a_view_that_a_kind_has_not_is_not_offered(runs: dict[str, Any]) -> None:
    bigram = cf.build(cf.ModelConfig(vocab_size=runs["decoder"].tokenizer.vocab_size, attention="last"))
    run = cf.Run(bigram, runs["decoder"].tokenizer)
    assert "attention" not in views_of(run)
    for page in entered(look(run, text=TEXT, browser=False)):
        assert "no such view" in page.refusal("attention", **card(page)["first"])


def test_metrics_come_from_the_cursor_on(runs: dict[str, Any], tmp_path: Path) -> None:
    run = runs["encoder"].save(tmp_path / "live")
    lines = [json.dumps({"step": step, "loss": 1.0 / step}) + "\n" for step in (1, 2, 3)]
    run.folder.metrics_file.write_text("".join(lines[:2]) + lines[2][:7])

    async def followed(page: Client, cursor: int) -> list[dict[str, Any]]:
        address = f"ws://{page.host}/api/live?run={card(page)['runs'][0]['name']}&cursor={cursor}"
        headers = {"Origin": f"http://{page.host}", "Cookie": page.cookie}
        async with websockets.connect(address, additional_headers=headers, proxy=None) as socket:
            first = json.loads(await socket.recv())
            run.folder.metrics_file.write_text("".join(lines))
            second = json.loads(await socket.recv())
            run.folder.metrics_file.write_text(lines[0])
            return [first, second, json.loads(await socket.recv())]

    looking = look(run, text="the", browser=False)
    page = Client(looking)
    page.enter()
    first, second, third = asyncio.run(followed(page, 0))
    looking.close()
    assert [line["step"] for line in first["lines"]] == [1, 2]
    assert first["cursor"] == len("".join(lines[:2]))
    assert [line["step"] for line in second["lines"]] == [3]
    assert third["restarted"]
    assert [line["step"] for line in third["lines"]] == [1]


def test_the_metrics_of_a_long_training_come_in_several_messages(
    runs: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runs["decoder"].save(tmp_path / "long")
    run.folder.metrics_file.write_text("".join(f'{{"step": {step}, "loss": 1.0}}\n' for step in range(1, 40)))
    monkeypatch.setattr(live, "MOST_BYTES", 100)
    steps, cursor = [], 0
    while (found := live.news(run.folder, cursor))["lines"]:
        steps += [line["step"] for line in found["lines"]]
        cursor = found["cursor"]
    assert steps == list(range(1, 40))


def test_a_damaged_line_ends_the_following(runs: dict[str, Any], tmp_path: Path) -> None:
    run = runs["decoder"].save(tmp_path / "broken")
    run.folder.metrics_file.write_bytes(b"\xff" * 8 + b"\n")

    async def visit(page: Client) -> int:
        address = f"ws://{page.host}/api/live?run={run.name}&cursor=0"
        headers = {"Origin": f"http://{page.host}", "Cookie": page.cookie}
        async with websockets.connect(address, additional_headers=headers, proxy=None) as socket:
            await socket.wait_closed()
            return socket.close_code or 0

    assert [asyncio.run(visit(page)) for page in entered(look(run, text="the", browser=False))] == [1000]


def test_who_has_left_is_not_followed_any_more(decoder_page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that has ended writes nothing, by which the server would notice."""
    following = []

    async def followed(*_: Any) -> AsyncIterator[dict[str, Any]]:
        following.append(True)
        try:
            yield {"lines": []}
            await asyncio.sleep(60)
        finally:
            following.pop()

    async def visit() -> None:
        address = f"ws://{decoder_page.host}/api/live?run={card(decoder_page)['runs'][0]['name']}&cursor=0"
        headers = {"Origin": f"http://{decoder_page.host}", "Cookie": decoder_page.cookie}
        async with websockets.connect(address, additional_headers=headers, proxy=None) as socket:
            await socket.recv()
            assert following == [True]

    monkeypatch.setattr(server, "followed", followed)
    asyncio.run(visit())
    until = time.monotonic() + 10
    while following and time.monotonic() < until:
        time.sleep(0.01)
    assert following == []


def test_two_pictures_are_not_drawn_at_once(runs: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Matplotlib is not made for threads: that of an export waits for that of a view that takes long."""
    run = runs["decoder"]
    page = server.PageServer(OpenedRuns([run]), Selection(run=run.name, text=TEXT))
    monkeypatch.setattr(server, "one_file", lambda *_: str(page.drawing.locked()))
    assert page.export(Request({"type": "http"}), page.first).body == b"True"
    assert not page.drawing.locked()


def test_layers_are_those_of_the_higher_stack() -> None:
    run = run_of("encoder-decoder", n_decoder_layers=5)
    assert OpenedRuns([cf.Run(run.model, run.tokenizer)]).cards()[0]["layers"] == 5


def test_every_field_of_a_view_is_one_of_the_selection() -> None:
    for view in VIEWS.values():
        assert set(view.uses) <= Selection.model_fields.keys()
        assert callable(getattr(cf.lens, view.function))
