"""Tokens on disk: flat little-endian files, memory-mapped, and a manifest that describes them.

    manifest.json        version, dtype, source, tokenizer, and for each split its sizes and its shards
    train-00000.bin ...  the tokens of a split in order, nothing else

`numpy.memmap(path, dtype)` reads a shard. The dtype is uint16 if every token fits, else uint32.
"""

import hashlib
import json
import mmap
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Protocol, Self

import numpy as np

from clearformer.errors import ClearformerError, DataError
from clearformer.files import parse_json, sync

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
SHARD_TOKENS = 100_000_000
BUFFERED_TOKENS = 1 << 20
# A memory map is fastest, but all pages that it ever touched count as resident, in pieces of up to 2 MB (the system's
# large pages): a thousand batches from random places of a large text would fill the memory. Above this size, shards
# are read by position instead, and caching is left to the system.
MAPPED_BYTES = 256 << 20


class ShardError(ClearformerError):
    """Prepared tokens are damaged or incomplete."""


def token_dtype(vocab_size: int) -> np.dtype:
    """Return the smallest type that holds every token."""
    return np.dtype("<u2") if vocab_size <= 1 << 16 else np.dtype("<u4")


class ShardWriter:
    """Writer of one split's tokens, in order, as shards of at most `shard_tokens`."""

    def __init__(self, folder: Path, split: str, dtype: np.dtype, shard_tokens: int = SHARD_TOKENS):
        self.n_tokens = 0
        self.shards: list[dict[str, Any]] = []
        self._folder, self._split, self._dtype, self._shard_tokens = folder, split, dtype, shard_tokens
        self._waiting: list[np.ndarray] = []
        self._n_waiting = 0
        self._file: BinaryIO | None = None
        self._digest = hashlib.sha256()
        self._n_in_shard = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._flush()
            self._end_shard()
        elif self._file:
            self._file.close()

    def add(self, ids: np.ndarray) -> None:
        """Append tokens to the split."""
        self._waiting.append(ids.astype(self._dtype))
        self._n_waiting += len(ids)
        self.n_tokens += len(ids)
        if self._n_waiting >= BUFFERED_TOKENS:
            self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return
        tokens = np.concatenate(self._waiting)
        self._waiting, self._n_waiting = [], 0
        while len(tokens):
            if self._n_in_shard == self._shard_tokens:
                self._end_shard()
            now, tokens = np.split(tokens, [self._shard_tokens - self._n_in_shard])
            self._write(now)

    def _write(self, tokens: np.ndarray) -> None:
        if self._file is None:
            self._file = (self._folder / f"{self._split}-{len(self.shards):05d}.bin").open("wb")
            self._digest = hashlib.sha256()
        content = tokens.tobytes()
        self._file.write(content)
        self._digest.update(content)
        self._n_in_shard += len(tokens)

    def _end_shard(self) -> None:
        if self._file is None:
            return
        with self._file as file:
            file.flush()
            sync(file.fileno())
        name = Path(file.name).name
        self.shards.append({"file": name, "n_tokens": self._n_in_shard, "sha256": self._digest.hexdigest()})
        self._file, self._n_in_shard = None, 0


class Tokens(Protocol):
    """A sequence of tokens that can be sliced."""

    def __len__(self) -> int: ...
    def __getitem__(self, tokens: slice, /) -> np.ndarray: ...


class Split:
    """One split's tokens: `len()` of them, read by position.

    Args:
        name: train, val or test.
        shards: Its tokens in order, one sequence per shard.
        n_chars: Characters of the text that the tokens were made from.
        n_bytes: The size of that text in UTF-8.
        n_words: Its words, as `str.split` counts them in each document; None if they were not counted.
    """

    def __init__(
        self, name: str, shards: Sequence[Tokens], n_chars: int, n_bytes: int, n_words: int | None = None
    ):
        self.name = name
        self.n_chars = n_chars
        self.n_bytes = n_bytes
        self.n_words = n_words
        self._shards = list(shards)
        self._ends = np.cumsum([len(shard) for shard in self._shards], dtype=np.int64)
        self.n_tokens = int(self._ends[-1]) if self._shards else 0

    def __len__(self) -> int:
        return self.n_tokens

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return the tokens from `start` up to `stop`, int64.

        Raises:
            IndexError: they do not all exist.
        """
        return self.windows(np.array([start]), stop - start)[0]

    def windows(self, starts: np.ndarray, length: int) -> np.ndarray:
        """Return the `length` tokens from each start, [B length] int64.

        Raises:
            IndexError: some of them do not exist.
        """
        if length < 0 or (len(starts) and (starts.min() < 0 or starts.max() + length > self.n_tokens)):
            raise IndexError(
                f"the {self.name} split has {self.n_tokens} tokens; the request goes beyond them"
            )
        out = np.empty((len(starts), length), np.int64)
        [shard] = self._shards if len(self._shards) == 1 else [None]
        if isinstance(shard, np.ndarray):  # all rows at once: most texts have one mapped shard
            np.copyto(out, shard[starts[:, None] + np.arange(length)])
            return out
        for row, start in zip(out, starts.tolist(), strict=True):
            self._copy(start, row)
        return out

    def _copy(self, start: int, row: np.ndarray) -> None:
        index = int(np.searchsorted(self._ends, start, side="right"))
        done = 0
        while done < len(row):
            offset = start + done - (int(self._ends[index - 1]) if index else 0)
            part = self._shards[index][offset : offset + len(row) - done]
            row[done : done + len(part)] = part
            done += len(part)
            index += 1


class FileShard:
    """A shard's tokens, read from its file when they are asked for: `len()` and slices, as of an array."""

    def __init__(self, path: Path, n_tokens: int, dtype: np.dtype):
        self._path, self._n_tokens, self._dtype = path, n_tokens, dtype
        with read_errors(path):
            self._descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor)

    def __len__(self) -> int:
        return self._n_tokens

    def __getitem__(self, tokens: slice) -> np.ndarray:
        start, stop, _ = tokens.indices(self._n_tokens)
        size, offset = (stop - start) * self._dtype.itemsize, start * self._dtype.itemsize
        content = os.pread(self._descriptor, size, offset)
        if len(content) < size:
            raise ShardError(f"{self._path}: became shorter while it was in use")
        return np.frombuffer(content, self._dtype)


