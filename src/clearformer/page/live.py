"""A run's metrics, followed while it trains."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from clearformer.errors import RunError
from clearformer.run import Run

EVERY_SECONDS = 0.5
MOST_BYTES = 1 << 22  # in one message


async def followed(run: Run, cursor: int) -> AsyncIterator[dict[str, Any]]:
    """The lines of metrics.jsonl from a cursor on, and those that are added later.

    Args:
        run: One that is kept in a folder; of another there is nothing to follow.
        cursor: How many bytes were read before; 0 at first.

    Yields:
        `lines`, and the `cursor` behind them. `restarted` says that the file became shorter, as when a run is resumed
        from an earlier step: then the lines are all that it has.
    """
    try:
        path = run.folder.metrics_file
    except RunError:
        return
    while True:
        size = path.stat().st_size if path.exists() else 0
        restarted = size < cursor
        if restarted or size > cursor:
            cursor = 0 if restarted else cursor
            lines, cursor = await asyncio.to_thread(whole_lines, path, cursor)
            if lines or restarted:
                yield {"lines": lines, "cursor": cursor, "restarted": restarted}
        await asyncio.sleep(EVERY_SECONDS)


def whole_lines(path: Path, start: int) -> tuple[list[Any], int]:
    """The objects on a file's whole lines from a byte on, and where the next line begins."""
    with path.open("rb") as file:
        file.seek(start)
        content = file.read(MOST_BYTES)
    whole = content[: content.rfind(b"\n") + 1]
    return [json.loads(line) for line in whole.splitlines() if line.strip()], start + len(whole)
