"""The page's server: serves its files and computes the views of its runs."""

import asyncio
import json
import logging
import mimetypes
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp
from starlette.websockets import WebSocket, WebSocketDisconnect

from clearformer.device import FreedMemory
from clearformer.errors import ClearformerError, UserError, shown
from clearformer.lens import Readings, Shown
from clearformer.page.live import followed
from clearformer.page.long import LOOK_EVERY_SECONDS, EndedError
from clearformer.page.opened import OpenedRuns
from clearformer.page.parts import InParts, Tell, parts_of
from clearformer.page.security import MOST_BODY_BYTES, Gate, Guarded
from clearformer.page.selection import Selection, read_selection
from clearformer.page.standalone.export import one_file
from clearformer.page.views import VIEWS, View, check_picture, find_view, table_of
from clearformer.page.wire import encode, framed
from clearformer.run import Run

STATIC = Path(__file__).parent / "static"
WIRE = "application/octet-stream"
PICTURE_TYPES = {"svg": "image/svg+xml", "png": "image/png"}
READINGS_MEGABYTES = 96  # of cached activations
KEPT_MEGABYTES = 128  # of memory freed by the last views that is reused for the next
REPLAY = "replay"  # the name of replays among the long computations
BAD_REQUEST = 400
CONFLICT = 409  # it was ended by the user, or nobody waited for it any more
CLOSED = 499  # the client has gone
SERVER_ERROR = 500

logger = logging.getLogger(__name__)


