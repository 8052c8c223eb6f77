"""The page's server: its files, and the views of its runs."""

import asyncio
import json
import logging
import tempfile
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

from clearformer.errors import ClearformerError, UserError, did_you_mean, shown
from clearformer.lens import Shown
from clearformer.page.live import followed
from clearformer.page.opened import OpenedRuns
from clearformer.page.security import MOST_BODY_BYTES, Gate, Guarded
from clearformer.page.selection import Selection, read_selection
from clearformer.page.views import VIEWS, View, views_of
from clearformer.page.wire import encode
from clearformer.run import Run

STATIC = Path(__file__).parent / "static"
WIRE = "application/octet-stream"
PICTURES = {"svg": "image/svg+xml", "png": "image/png"}
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
            Route("/api/replay/{view}", self.answering(self.replay), methods=["POST"]),
            Route("/api/progress/{name}", self.progress),
            Route("/api/end/{name}", self.end, methods=["POST"]),
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
            {"runs": [self.card(name) for name in self.opened.names], "first": self.first.model_dump()}
        )

    def card(self, name: str) -> dict[str, Any]:
        """A run as the page must know it before it asks for a view."""
        shelf = self.opened.shelves[name]
        config = shelf.run.config.model
        views = views_of(shelf.run)
        return {
            "name": name,
            "family": config.family,
            "layers": config.n_layers,
            "heads": config.attention.heads(config.d_model)[0],
            "context": config.max_seq_len,
            "step": shelf.run.step,
            "steps": shelf.steps,
            "replayed": self.opened.replayed(name),
            "views": {
                key: {"title": each.title, "about": each.about, "uses": each.fields}
                for key, each in views.items()
            },
        }

    def answering(self, answer: Callable[[str, Selection, Request], Response]) -> Callable[[Request], Any]:
        """A route that reads a selection and answers from a thread; what is wrong with it is said in one line."""

        async def endpoint(request: Request) -> Response:
            try:
                body = await limited_body(request)
                selection = read_selection(json.loads(body))
                return await run_in_threadpool(answer, request.path_params["view"], selection, request)
            except (json.JSONDecodeError, UnicodeDecodeError):
                return JSONResponse({"error": "the request is no JSON"}, BAD_REQUEST)
            except ClearformerError as error:
                return JSONResponse({"error": str(error)}, BAD_REQUEST)
            except Exception:
                logger.exception("the page: %s failed", request.url.path)
                failed = "this view failed; where, stands where the page was started"
                return JSONResponse({"error": failed}, SERVER_ERROR)

        return endpoint

    def view(self, name: str, selection: Selection, request: Request) -> Response:
        """A view's numbers, table and Python."""
        run, view, found = self.found(name, selection)
        table = found.table()
        content = {
            "caption": found.caption(),
            "notes": found.notes(),
            "table": {"heads": table.heads, "rows": table.rows, "words": table.n_left},
            "python": view.as_python(run, selection),
            "found": found,
        }
        return Response(encode(content), media_type=WIRE)

    def figure(self, name: str, selection: Selection, request: Request) -> Response:
        """A view as a picture."""
        kind = request.path_params["kind"]
        if kind not in PICTURES:
            raise UserError(f"a picture is {' or '.join(PICTURES)}; got {shown(kind)}")
        _, _, found = self.found(name, selection, again=False)
        with self.opened.computing, tempfile.TemporaryDirectory() as folder:
            picture = found.figure(Path(folder) / f"{name}.{kind}").read_bytes()
        return Response(picture, media_type=PICTURES[kind])

    def found(self, name: str, selection: Selection, again: bool = True) -> tuple[Run, View, Shown]:
        """A run, a view of it, and what it shows.

        One that takes long holds up no quick one, and is not computed again for a picture of it.
        """
        with self.opened.computing:
            run, view = self.of(name, selection)
            if not view.is_long:
                return run, view, view.call(run, selection)
        question = [getattr(selection, field) for field in view.fields]
        found = None if again else self.opened.long.kept(name, question)
        if found is None:
            with self.opened.long.turn(name) as on_step:
                found = view.call(run, selection, on_step=on_step)
            self.opened.long.keep(name, question, found)
        return run, view, found

    def replay(self, name: str, selection: Selection, request: Request) -> Response:
        """Make the weights after the selected step again, so that views can be asked of it."""
        if not selection.checkpoint.isdecimal():
            raise UserError(f"checkpoint: the number of a step; got {shown(selection.checkpoint)}")
        with self.opened.long.turn(name) as on_step:
            self.opened.replay(selection.run, int(selection.checkpoint), on_step)
        return JSONResponse({"step": int(selection.checkpoint)})

    async def progress(self, request: Request) -> Response:
        """How far a computation that takes long is."""
        told = self.opened.long.progress(request.path_params["name"])
        return JSONResponse(None if told is None else {"done": told[0], "total": told[1]})

    async def end(self, request: Request) -> Response:
        """End a computation that takes long."""
        self.opened.long.end(request.path_params["name"])
        return JSONResponse(None)

    def of(self, name: str, selection: Selection) -> tuple[Run, View]:
        """The run and the view that are asked for.

        Raises:
            UserError: there is no such view of this run.
        """
        if name not in VIEWS:
            raise UserError(f"there is no view {shown(name)}{did_you_mean(name, VIEWS)}")
        run = self.opened.get(selection.run, "latest" if VIEWS[name].is_of_run else selection.checkpoint)
        if not VIEWS[name].fits(run):
            raise UserError(f"{VIEWS[name].title}: this run has no such view")
        return run, VIEWS[name]

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
