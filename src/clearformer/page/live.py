"""Follow a run's metrics while it trains."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from clearformer.errors import RunError
from clearformer.run import Run
from clearformer.runs.folders import kept_steps

EVERY_SECONDS = 0.5
MOST_BYTES = 1 << 22  # in one message


async def followed(run: Run, cursor: int) -> AsyncIterator[dict[str, Any]]:
    """Follow the lines of metrics.jsonl from a cursor on, and the steps whose weights the run keeps.

    Args:
        run: A run in a folder; for any other, nothing is yielded.
        cursor: The number of bytes read before; 0 at first.

    Yields:
        `lines`, the `cursor` after them, and `steps`. `restarted` says that the file became shorter, as when a run is
        resumed from an earlier step; the lines then begin at the start of the file.
    """
    try:
        folder = run.folder
    except RunError:
        return
    path, said = folder.metrics_file, None
    while True:
        steps = await asyncio.to_thread(kept_steps, folder)
        size = path.stat().st_size if path.exists() else 0
        restarted = size < cursor
        lines: list[Any] = []
        if restarted or size > cursor:
            cursor = 0 if restarted else cursor
            lines, cursor = await asyncio.to_thread(whole_lines, path, cursor)
        if lines or restarted or steps != said:
            said = steps
            yield {"lines": lines, "cursor": cursor, "restarted": restarted, "steps": steps}
        await asyncio.sleep(EVERY_SECONDS)


def whole_lines(path: Path, start: int) -> tuple[list[Any], int]:
    """Parse the complete lines of a file from byte `start` on; returns their values and the offset after them."""
    with path.open("rb") as file:
        file.seek(start)
        content = file.read(MOST_BYTES)
    whole = content[: content.rfind(b"\n") + 1]
    return [json.loads(line) for line in whole.splitlines() if line.strip()], start + len(whole)