class PageServer:
    """Answers the page's requests. One thread computes quick views, because two would only slow each other down."""

    def __init__(self, opened: OpenedRuns, first: Selection) -> None:
        self.opened, self.first = opened, first
        self.readings = Readings(READINGS_MEGABYTES)
        self.freed = FreedMemory(KEPT_MEGABYTES * 2**20)
        self.turn = asyncio.Lock()
        self.thread = ThreadPoolExecutor(1, "clearformer page computes")
        self.drawing = Lock()

    def app(self, gate: Gate) -> ASGIApp:
        """Return the application behind its gate."""
        in_parts = {
            name: partial(answered_or_refused, partial(self.view_in_parts, name))
            for name, view in VIEWS.items()
            if view.is_in_parts
        }
        routes = [
            Route("/", self.index),
            Route("/api/runs", self.runs),
            *(Route(f"/api/view/{name}", answer, methods=["POST"]) for name, answer in in_parts.items()),
            Route("/api/view/{view}", self.answering(self.view), methods=["POST"]),
            Route("/api/table/{view}", self.answering(self.table), methods=["POST"]),
            Route("/api/figure/{view}.{kind}", self.answering(self.figure), methods=["POST"]),
            Route("/api/export", self.answering(self.export), methods=["POST"]),
            Route("/api/replay", self.answering(self.replay, REPLAY), methods=["POST"]),
            Route("/api/progress/{name}", self.progress),
            Route("/api/end/{name}", self.end, methods=["POST"]),
            WebSocketRoute("/api/live", self.live),
        ]
        app = Starlette(routes=routes)
        mimetypes.add_type("text/javascript", ".js")  # Windows may have another one, which browsers refuse
        mimetypes.add_type("text/css", ".css")
        app.mount("/static", StaticFiles(directory=STATIC))
        return Guarded(app, gate)

    def end_computing(self) -> None:
        """End long computations at their next step, and the thread once it has computed what it is at."""
        self.opened.long.end_all()
        self.thread.shutdown(wait=False, cancel_futures=True)

    async def index(self, request: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    async def runs(self, request: Request) -> Response:
        """Return the runs, their checkpoints and views, and the initial selection."""
        return JSONResponse({"runs": self.opened.cards(), "first": self.first.model_dump()})

    def answering(
        self, answer: Callable[[Request, Selection], Response], name: str = ""
    ) -> Callable[[Request], Any]:
        """Return a route that reads a selection and answers from the computing thread, or from another if it is long.

        A request that the page has dropped meanwhile, because it made a newer one, is not computed.
        """

        async def answered(request: Request, selection: Selection) -> Response:
            if takes_long(request.path_params.get("view", name)):
                return await answer_while_awaited(answer, request, selection)
            async with self.turn:
                if await request.is_disconnected():
                    return Response(status_code=CLOSED)
                computed = partial(self.computed, answer, request, selection)
                return await asyncio.get_running_loop().run_in_executor(self.thread, computed)

        return partial(answered_or_refused, answered)

    async def view_in_parts(self, name: str, request: Request, selection: Selection) -> Response:
        """Return a view's numbers and Python in parts, with intermediate results before the complete one."""
        parts = self.parts(name, request, selection)
        first = await anext(parts, None)
        return Response(status_code=CLOSED) if first is None else InParts(first, parts, WIRE)

    async def parts(self, name: str, request: Request, selection: Selection) -> AsyncGenerator[bytes]:
        """Yield the parts of a view, each after its length; nothing if the client has gone."""
        is_begun = False
        async with self.turn:
            if await request.is_disconnected():
                return
            try:
                compute = partial(self.computed_in_parts, name, selection)
                async with aclosing(parts_of(compute, self.thread)) as parts:
                    async for part in parts:
                        yield framed(part)
                        is_begun = True
            except Exception as error:
                if not is_begun:
                    raise
                yield framed(encode({"error": refusal(request, error)[0]}))

    def computed_in_parts(self, name: str, selection: Selection, tell: Tell) -> bytes:
        """Compute a view; passes the intermediate parts to `tell` and returns the complete one."""
        with self.keeping():
            run, view = self.of(name, selection)

            def encoded(found: Shown) -> bytes:
                return encode(view.described(run, selection, found))

            return encoded(view.call(run, selection, on_part=lambda part: tell(lambda: encoded(part))))

    def computed(
        self, answer: Callable[[Request, Selection], Response], request: Request, selection: Selection
    ) -> Response:
        """Compute an answer with cached activations."""
        with self.keeping():
            return answer(request, selection)

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Cache activations from one computation to the next, and bound the freed memory that the process keeps."""
        try:
            with self.readings.in_use():
                yield
        finally:
            self.freed.bound()

    def view(self, request: Request, selection: Selection) -> Response:
        """Return a view's numbers and Python."""
        run, other, view, found = self.found(
            request.path_params["view"], selection, is_left=lambda: request.state.is_left
        )
        return Response(encode(view.described(run, selection, found, other)), media_type=WIRE)

    def table(self, request: Request, selection: Selection) -> Response:
        """Return a view as a table."""
        *_, found = self.found(request.path_params["view"], selection, again=False)
        return JSONResponse(table_of(found))

    def figure(self, request: Request, selection: Selection) -> Response:
        """Return a view as a picture."""
        kind = request.path_params["kind"]
        check_picture(kind)
        *_, view, found = self.found(request.path_params["view"], selection, again=False)
        with self.drawing:
            picture = view.drawn(found, kind)
        return Response(picture, media_type=PICTURE_TYPES[kind])

    def export(self, request: Request, selection: Selection) -> Response:
        """Return the whole page as one file."""
        run = self.opened.get(selection.run, selection.checkpoint)
        versus, step = selection.versus, selection.versus_checkpoint or "latest"
        other = self.opened.get(versus, step, "versus") if versus else None
        with self.drawing:
            content = one_file(run, selection, other)
        return Response(content, media_type="text/html")

    def found(
        self,
        name: str,
        selection: Selection,
        again: bool = True,
        is_left: Callable[[], bool] = lambda: False,
    ) -> tuple[Run, Run | None, View, Shown]:
        """Return the run, the second run, the view and its result; complete if for a table or picture (not `again`).

        A long view does not delay quick ones, and is not computed again for its table or picture. `is_left` says
        whether nobody waits for it any more.
        """
        run, view = self.of(name, selection)
        other = self.opened.beside(view, selection)
        if not view.is_long:
            return run, other, view, (view if again else view.whole).call(run, selection, other)
        question = [getattr(selection, field) for field in view.fields]
        found = None if again else self.opened.long.kept(name, question)
        if found is None:
            if not again and self.opened.long.progress(name) is not None:
                raise UserError(f"{name}: still being computed; save it when it is done")
            with self.opened.long.turn(name, is_left) as on_step:
                opened = {"opened": self.opened.made_again(run.name)} if view.takes_opened else {}
                found = view.call(run, selection, other, on_step=on_step, **opened)
            self.opened.long.keep(name, question, found)
        return run, other, view, found

    def replay(self, request: Request, selection: Selection) -> Response:
        """Compute the weights after the selected step again, so that views can show it."""
        if not selection.checkpoint.isdecimal():
            raise UserError(f"checkpoint: a step number; got {shown(selection.checkpoint)}")
        with self.opened.long.turn(REPLAY, lambda: request.state.is_left) as on_step:
            self.opened.replay(selection.run, int(selection.checkpoint), on_step)
        return JSONResponse(
            {"step": int(selection.checkpoint), "replayed": self.opened.replayed(selection.run)}
        )

    async def progress(self, request: Request) -> Response:
        """Return the progress of a long computation."""
        told = self.opened.long.progress(request.path_params["name"])
        return JSONResponse(None if told is None else {"done": told[0], "total": told[1]})

    async def end(self, request: Request) -> Response:
        """Cancel a long computation."""
        self.opened.long.end(request.path_params["name"])
        return JSONResponse(None)

    def of(self, name: str, selection: Selection) -> tuple[Run, View]:
        """Return the requested run and view.

        Raises:
            UserError: there is no such view of this run.
        """
        is_of_run = name in VIEWS and VIEWS[name].is_of_run
        run = self.opened.get(selection.run, "latest" if is_of_run else selection.checkpoint)
        return run, find_view(name, run)

    async def live(self, socket: WebSocket) -> None:
        """Send the lines of a run's metrics as they are written, from a cursor on."""
        name = socket.query_params.get("run", "")
        cursor = socket.query_params.get("cursor", "0")
        if name not in self.opened.shelves or not cursor.isdecimal():
            await socket.close(1008)
            return
        await socket.accept()
        sending = asyncio.create_task(send_lines(socket, self.opened.shelves[name].run, int(cursor)))
        leaving = asyncio.create_task(until_left(socket))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                await sending
        except asyncio.CancelledError:
            return
        finally:
            sending.cancel()
            leaving.cancel()


async def send_lines(socket: WebSocket, run: Run, cursor: int) -> None:
    """Send the lines of a run's metrics from a cursor on, until it cannot be followed any further."""
    try:
        async for lines in followed(run, cursor):
            await socket.send_json(lines)
    except ValueError:
        await socket.close()  # a damaged line; the view `training` reports which
    except (WebSocketDisconnect, RuntimeError):
        return


async def until_left(socket: WebSocket) -> None:
    """Wait until the client has gone: where a run writes nothing, sending would never show it."""
    while (await socket.receive())["type"] != "websocket.disconnect":
        pass


async def answer_while_awaited(
    answer: Callable[[Request, Selection], Response], request: Request, selection: Selection
) -> Response:
    """Answer from another thread; `request.state.is_left` says there that the client has gone."""
    request.state.is_left = False
    work = asyncio.ensure_future(run_in_threadpool(answer, request, selection))
    while not (await asyncio.wait((work,), timeout=LOOK_EVERY_SECONDS))[0]:
        request.state.is_left = request.state.is_left or await request.is_disconnected()
    return await work


async def answered_or_refused(
    answer: Callable[[Request, Selection], Awaitable[Response]], request: Request
) -> Response:
    """Return the answer to a request, or a one-line error."""
    try:
        return await answer(request, selection_in(await limited_body(request)))
    except Exception as error:
        words, status = refusal(request, error)
        return JSONResponse({"error": words}, status)


def refusal(request: Request, error: Exception) -> tuple[str, int]:
    """Return the message and HTTP status for an error; unexpected errors are logged."""
    if isinstance(error, EndedError):
        return str(error), CONFLICT
    if isinstance(error, ClearformerError):
        return str(error), BAD_REQUEST
    logger.error("the page: %s failed", request.url.path, exc_info=error)
    return "this view failed; the traceback is in the terminal that started the page", SERVER_ERROR


def takes_long(name: str) -> bool:
    """Whether a request is a long computation (`page/long.py`)."""
    return name == REPLAY or (name in VIEWS and VIEWS[name].is_long)


def selection_in(body: bytes) -> Selection:
    """Return the selection that a request's body holds.

    Raises:
        UserError: it is not JSON, too deep, has a number that is too long, or is no selection.
    """
    try:
        return read_selection(json.loads(body))
    except (ValueError, RecursionError):
        raise UserError("the request is not JSON, or too deep or long to read") from None


async def limited_body(request: Request) -> bytes:
    """Return a request's body.

    Raises:
        UserError: it is too large.
    """
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_BODY_BYTES:
            raise UserError(f"a request holds at most {MOST_BODY_BYTES:,} bytes")
    return body
