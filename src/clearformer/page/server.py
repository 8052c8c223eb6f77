"""The page's server: its files, and the views of its runs."""

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp
from starlette.websockets import WebSocket, WebSocketDisconnect

from clearformer.errors import ClearformerError, UserError
from clearformer.page.live import followed
from clearformer.page.opened import OpenedRuns
from clearformer.page.security import MOST_BODY_BYTES, Gate, Guarded
from clearformer.page.selection import Selection, read_selection
from clearformer.page.standalone.export import one_file
from clearformer.page.views import find_view
from clearformer.page.wire import encode

STATIC = Path(__file__).parent / "static"
WIRE = "application/octet-stream"
PICTURE_TYPES = {"svg": "image/svg+xml", "png": "image/png"}
BAD_REQUEST = 400
SERVER_ERROR = 500

logger = logging.getLogger(__name__)


class PageServer:
    """The answers to what the page asks for."""

    def __init__(self, opened: OpenedRuns, first: Selection) -> None:
        self.opened, self.first = opened, first

    def app(self, gate: Gate) -> ASGIApp:
        """The application behind its gate."""
        routes = [
            Route("/", self.index),
            Route("/api/runs", self.runs),
            Route("/api/view/{view}", self.answering(self.view), methods=["POST"]),
            Route("/api/figure/{view}.{kind}", self.answering(self.figure), methods=["POST"]),
            Route("/api/export", self.answering(self.export), methods=["POST"]),
            WebSocketRoute("/api/live", self.live),
        ]
        app = Starlette(routes=routes)
        app.mount("/static", StaticFiles(directory=STATIC))
        return Guarded(app, gate)

    async def index(self, request: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    async def runs(self, request: Request) -> Response:
        """The runs, their checkpoints and views, and what is selected at first."""
        return JSONResponse(
            {
                "runs": [shelf.card() for shelf in self.opened.shelves.values()],
                "first": self.first.model_dump(),
            }
        )

    def answering(self, answer: Callable[[Request, Selection], Response]) -> Callable[[Request], Any]:
        """A route that reads a selection and answers from a thread; what is wrong with it is said in one line."""

        async def endpoint(request: Request) -> Response:
            try:
                body = await limited_body(request)
                selection = read_selection(json.loads(body))
                return await run_in_threadpool(answer, request, selection)
            except (json.JSONDecodeError, UnicodeDecodeError):
                return JSONResponse({"error": "the request is no JSON"}, BAD_REQUEST)
            except ClearformerError as error:
                return JSONResponse({"error": str(error)}, BAD_REQUEST)
            except Exception:
                logger.exception("the page: %s failed", request.url.path)
                failed = "this view failed; where, stands where the page was started"
                return JSONResponse({"error": failed}, SERVER_ERROR)

        return endpoint

    def view(self, request: Request, selection: Selection) -> Response:
        """A view's numbers, table and Python."""
        with self.opened.computing:
            run = self.opened.get(selection.run, selection.checkpoint)
            answer = find_view(request.path_params["view"], run).answer(run, selection)
        return Response(encode(answer), media_type=WIRE)

    def figure(self, request: Request, selection: Selection) -> Response:
        """A view as a picture."""
        kind = request.path_params["kind"]
        with self.opened.computing:
            run = self.opened.get(selection.run, selection.checkpoint)
            picture = find_view(request.path_params["view"], run).picture(run, selection, kind)
        return Response(picture, media_type=PICTURE_TYPES[kind])

    def export(self, request: Request, selection: Selection) -> Response:
        """The whole page as one file."""
        with self.opened.computing:
            run = self.opened.get(selection.run, selection.checkpoint)
            content = one_file(run, selection)
        return Response(content, media_type="text/html")

    async def live(self, socket: WebSocket) -> None:
        """Lines of a run's metrics as they are written, from a cursor on."""
        name = socket.query_params.get("run", "")
        cursor = socket.query_params.get("cursor", "0")
        if name not in self.opened.shelves or not cursor.isdecimal():
            await socket.close(1008)
            return
        await socket.accept()
        try:
            async for lines in followed(self.opened.shelves[name].run, int(cursor)):
                await socket.send_json(lines)
        except json.JSONDecodeError:
            await socket.close()  # a damaged line; the view `training` says which
        except (WebSocketDisconnect, asyncio.CancelledError, RuntimeError):
            return


async def limited_body(request: Request) -> bytes:
    """A request's body.

    Raises:
        UserError: it is too large.
    """
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_BODY_BYTES:
            raise UserError(f"a request holds at most {MOST_BODY_BYTES:,} bytes")
    return body
