"""Follow a run's metrics while it trains."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from clearformer.run import Run
from clearformer.runs.folders import folder_of
from clearformer.runs.kept_weights import kept_steps
from clearformer.training.store.folder import RunFolder

EVERY_SECONDS = 0.5
MOST_BYTES = 1 << 22  # in one message


async def followed(run: Run, cursor: int) -> AsyncIterator[dict[str, Any]]:
    """Follow the lines of metrics.jsonl from a cursor on, and the steps whose weights the run keeps.

    Args:
        run: A run in a folder; for any other, nothing is yielded.
        cursor: The number of bytes read before; 0 at first.

    Yields:
        What `news` returns, whenever there is any.
    """
    folder = folder_of(run)
    said = None
    while folder is not None:
        found = await asyncio.to_thread(news, folder, cursor)
        cursor = found["cursor"]
        if found["lines"] or found["restarted"] or found["steps"] != said:
            said = found["steps"]
            yield found
        await asyncio.sleep(EVERY_SECONDS)


def news(folder: RunFolder, cursor: int) -> dict[str, Any]:
    """Return what is new of a run.

    Args:
        folder: The run's folder.
        cursor: The number of bytes of metrics.jsonl that were read before; 0 at first.

    Returns:
        `lines`, the `cursor` after them, and `steps`. `restarted` says that the file became shorter, as when a run is
        resumed from an earlier step; the lines then begin at the start of the file.

    Raises:
        ValueError: a line is damaged.
    """
    path = folder.metrics_file
    size = path.stat().st_size if path.exists() else 0
    restarted = size < cursor
    start = 0 if restarted else cursor
    lines, end = whole_lines(path, start) if size > start else ([], start)
    return {"lines": lines, "cursor": end, "restarted": restarted, "steps": kept_steps(folder)}


def whole_lines(path: Path, start: int) -> tuple[list[Any], int]:
    """Parse the complete lines of a file from byte `start` on; returns their values and the offset after them."""
    with path.open("rb") as file:
        file.seek(start)
        content = file.read(MOST_BYTES)
    whole = content[: content.rfind(b"\n") + 1]
    return [json.loads(line) for line in whole.splitlines() if line.strip()], start + len(whole)
