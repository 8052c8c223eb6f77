"""Access to the page's server: only for the browser that opened its address, on this machine.

The address contains a token, which is exchanged once for a cookie that scripts cannot read. Every request must name the
server's own host, so that no other site can reach it under its own name (DNS rebinding). Requests that write or open a
WebSocket must come from the page itself.
"""

import hmac
import secrets
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
MOST_BODY_BYTES = 1 << 20
STRANGER = "This page belongs to whoever started it. Open the address that `clearformer look` printed.\n"
USED = "This address works once and was already opened. Continue in that window, or run `clearformer look` again.\n"


class Gate:
    """The token of one server and the cookie that it is exchanged for."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.token, self.session = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        self.is_used = False

    @property
    def cookie(self) -> str:
        """The cookie's name, which contains the port because the ports of a host share cookies."""
        return f"clearformer-{self.port}"

    @property
    def hosts(self) -> tuple[str, ...]:
        """The accepted values of a request's Host header."""
        return f"127.0.0.1:{self.port}", f"localhost:{self.port}", f"[::1]:{self.port}"

    @property
    def origins(self) -> tuple[str, ...]:
        """The origins that may write."""
        return tuple(f"http://{host}" for host in self.hosts)

    def take(self, token: str) -> bool:
        """Use up the token; returns whether it is the right one and was not used before."""
        fits = not self.is_used and hmac.compare_digest(token.encode(), self.token.encode())
        self.is_used = self.is_used or fits
        return fits

    def knows(self, cookies: str) -> bool:
        """Whether a request's cookies include the session's."""
        given = cookie_parser(cookies).get(self.cookie, "")
        return hmac.compare_digest(given.encode(), self.session.encode())


class Guarded:
    """An application behind a gate."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self.app, self.gate = app, gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        refused, cookie = self.judge(scope)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                if cookie is not None:
                    headers.append("set-cookie", cookie)
            await send(message)

        if refused is None:
            await self.app(scope, receive, with_headers)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": "not allowed"})
        else:
            await refused(scope, receive, with_headers)

    def judge(self, scope: Scope) -> tuple[Response | None, str | None]:
        """Return the refusal of a request, and the cookie to set in its answer; each None if there is none."""
        headers = Headers(scope=scope)
        if only(headers.getlist("host")) not in self.gate.hosts:
            return PlainTextResponse("Host: this server answers only under its own address.\n", 421), None
        writes = scope["type"] == "websocket" or scope["method"] not in ("GET", "HEAD")
        if writes and only(headers.getlist("origin")) not in self.gate.origins:
            return PlainTextResponse("Origin: only the page itself may send this request.\n", 403), None
        if body_bytes(headers) > MOST_BODY_BYTES:
            return PlainTextResponse(f"a request holds at most {MOST_BODY_BYTES:,} bytes\n", 413), None
        if self.gate.knows(headers.get("cookie", "")):
            return None, None
        token = QueryParams(scope["query_string"]).get("token", "")
        if scope["type"] == "http" and scope["path"] == "/" and token:
            if scope["method"] != "GET":  # looking whether it is there does not use it up
                return PlainTextResponse(STRANGER, 403), None
            if self.gate.take(token):
                return None, f"{self.gate.cookie}={self.gate.session}; HttpOnly; SameSite=Strict; Path=/"
            return PlainTextResponse(USED if self.gate.is_used else STRANGER, 403), None
        return PlainTextResponse(STRANGER, 403), None


def only(values: Iterable[str]) -> str | None:
    """Return the value of a header that occurs exactly once; else None."""
    values = list(values)
    return values[0] if len(values) == 1 else None


def body_bytes(headers: Headers) -> int:
    """Return the length that a request gives for its body; 0 if it gives none."""
    text = headers.get("content-length", "")
    return int(text) if text.isdecimal() else 0
