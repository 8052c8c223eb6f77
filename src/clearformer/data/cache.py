"""The user's cache folder: its path, the keys of its entries, and reading entries back."""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from clearformer.config import code_hash
from clearformer.data.shards import MANIFEST, ShardError
from clearformer.errors import DiskError, TokenizerError, shown
from clearformer.files import discard, disk_errors, folder_made_whole, user_path, write_file
from clearformer.text import Tokenizer, load_tokenizer

logger = logging.getLogger(__name__)

Found = TypeVar("Found")


def cache_folder() -> Path:
    """Return `$CLEARFORMER_CACHE`, else `clearformer` in `$XDG_CACHE_HOME`, else in `~/.cache`."""
    if own := os.environ.get("CLEARFORMER_CACHE"):
        return user_path(own)
    return user_path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "clearformer"


def key_of(settings: Mapping[str, Any]) -> str:
    """Hash settings that JSON can hold into a short name: equal settings have equal names, others different ones."""
    canonical = json.dumps(settings, sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def own_code(part: type) -> dict[str, str]:
    """Return the part of a key that stands for the code of a user's class; nothing for the package's own."""
    code = code_hash(part)
    return {} if code is None else {"code": code}


def encoding_of(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the part of a key that stands for how a tokenizer encodes; its vocabulary is another part."""
    version = tokenizer.encoding_version
    return own_code(type(tokenizer)) | ({"encoding": version} if version > 1 else {})


def cached_tokenizer(
    cache: Path,
    key: Mapping[str, Any],
    train: Callable[[], Tokenizer],
    check: Callable[[], None] = lambda: None,
) -> Tokenizer:
    """Return the tokenizer of a key from the cache, or train it and put it there.

    Args:
        cache: The folder of the cache.
        key: What decides about it.
        train: Trains it.
        check: Called then; raises if the data are no longer those of the key.

    Raises:
        TokenizerError: a user's `train` returns something else.
    """
    path = cache / "tokenizers" / f"{key_of(key)}.json"
    if path.is_file():
        try:
            return load_tokenizer(path)
        except TokenizerError as error:
            logger.warning("%s; training the tokenizer again", error)
    tokenizer: Any = train()
    if not isinstance(tokenizer, Tokenizer):
        raise TokenizerError(f"tokenizer.kind: train must return a tokenizer; got {shown(tokenizer)}")
    check()
    with cache_errors():
        write_file(path, tokenizer.to_json().encode())
    return tokenizer


@contextmanager
def cache_errors() -> Iterator[None]:
    """Let an error of the `with` block about a place that cannot be written say how to choose another one.

    Raises:
        DiskError: likewise, with the name of the variable.
    """
    try:
        yield
    except DiskError as error:
        raise DiskError(f"{error} with $CLEARFORMER_CACHE") from error


@contextmanager
def made_in_cache(folder: Path) -> Iterator[Path]:
    """Yield a folder to fill; it becomes `folder` of the cache, its manifest last, if the `with` block succeeds.

    Raises:
        DiskError: it cannot be written; see `cache_errors`.
    """
    with cache_errors(), folder_made_whole(folder, MANIFEST, shared=True) as unfinished:
        yield unfinished


def found(folder: Path, read: Callable[[], Found], otherwise: str) -> Found | None:
    """Read a folder of prepared data; return None if there is no such folder, or it is damaged.

    Args:
        folder: The folder; it is deleted if it is damaged.
        read: Reads the folder, and raises ShardError if it is damaged.
        otherwise: The consequence of the damage, for the warning.
    """
    if not folder.exists():
        return None
    try:
        return read()
    except ShardError as error:
        logger.warning("%s; %s", error, otherwise)
        with disk_errors(folder):
            discard(folder)
        return None


def tokenizer_entry(tokenizer: Tokenizer) -> dict[str, Any]:
    """Describe a tokenizer for a manifest."""
    return {
        "kind": tokenizer.kind,
        "vocab_size": tokenizer.vocab_size,
        "fingerprint": tokenizer.fingerprint(),
    }
