"""Prepared pairs on disk: for each split, the tokens of both sides and the lines that they were made from.

    manifest.json            version, source, tokenizer, and for each split its sizes and its files
    train-source.npy         the tokens of all sources, one after the other (uint16 if every token fits, else uint32)
    train-source-ends.npy    for each pair, where its source ends in them (int64)
    train-source.txt         the sources as they were read, one per line
    train-target...          the same for the targets
    train-lines.npy          for each pair, its line in the file it was read from (int64)

The arrays are memory-mapped when opened, and never loaded as pickles.
"""

import hashlib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from clearformer.data.pairs.source import Pair
from clearformer.data.shards import ShardError, check_files, read_manifest_of
from clearformer.files import sync

PAIRS_VERSION = 2
SIDES = ("source", "target")
MAKE_AGAIN = "delete the folder to have it made again"


class PairSide:
    """One side of a split: a row of tokens and a line of text for each pair.

    Args:
        tokens: All rows, one after the other.
        ends: Where each row ends.
        read_texts: Reads the lines; called when they are first asked for.
    """

    def __init__(self, tokens: np.ndarray, ends: np.ndarray, read_texts: Callable[[], list[str]]):
        self._tokens = tokens
        self._ends = ends
        self._read_texts = read_texts
        self.lengths = np.diff(ends, prepend=0)

    def row(self, index: int) -> np.ndarray:
        """Return the tokens of one pair, without special ones, int64."""
        return self.padded(np.array([index]), int(self.lengths[index]), 0)[0]

    def padded(self, indices: np.ndarray, width: int, fill: int) -> np.ndarray:
        """Return the tokens of some pairs, each row padded with `fill` to `width`, [B width] int64."""
        places = np.arange(width)
        real = places < self.lengths[indices, None]
        starts = (self._ends - self.lengths)[indices, None]
        out = np.full((len(indices), width), fill, np.int64)
        out[real] = self._tokens[(starts + places)[real]]
        return out

    @cached_property
    def texts(self) -> list[str]:
        """The lines as they were read."""
        return self._read_texts()


class PairSplit:
    """The pairs of one split, in the order of their lines: `len()` of them.

    Args:
        name: train, val or test.
        sides: The sources and the targets.
        lines: Each pair's line number in its file or other source, [N] int64.
        place: Returns the place of a line number, for a message.
    """

    def __init__(
        self,
        name: str,
        sides: tuple[PairSide, PairSide],
        lines: np.ndarray,
        place: Callable[[int], str] = "line {}".format,
    ):
        self.name = name
        self.sides = sides
        self.lines = lines
        self.place_of_line = place

    def __len__(self) -> int:
        return len(self.lines)

    def source(self, index: int) -> np.ndarray:
        """Return the tokens of a source, without special ones, int64."""
        return self.sides[0].row(index)

    def target(self, index: int) -> np.ndarray:
        """Return the tokens of a target, without special ones, int64."""
        return self.sides[1].row(index)

    @property
    def source_lengths(self) -> np.ndarray:
        """The number of tokens in each source, without special ones, int64."""
        return self.sides[0].lengths

    @property
    def target_lengths(self) -> np.ndarray:
        """The number of tokens in each target, without special ones, int64."""
        return self.sides[1].lengths

    @property
    def source_texts(self) -> list[str]:
        """The sources as they were read."""
        return self.sides[0].texts

    @property
    def target_texts(self) -> list[str]:
        """The targets as they were read: the references of a translation."""
        return self.sides[1].texts

    def place(self, index: int) -> str:
        """Return where a pair was read, for a message: a file and a line."""
        return self.place_of_line(int(self.lines[index]))


def write_split(
    folder: Path, name: str, pairs: Sequence[Pair], rows: Sequence[Sequence[np.ndarray]]
) -> dict[str, Any]:
    """Write the files of a split, given the tokens of its sources and of its targets, and return its entry."""
    files = [_write_array(folder / f"{name}-lines.npy", np.array([pair.line for pair in pairs], "<i8"))]
    entry: dict[str, Any] = {"n_pairs": len(pairs)}
    for side, side_rows in zip(SIDES, rows, strict=True):
        lengths = np.fromiter(map(len, side_rows), "<i8", len(side_rows))
        lines = "".join(f"{getattr(pair, side)}\n" for pair in pairs)
        files += [
            _write_array(folder / f"{name}-{side}.npy", np.concatenate(side_rows)),
            _write_array(folder / f"{name}-{side}-ends.npy", np.cumsum(lengths, dtype="<i8")),
            _write(folder / f"{name}-{side}.txt", lines.encode()),
        ]
        entry[side] = {
            "n_tokens": int(lengths.sum()),
            "longest": int(lengths.max()),
            "n_chars": len(lines) - len(pairs),
        }
    return entry | {"files": files}


def _write_array(path: Path, array: np.ndarray) -> dict[str, Any]:
    content = io.BytesIO()
    np.save(content, array, allow_pickle=False)
    return _write(path, content.getvalue())


def _write(path: Path, content: bytes) -> dict[str, Any]:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        sync(file.fileno())
    return {"file": path.name, "n_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def read_pair_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of prepared pairs, and check that its files exist at their full size.

    Raises:
        ShardError: the manifest cannot be used, or a file is missing or of the wrong size.
    """
    return read_manifest_of(
        folder,
        "pairs",
        PAIRS_VERSION,
        lambda manifest: ((file, file["n_bytes"]) for file in _files_of(manifest)),
    )


def check_pair_contents(folder: Path, manifest: Mapping[str, Any]) -> int:
    """Check the SHA-256 of every file of prepared pairs and return the number of files.

    Raises:
        ShardError: a file's SHA-256 is not the manifest's.
    """
    return check_files(folder, _files_of(manifest))


def open_pair_splits(
    folder: Path, manifest: Mapping[str, Any], place: Callable[[str, int], str]
) -> dict[str, PairSplit]:
    """Open the splits of prepared pairs; their tokens are read when they are used.

    Raises:
        ShardError: a file holds no array.
    """

    def opened(name: str) -> np.ndarray:
        path = folder / f"{name}.npy"
        try:
            return np.load(path, mmap_mode="r", allow_pickle=False)
        except OSError as error:
            raise ShardError(f"{path}: {error.strerror}; {MAKE_AGAIN}") from None
        except (ValueError, EOFError):  # cut short, empty, or an array of Python objects
            raise ShardError(f"{path}: damaged: not an array of numbers; {MAKE_AGAIN}") from None

    def mapped(name: str) -> np.ndarray:
        """Map a file of texts, which stays readable if it is deleted while a run uses it."""
        path = folder / name
        try:
            return np.memmap(path, np.uint8, "r") if path.stat().st_size else np.zeros(0, np.uint8)
        except OSError as error:
            raise ShardError(f"{path}: {error.strerror}; {MAKE_AGAIN}") from None

    def split(name: str) -> PairSplit:
        source, target = (
            PairSide(
                opened(f"{name}-{side}"),
                opened(f"{name}-{side}-ends"),
                partial(_texts, mapped(f"{name}-{side}.txt")),
            )
            for side in SIDES
        )
        return PairSplit(name, (source, target), opened(f"{name}-lines"), lambda line: place(name, line))

    return {name: split(name) for name in manifest["splits"]}


def _texts(file: np.ndarray) -> list[str]:
    return file.tobytes().decode().split("\n")[:-1]


def _files_of(manifest: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for entry in manifest["splits"].values():
        yield from entry["files"]
