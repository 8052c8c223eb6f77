"""The user's cache folder, and the names of things in it."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clearformer.files import user_path


def cache_folder() -> Path:
    """`$CLEARFORMER_CACHE`, else `clearformer` in `$XDG_CACHE_HOME`, else in `~/.cache`."""
    if own := os.environ.get("CLEARFORMER_CACHE"):
        return user_path(own)
    return user_path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "clearformer"


def key_of(settings: Mapping[str, Any]) -> str:
    """A short name for JSON-able settings: equal for equal ones, and for no others."""
    canonical = json.dumps(settings, sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]
