"""Tokens on disk: flat little-endian files, memory-mapped, beside a manifest that describes them.

    manifest.json        version, dtype, source, tokeniser, and for each split its sizes and its shards
    train-00000.bin ...  the tokens of a split in order, nothing else

A shard is what `numpy.memmap(path, dtype)` reads. The dtype is uint16 where every token fits, else uint32.
"""

import hashlib
import json
import mmap
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Protocol, Self

import numpy as np

from clearformer.errors import ClearformerError
from clearformer.files import parse_json, sync

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
SHARD_TOKENS = 100_000_000
BUFFERED_TOKENS = 1 << 20
# A memory map is the fastest, but all it ever touched counts as resident, in pieces of up to 2 MB (the system's large
# pages): a thousand batches from random places of a large text would fill the memory. Above this size, shards are
# read by position instead, which leaves everything to the system's cache.
MAPPED_BYTES = 256 << 20


class ShardError(ClearformerError):
    """Prepared tokens are damaged or incomplete."""


def token_dtype(vocab_size: int) -> np.dtype:
    """The smallest type that holds every token."""
    return np.dtype("<u2") if vocab_size <= 1 << 16 else np.dtype("<u4")


class ShardWriter:
    """Writes one split's tokens, in order, as shards of at most `shard_tokens`."""

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
        """Appends tokens to the split."""
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
    """A row of tokens, of which slices can be taken."""

    def __len__(self) -> int: ...
    def __getitem__(self, tokens: slice, /) -> np.ndarray: ...


class Split:
    """One split's tokens: `len()` of them, read by position.

    Args:
        name: train, val or test.
        shards: its tokens in order, as sequences one after the other.
        n_chars: characters of text it was made from.
        n_bytes: the same in UTF-8.
    """

    def __init__(self, name: str, shards: Sequence[Tokens], n_chars: int, n_bytes: int):
        self.name = name
        self.n_chars = n_chars
        self.n_bytes = n_bytes
        self._shards = list(shards)
        self._ends = np.cumsum([len(shard) for shard in self._shards], dtype=np.int64)
        self.n_tokens = int(self._ends[-1]) if self._shards else 0

    def __len__(self) -> int:
        return self.n_tokens

    def read(self, start: int, stop: int) -> np.ndarray:
        """Tokens `start` up to `stop` as int64.

        Raises:
            IndexError: they do not all exist.
        """
        return self.windows(np.array([start]), stop - start)[0]

    def windows(self, starts: np.ndarray, length: int) -> np.ndarray:
        """The `length` tokens from each start, [B length] int64.

        Raises:
            IndexError: some of them do not exist.
        """
        if length < 0 or (len(starts) and (starts.min() < 0 or starts.max() + length > self.n_tokens)):
            raise IndexError(f"the {self.name} split has {self.n_tokens} tokens; asked for some beyond them")
        out = np.empty((len(starts), length), np.int64)
        [shard] = self._shards if len(self._shards) == 1 else [None]
        if isinstance(shard, np.ndarray):  # all rows at once, as most texts allow
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
    """A shard's tokens read from its file when they are asked for: `len()` and slices, like an array's."""

    def __init__(self, path: Path, n_tokens: int, dtype: np.dtype):
        self._path, self._n_tokens, self._dtype = path, n_tokens, dtype
        self._descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor)

    def __len__(self) -> int:
        return self._n_tokens

    def __getitem__(self, tokens: slice) -> np.ndarray:
        start, stop, _ = tokens.indices(self._n_tokens)
        size, offset = (stop - start) * self._dtype.itemsize, start * self._dtype.itemsize
        content = os.pread(self._descriptor, size, offset)
        if len(content) < size:
            raise ShardError(f"{self._path}: has become shorter while it was in use")
        return np.frombuffer(content, self._dtype)


def _mapped(path: Path, dtype: np.dtype) -> np.ndarray:
    with path.open("rb") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype)


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Writes the manifest; last of all, as it says what is there."""
    with (folder / MANIFEST).open("w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=1)
        file.flush()
        sync(file.fileno())


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a prepared text, every shard it names being there at its full size.

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
    """The manifest of prepared data of one format, every file it names being there at its full size.

    Args:
        folder: Where they are.
        what: What they are, in a message.
        version: Of the format.
        sizes: The entry and the bytes of each file of a manifest.

    Raises:
        ShardError: the manifest cannot be used, or a file is missing or of the wrong size.
    """
    path = folder / MANIFEST
    try:
        manifest = parse_json(path.read_text(encoding="utf-8"))
        given = manifest["version"]
        files = [(path_in(folder, entry), size) for entry, size in sizes(manifest)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ShardError(f"{path}: not a manifest of prepared {what} ({error!r})") from None
    if given != version:
        raise ShardError(f"{path}: version {given} of the format; this clearformer reads {version}")
    for file, size in files:
        found = file.stat().st_size if file.is_file() else None
        if found != size:
            raise ShardError(f"{file}: {'missing' if found is None else f'damaged: {found} bytes of {size}'}")
    return manifest


def check_contents(folder: Path, manifest: Mapping[str, Any]) -> int:
    """Reads every shard, and gives the number of those read.

    Raises:
        ShardError: one whose SHA-256 is not the manifest's.
    """
    return check_files(folder, _shards_of(manifest))


def check_files(folder: Path, entries: Iterable[Mapping[str, Any]]) -> int:
    """Reads every file of some entries of a manifest, and gives the number of those read.

    Raises:
        ShardError: one whose SHA-256 is not the manifest's.
    """
    n_files = 0
    for entry in entries:
        path = path_in(folder, entry)
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != entry["sha256"]:
                raise ShardError(f"{path}: damaged: its SHA-256 is not the manifest's")
        n_files += 1
    return n_files


def open_splits(folder: Path, manifest: Mapping[str, Any]) -> dict[str, Split]:
    """The splits of a prepared text, read-only; none of it is loaded."""
    dtype = np.dtype(manifest["dtype"])
    n_bytes = sum(shard["n_tokens"] for shard in _shards_of(manifest)) * dtype.itemsize
    by_position = n_bytes > MAPPED_BYTES and hasattr(os, "pread")  # Windows has no such call

    def opened(shard: Mapping[str, Any]) -> Tokens:
        path = path_in(folder, shard)
        return FileShard(path, shard["n_tokens"], dtype) if by_position else _mapped(path, dtype)

    return {
        name: Split(name, [opened(shard) for shard in entry["shards"]], entry["n_chars"], entry["n_bytes"])
        for name, entry in manifest["splits"].items()
    }


def _shards_of(manifest: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for entry in manifest["splits"].values():
        yield from entry["shards"]


def path_in(folder: Path, entry: Mapping[str, Any]) -> Path:
    """The file of a manifest's entry.

    Raises:
        ValueError: it lies outside the folder.
    """
    name = entry["file"]
    if Path(name).name != name:
        raise ValueError(f"file {name!r} lies outside the folder")
    return folder / name
