"""Runs of all families, kept in a folder, and a page that shows one of them."""

import http.client
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import clearformer as cf
from clearformer.page import Looking, look
from clearformer.page.views import VIEWS
from clearformer.page.wire import decode

from ..lens.test_embeddings import TEXT, run_of

FAMILIES = ("decoder", "encoder", "encoder-decoder")


def decode_parts(content: bytes) -> list[Any]:
    """The values of an answer in parts, each after its length; the last one is complete."""
    parts = []
    while content:
        (length,) = struct.unpack_from("<I", content)
        parts.append(decode(content[4 : 4 + length]))
        content = content[4 + length :]
    return parts


@dataclass
class Client:
    """A browser's requests, without a browser."""

    looking: Looking
    cookie: str = ""

    @property
    def host(self) -> str:
        return urlsplit(self.looking.address).netloc

    def ask(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """The status, headers and body of an answer."""
        connection = self.asked(method, path, body, **headers)
        response = connection.getresponse()
        answer = response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
        connection.close()
        return answer

    def asked(self, method: str, path: str, body: Any = None, **headers: str) -> http.client.HTTPConnection:
        """A connection on which something has been asked for."""
        sent = {"Host": self.host, "Origin": f"http://{self.host}", "Cookie": self.cookie} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        connection = http.client.HTTPConnection(self.host, timeout=30)
        connection.putrequest(method, path, skip_host=True)
        content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        for name, value in sent.items():
            if value:
                connection.putheader(name, value)
        connection.putheader("Content-Length", str(len(content)))
        connection.endheaders(content)
        return connection

    def enter(self) -> None:
        """Open the address, as the browser does, and keep its cookie."""
        status, headers, _ = self.ask("GET", self.address_path)
        assert status == 200
        self.cookie = headers["set-cookie"].partition(";")[0]

    @property
    def address_path(self) -> str:
        parts = urlsplit(self.looking.address)
        return f"{parts.path}?{parts.query}"

    def view(self, name: str, **selection: Any) -> Any:
        """A view's answer; raises AssertionError with the server's words where there is none."""
        status, _, body = self.ask("POST", f"/api/view/{name}", selection)
        assert status == 200, body.decode()
        return decode_parts(body)[-1] if VIEWS[name].is_in_parts else decode(body)

    def parts(self, name: str, **selection: Any) -> list[Any]:
        """The parts of the answer of a view that comes in them."""
        status, _, body = self.ask("POST", f"/api/view/{name}", selection)
        assert status == 200, body.decode()
        return decode_parts(body)

    def table(self, name: str, **selection: Any) -> Any:
        """A view's table."""
        status, _, body = self.ask("POST", f"/api/table/{name}", selection)
        assert status == 200, body.decode()
        return json.loads(body)

    def refusal(self, name: str, **selection: Any) -> str:
        return self.refused(400, name, **selection)

    def refused(self, status: int, name: str, /, **selection: Any) -> str:
        """The words with which a view is refused, with a certain status."""
        found, _, body = self.ask("POST", f"/api/view/{name}", selection)
        assert found == status, body[:200]
        return json.loads(body)["error"]


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return saved_runs(tmp_path_factory.mktemp("runs"))


def saved_runs(folder: Path) -> dict[str, Any]:
    """A run of each family, kept in a folder."""
    made = {family: run_of(family) for family in FAMILIES}
    return {family: cf.Run(each.model, each.tokenizer).save(folder / family) for family, each in made.items()}


@pytest.fixture(scope="module", params=FAMILIES)
def page(request: pytest.FixtureRequest, runs: dict[str, Any]) -> Iterator[Client]:
    """The page of one of them, entered."""
    yield from entered(look(runs[request.param], text=TEXT, browser=False))


@pytest.fixture(scope="module")
def decoder_page(runs: dict[str, Any]) -> Iterator[Client]:
    """The page of a decoder, entered."""
    yield from entered(look(runs["decoder"], text=TEXT, browser=False))


def entered(looking: Looking) -> Iterator[Client]:
    client = Client(looking)
    client.enter()
    yield client
    looking.close()
