"""The user's cache folder, and the names of things in it."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def cache_folder() -> Path:
    """`$CLEARFORMER_CACHE`, else `clearformer` in `$XDG_CACHE_HOME`, else in `~/.cache`."""
    if own := os.environ.get("CLEARFORMER_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "clearformer"


def key_of(settings: Mapping[str, Any]) -> str:
    """A short name for JSON-able settings: equal for equal ones, and for no others."""
    canonical = json.dumps(settings, sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]
