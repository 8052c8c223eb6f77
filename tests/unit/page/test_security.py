"""Who is let in: the browser that was given the address, and nobody else."""

import asyncio
from typing import Any

import numpy as np
import pytest
import websockets
from websockets.exceptions import InvalidStatus

from clearformer.errors import UserError
from clearformer.page import look
from clearformer.page.look import HOST, bound_socket
from clearformer.page.selection import MOST_CHARACTERS

from .conftest import Client

VIEW = "/api/view/tokens"


def test_the_address_works_once(runs: dict[str, Any]) -> None:
    looking = look(runs["decoder"], text="the", browser=False)
    first, second = Client(looking), Client(looking)
    assert first.ask("GET", "/")[0] == 403
    assert first.ask("GET", "/?token=guessed")[0] == 403
    assert first.ask("HEAD", first.address_path)[0] == 403  # which does not use it up
    status, headers, _ = first.ask("GET", first.address_path)
    assert status == 200
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    status, _, words = second.ask("GET", second.address_path)
    assert status == 403
    assert b"already opened" in words
    first.cookie = cookie.partition(";")[0]
    assert first.ask("GET", "/")[0] == 200
    second.cookie = first.cookie[:-1]
    assert second.ask("GET", "/")[0] == 403
    looking.close()


def test_an_address_with_a_long_text_is_loaded_again(decoder_page: Client) -> None:
    """As many characters as a selection may have, each of nine letters in an address."""
    assert decoder_page.ask("GET", f"/?text={'%E6%88%91' * MOST_CHARACTERS}")[0] == 200


@pytest.mark.parametrize("path", ["/", "/api/runs", "/static/app.js", VIEW, "/anything"])
def test_without_the_cookie_nothing_is_told(decoder_page: Client, path: str) -> None:
    stranger = Client(decoder_page.looking)
    for method in ("GET", "POST"):
        status, headers, body = stranger.ask(method, path, {})
        assert status == 403
        assert b"clearformer look" in body
        assert "set-cookie" not in headers


def test_the_host_is_this_machine_to_the_letter(decoder_page: Client) -> None:
    port = decoder_page.host.rpartition(":")[2]
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}"):
        assert decoder_page.ask("GET", "/api/runs", Host=host)[0] == 200
    for host in (
        "127.0.0.1",
        f"127.0.0.1:{port}0",
        f"[::1]evil:{port}",
        "[::1]evil",
        f"evil.example:{port}",
        f"127.0.0.1.evil.example:{port}",
        f"127.0.0.1:{port}@evil.example",
        f"LOCALHOST:{port}",
    ):
        assert decoder_page.ask("GET", "/api/runs", Host=host)[0] == 421, host


def test_only_the_page_itself_may_ask(decoder_page: Client) -> None:
    host = decoder_page.host
    for origin in (
        "",
        "null",
        "http://evil.example",
        f"https://{host}",
        f"http://{host}.evil.example",
        f"http://{host}/",
    ):
        assert decoder_page.ask("POST", VIEW, {}, Origin=origin)[0] == 403, origin
    assert decoder_page.ask("DELETE", "/api/runs")[0] == 405


def test_every_answer_says_what_the_page_may_do(decoder_page: Client) -> None:
    for path in ("/", "/static/app.js", "/api/runs", "/static/missing.js"):
        _, headers, _ = decoder_page.ask("GET", path)
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "style-src 'self';" in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize(
    "path",
    ["/static/../server.py", "/static/%2e%2e/server.py", "/static//etc/passwd", "/static/..%2f..%2fapi.py"],
)
def test_no_path_leaves_the_folder(decoder_page: Client, path: str) -> None:
    status, _, body = decoder_page.ask("GET", path)
    assert status == 404
    assert b"import" not in body


def test_requests_are_bounded(decoder_page: Client) -> None:
    assert decoder_page.ask("POST", VIEW, b" " * (2 << 20))[0] == 413
    assert "200000" in decoder_page.refusal("tokens", text="a" * 300_000).replace(",", "")


def test_the_live_socket_is_guarded_as_well(decoder_page: Client) -> None:
    address = f"ws://{decoder_page.host}/api/live?run=x&cursor=0"

    async def status_of(**headers: str) -> int:
        try:
            async with websockets.connect(address, additional_headers=headers, proxy=None):
                return 101
        except InvalidStatus as refused:
            return refused.response.status_code

    origin = f"http://{decoder_page.host}"
    assert asyncio.run(status_of(Origin=origin)) == 403
    assert asyncio.run(status_of(Cookie=decoder_page.cookie)) == 403
    assert asyncio.run(status_of(Cookie=decoder_page.cookie, Origin="http://evil.example")) == 403


def test_a_port_that_is_taken_is_said_in_one_line() -> None:
    taken = bound_socket(0)
    port = taken.getsockname()[1]
    taken.listen()
    for given in (port, np.int64(port)):
        with pytest.raises(UserError, match=rf"^port: {port} cannot be opened here"):
            bound_socket(given)  # type: ignore[arg-type]
    taken.close()
    for wrong in (-1, 70000, "8000", True):
        with pytest.raises(UserError, match=r"^port: a number"):
            bound_socket(wrong)  # type: ignore[arg-type]
    assert HOST == "127.0.0.1"
