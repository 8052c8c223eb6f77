"""Answers that come in parts: what a computation has so far is sent while it goes on."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import Executor
from contextlib import aclosing

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from clearformer.page.long import EndedError

SECONDS_BETWEEN = 0.05  # two parts, each of which is drawn anew

Tell = Callable[[Callable[[], bytes]], None]
"""Receives what makes the bytes of a part; raises EndedError where nobody waits for the answer any more."""


async def parts_of(compute: Callable[[Tell], bytes], thread: Executor) -> AsyncGenerator[bytes]:
    """The parts of an answer as they come, the whole of it last.

    Args:
        compute: Returns the whole answer, and tells what it has before; of parts that follow each other too fast, some.
        thread: Computes.

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
    computed.add_done_callback(lambda done: done.cancelled() or done.exception())  # also where nobody waits
    try:
        while (part := await told.get()) is not None:
            yield part
        yield await computed
    finally:
        is_left = True


class InParts(StreamingResponse):
    """An answer in parts, which are no longer made once nobody waits for them."""

    def __init__(self, first: bytes, others: AsyncGenerator[bytes], media_type: str) -> None:
        super().__init__(joined(first, others), media_type=media_type)
        self.others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self.others):
            await super().__call__(scope, receive, send)


async def joined(first: bytes, others: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The first of some parts, and the others."""
    yield first
    async for part in others:
        yield part
