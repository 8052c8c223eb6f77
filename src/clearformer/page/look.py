"""Open the page: start a server for this machine alone, in a thread of the calling process."""

import contextlib
import math
import socket
import threading
import time
import webbrowser
from collections.abc import Callable, Sequence
from html import escape
from numbers import Integral
from typing import Any

from clearformer.decoding.arguments import check_run
from clearformer.device import keep_freed_memory
from clearformer.errors import ClearformerError, UserError, needs_extra, shown
from clearformer.run import Run, load

HOST = "127.0.0.1"
STARTING_SECONDS = 10.0
MOST_HEAD_BYTES = 4 * 2**20  # of a request: the page's address contains the whole selection
KEPT_BYTES = 16 * 2**20  # the largest tensor whose memory is reused from one view to the next


class Looking:
    """An open page; `close()` ends its server.

    Attributes:
        address: Its URL. It works once: the browser that opens it keeps a cookie.
    """

    def __init__(self, address: str, server: Any, thread: threading.Thread, end: Callable[[], None]) -> None:
        self.address, self._server, self._thread, self._end = address, server, thread, end

    def close(self) -> None:
        """Stop the page's server, and what it computes."""
        self._server.should_exit = True
        self._thread.join(STARTING_SECONDS)
        self._end()

    @property
    def is_open(self) -> bool:
        """Whether the server is running."""
        return self._thread.is_alive()

    def wait(self, seconds: float = math.inf) -> None:
        """Wait until the server ends, or for at most `seconds`."""
        until = time.monotonic() + seconds
        while self.is_open and time.monotonic() < until:
            self._thread.join(0.1)

    def __repr__(self) -> str:
        return f"Looking({self.address!r})"

    def _repr_html_(self) -> str:
        return f'<a href="{escape(self.address)}" target="_blank">{escape(self.address)}</a>'


def look(
    run: Run | str,
    other: Run | str | None = None,
    *,
    text: str | None = None,
    port: int = 0,
    browser: bool = True,
    device: str = "auto",
) -> Looking:
    """Open the page of a run, or of two runs, with every view as their difference.

    Args:
        run: A run, or its name.
        other: A second run to compare with; the page's bar can also show either alone.
        text: The text to read at first; by default the beginning of the run's held-out text.
        port: A port of this machine; 0 for a free one.
        browser: Whether to open the address in a browser.
        device: The device of models that are loaded by name.

    Raises:
        RunError: there is no such run.
        UserError: no run is given, the port is taken or invalid, or both runs have the same name.
        MissingPackageError: the server's packages are not installed.
    """
    if run is None:
        check_run(run)
    with needs_extra("page", "the page needs starlette, uvicorn and websockets"):
        import uvicorn
        import websockets  # noqa: F401  (without it, uvicorn serves no WebSocket and says so only in its log)

        from clearformer.page.beginning import first_selection
        from clearformer.page.opened import OpenedRuns
        from clearformer.page.security import Gate
        from clearformer.page.server import PageServer
    runs = [
        each if isinstance(each, Run) else load(each, device=device)
        for each in (run, other)
        if each is not None
    ]
    check_names(runs)
    if all(each.model.embed.weight.device.type == "cpu" for each in runs):
        keep_freed_memory(KEPT_BYTES)
    listening = bound_socket(port)
    gate = Gate(listening.getsockname()[1])
    page = PageServer(OpenedRuns(runs, device), first_selection(runs[0], text, *runs[1:]))
    config = uvicorn.Config(
        page.app(gate),
        log_level="critical",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=0,
        ws_max_size=1 << 16,
        h11_max_incomplete_event_size=MOST_HEAD_BYTES,
        lifespan="off",
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listening],), name="clearformer page", daemon=True)
    thread.start()
    wait_for(server, thread)
    looking = Looking(f"http://{HOST}:{gate.port}/?token={gate.token}", server, thread, page.end_computing)
    if browser:
        with contextlib.suppress(webbrowser.Error):
            webbrowser.open(looking.address)
    return looking


def check_names(runs: Sequence[Run]) -> None:
    """Raise UserError if two runs have the same name."""
    if len({run.name for run in runs}) < len(runs):
        raise UserError(f"both runs are called {runs[0].name}; save one under another name: run.save(NAME)")


def bound_socket(port: int) -> socket.socket:
    """Return a socket bound to a port of this machine's loopback address.

    Raises:
        UserError: the port is taken or invalid.
    """
    if not isinstance(port, Integral) or isinstance(port, bool) or not 0 <= port <= 65535:
        raise UserError(f"port: a number up to 65535, or 0 for a free one; got {shown(port)}")
    # With the protocol given as TCP, asyncio sends small answers at once; else each waits 40 ms for an acknowledgement.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, int(port)))
    except OSError as error:
        listening.close()
        raise UserError(
            f"port: {port} cannot be opened here ({error.strerror}); choose another, or 0"
        ) from None
    return listening


def wait_for(server: Any, thread: threading.Thread) -> None:
    """Wait until the server has started.

    Raises:
        ClearformerError: it ended before that.
    """
    while not server.started:
        thread.join(0.01)
        if not thread.is_alive():
            raise ClearformerError("the page's server did not start; --debug shows why")
