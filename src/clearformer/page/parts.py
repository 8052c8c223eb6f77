"""Answers in parts: intermediate results are sent while the computation goes on."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import Executor
from contextlib import aclosing

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from clearformer.page.long import EndedError

SECONDS_BETWEEN = 0.05  # between two parts, because the page redraws each

Tell = Callable[[Callable[[], bytes]], None]
"""Receives a function that makes the bytes of a part; raises EndedError once nobody waits for the answer."""


async def parts_of(compute: Callable[[Tell], bytes], thread: Executor) -> AsyncGenerator[bytes]:
    """Yield the parts of an answer as they come, and the complete answer last.

    Args:
        compute: Reports intermediate parts (those that come too fast are skipped), and returns the complete answer.
        thread: Runs the computation.

    Raises:
        Exception: whatever the computation raised.
    """
    loop = asyncio.get_running_loop()
    told: asyncio.Queue[bytes | None] = asyncio.Queue()
    is_left, next_at = False, 0.0

    def tell(make: Callable[[], bytes]) -> None:
        nonlocal next_at
        if is_left:
            raise EndedError("nobody waits for this answer any more")
        if time.monotonic() >= next_at:
            loop.call_soon_threadsafe(told.put_nowait, make())
            next_at = time.monotonic() + SECONDS_BETWEEN

    def run() -> bytes:
        try:
            return compute(tell)
        finally:
            loop.call_soon_threadsafe(told.put_nowait, None)

    computed = loop.run_in_executor(thread, run)
    computed.add_done_callback(
        lambda done: done.cancelled() or done.exception()
    )  # retrieved even if nobody waits
    try:
        while (part := await told.get()) is not None:
            yield part
        yield await computed
    finally:
        is_left = True


class InParts(StreamingResponse):
    """A response in parts; the computation ends once the client has gone."""

    def __init__(self, first: bytes, others: AsyncGenerator[bytes], media_type: str) -> None:
        super().__init__(joined(first, others), media_type=media_type)
        self.others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self.others):
            await super().__call__(scope, receive, send)


async def joined(first: bytes, others: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the first part, then the others."""
    yield first
    async for part in others:
        yield part