@contextmanager
def read_errors(path: Path) -> Iterator[None]:
    """Tell a file of prepared data that is missing from one that only cannot be read just now, and may be whole.

    Raises:
        ShardError: it is missing.
        DataError: it cannot be read.
    """
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise ShardError(f"{path}: missing") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None


def _mapped(path: Path, dtype: np.dtype) -> np.ndarray:
    with read_errors(path), path.open("rb") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype)


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write the manifest; it comes last, because it says that all files are complete."""
    with (folder / MANIFEST).open("w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=1)
        file.flush()
        sync(file.fileno())


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of a prepared text, and check that its shards exist at their full size.

    Raises:
        ShardError: the manifest cannot be used, or a shard is missing or of the wrong size.
    """

    def sizes(manifest: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], int]]:
        itemsize = np.dtype(manifest["dtype"]).itemsize
        return ((shard, shard["n_tokens"] * itemsize) for shard in _shards_of(manifest))

    return read_manifest_of(folder, "tokens", FORMAT_VERSION, sizes)


def read_manifest_of(
    folder: Path,
    what: str,
    version: int,
    sizes: Callable[[Mapping[str, Any]], Iterator[tuple[Mapping[str, Any], int]]],
) -> dict[str, Any]:
    """Read the manifest of prepared data of one format, and check that its files exist at their full size.

    Args:
        folder: The folder of the prepared data.
        what: The word for the data in messages.
        version: The expected version of the format.
        sizes: Returns the entry and the size in bytes of each file in a manifest.

    Raises:
        ShardError: the manifest cannot be used, or a file is missing or of the wrong size.
        DataError: it cannot be read.
    """
    path = folder / MANIFEST
    with read_errors(path):
        content = path.read_bytes()
    try:
        manifest = parse_json(content.decode())
        given = manifest["version"]
        files = [(path_in(folder, entry), size) for entry, size in sizes(manifest)]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ShardError(f"{path}: not a manifest of prepared {what} ({error!r})") from None
    if given != version:
        raise ShardError(f"{path}: format version {given}; this clearformer reads version {version}")
    for file, size in files:
        with read_errors(file):
            found = file.stat().st_size
        if found != size:
            raise ShardError(f"{file}: damaged: {found} bytes instead of {size}")
    return manifest


def check_contents(folder: Path, manifest: Mapping[str, Any]) -> int:
    """Check the SHA-256 of every shard and return the number of shards.

    Raises:
        ShardError: a shard's SHA-256 is not the manifest's.
    """
    return check_files(folder, _shards_of(manifest))


def check_files(folder: Path, entries: Iterable[Mapping[str, Any]]) -> int:
    """Check the SHA-256 of the files of some manifest entries and return their number.

    Raises:
        ShardError: a file's SHA-256 is not the manifest's.
    """
    n_files = 0
    for entry in entries:
        path = path_in(folder, entry)
        with read_errors(path), path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != entry["sha256"]:
                raise ShardError(f"{path}: damaged: its SHA-256 differs from the manifest's")
        n_files += 1
    return n_files


def open_splits(folder: Path, manifest: Mapping[str, Any]) -> dict[str, Split]:
    """Open the splits of a prepared text, read-only, without loading any tokens."""
    dtype = np.dtype(manifest["dtype"])
    n_bytes = sum(shard["n_tokens"] for shard in _shards_of(manifest)) * dtype.itemsize
    by_position = n_bytes > MAPPED_BYTES and hasattr(os, "pread")  # Windows has no such call

    def opened(shard: Mapping[str, Any]) -> Tokens:
        path = path_in(folder, shard)
        return FileShard(path, shard["n_tokens"], dtype) if by_position else _mapped(path, dtype)

    return {
        name: Split(
            name,
            [opened(shard) for shard in entry["shards"]],
            entry["n_chars"],
            entry["n_bytes"],
            entry.get("n_words"),
        )
        for name, entry in manifest["splits"].items()
    }


def _shards_of(manifest: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for entry in manifest["splits"].values():
        yield from entry["shards"]


def path_in(folder: Path, entry: Mapping[str, Any]) -> Path:
    """Return the path of a manifest entry's file.

    Raises:
        ValueError: it lies outside the folder.
    """
    name = entry["file"]
    if Path(name).name != name:
        raise ValueError(f"file {name!r} lies outside the folder")
    return folder / name
