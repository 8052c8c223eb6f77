"""Answers in parts: what comes before the whole, what goes wrong on the way, and those whom nobody waits for."""

import asyncio
import http.client
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from clearformer import lens
from clearformer.errors import UserError
from clearformer.page import parts as parts_module
from clearformer.page.long import EndedError
from clearformer.page.parts import Tell, parts_of
from clearformer.page.views import VIEWS, View

from ..lens.test_embeddings import TEXT
from .conftest import Client

IN_PARTS = [name for name, view in VIEWS.items() if view.is_in_parts]


@pytest.fixture(autouse=True)
def _every_part_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts_module, "SECONDS_BETWEEN", 0.0)


def name_of(page: Client) -> str:
    """The name of the run that a page shows."""
    _, _, body = page.ask("GET", "/api/runs")
    return json.loads(body)["runs"][0]["name"]


def collected(compute: Callable[[Tell], bytes], most: int = 100) -> list[bytes]:
    """The first parts of an answer."""

    async def collect() -> list[bytes]:
        found = []
        with ThreadPoolExecutor(1) as thread:
            answer = parts_of(compute, thread)
            async for part in answer:
                found.append(part)
                if len(found) == most:
                    break
            await answer.aclose()
        return found

    return asyncio.run(collect())


def test_parts_come_in_their_order_and_the_whole_last() -> None:
    def compute(tell: Tell) -> bytes:
        for i in range(3):
            tell(lambda i=i: b"%d" % i)
        return b"whole"

    assert collected(compute) == [b"0", b"1", b"2", b"whole"]
    assert collected(lambda _: b"whole") == [b"whole"]


def test_parts_that_follow_too_fast_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts_module, "SECONDS_BETWEEN", 3600.0)
    made = []

    def compute(tell: Tell) -> bytes:
        for i in range(3):
            tell(lambda i=i: made.append(i) or b"part")
        return b"whole"

    assert collected(compute) == [b"part", b"whole"]
    assert made == [0]


def test_a_computation_that_nobody_waits_for_ends() -> None:
    ended = threading.Event()
    goes_on = threading.Event()

    def compute(tell: Tell) -> bytes:
        tell(lambda: b"first")
        goes_on.wait(30)
        try:
            while True:
                tell(lambda: b"more")
        except EndedError:
            ended.set()
            raise

    async def leave() -> None:
        with ThreadPoolExecutor(1) as thread:
            answer = parts_of(compute, thread)
            assert await anext(answer) == b"first"
            await answer.aclose()
            goes_on.set()

    asyncio.run(leave())
    assert ended.is_set()


def test_what_a_computation_raises_is_raised() -> None:
    def compute(tell: Tell) -> bytes:
        tell(lambda: b"first")
        raise UserError("no")

    with pytest.raises(UserError, match="no"):
        collected(compute)


@pytest.mark.parametrize("name", IN_PARTS)
def test_a_view_comes_in_parts(decoder_page: Client, name: str) -> None:
    chosen = {"run": name_of(decoder_page), "text": TEXT, "new_tokens": 4, "seed": 11}
    parts = decoder_page.parts(name, **chosen)
    assert len(parts) > 2
    assert all(part.keys() == parts[-1].keys() for part in parts)
    again = decoder_page.view(name, **chosen)
    assert again["found"].keys() == parts[-1]["found"].keys()
    assert again["caption"] == parts[-1]["caption"]
    if name == "continuations":
        lengths = [len(part["found"]["continuations"][0]["tokens"]) for part in parts]
        assert lengths == sorted(lengths)
        assert lengths[0] == 1


def test_what_is_wrong_with_it_is_said_as_of_other_views(decoder_page: Client) -> None:
    chosen = {"run": name_of(decoder_page), "text": TEXT}
    assert "position 99 is beyond the text" in decoder_page.refusal("continuations", **chosen, position=99)
    assert "this page does not show 'nobody'" in decoder_page.refusal("beams", text=TEXT, run="nobody")


def test_what_goes_wrong_on_the_way_is_the_last_part(
    decoder_page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = lens.continuations

    def breaking(*given: Any, on_part: Callable[[Any], None], **others: Any) -> Any:
        own(*given, on_part=on_part, **others)
        raise UserError("it broke")

    monkeypatch.setattr(lens, "continuations", breaking)
    parts = decoder_page.parts("continuations", run=name_of(decoder_page), text=TEXT, new_tokens=3, seed=12)
    assert parts[-1] == {"error": "it broke"}
    assert len(parts) > 1


def test_who_leaves_holds_nobody_up(decoder_page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that asks for something else drops its question; the next one is answered, and the first one ended."""
    is_left, ended = threading.Event(), threading.Event()
    own = View.call

    def slow(view: View, *given: Any, on_part: Any = None, **others: Any) -> Any:
        if on_part is None:
            return own(view, *given, **others)
        found = own(view, *given, **others)
        on_part(found)
        is_left.wait(30)
        try:
            while True:
                on_part(found)
        except EndedError:
            ended.set()
            raise

    monkeypatch.setattr(View, "call", slow)
    connection = http.client.HTTPConnection(decoder_page.host, timeout=30)
    headers = {"Cookie": decoder_page.cookie, "Origin": f"http://{decoder_page.host}"}
    body = json.dumps({"run": name_of(decoder_page), "text": TEXT, "new_tokens": 2})
    connection.request("POST", "/api/view/continuations", body, headers)
    connection.getresponse().read(4)
    connection.close()
    is_left.set()
    assert decoder_page.view("tokens", run=name_of(decoder_page), text=TEXT)["found"]["tokens"]
    assert ended.wait(30)
