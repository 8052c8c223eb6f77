"""A run's metrics, followed while it trains."""

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
    """The lines of metrics.jsonl from a cursor on and those that are added later, and the steps that the run keeps.

    Args:
        run: One that is kept in a folder; of another there is nothing to follow.
        cursor: How many bytes were read before; 0 at first.

    Yields:
        `lines`, the `cursor` behind them, and `steps`. `restarted` says that the file became shorter, as when a run is
        resumed from an earlier step: then the lines are all that it has.
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
    """The objects on a file's whole lines from a byte on, and where the next line begins."""
    with path.open("rb") as file:
        file.seek(start)
        content = file.read(MOST_BYTES)
    whole = content[: content.rfind(b"\n") + 1]
    return [json.loads(line) for line in whole.splitlines() if line.strip()], start + len(whole)
