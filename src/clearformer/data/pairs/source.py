"""The interface of the source of pairs."""

import hashlib
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

from clearformer.data.holding_out import HeldOutPairs, own_text


class Pair(NamedTuple):
    """One line of text in two languages, and its number (from 1) in the file it was read from."""

    source: str
    target: str
    line: int
    values: tuple[str, ...] = ()
    """The values that the text states, if they are known; they decide whether the pair is held out."""

    @property
    def own_values(self) -> tuple[str, ...]:
        """The values that decide the pair's split; its source if none are known."""
        return self.values or (own_text(self.source),)


class PairSource(ABC):
    """Pairs of lines, by split."""

    @property
    @abstractmethod
    def description(self) -> str:
        """The pairs' name and place, for messages."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Return values for JSON that identify the pairs; files need not be read whole."""

    @abstractmethod
    def read(self) -> HeldOutPairs[Pair]:
        """Return the pairs of each split, train first, in the order of reading.

        Raises:
            DataError: a file cannot be read, or its lines make no pairs; or a split would be empty.
        """

    def place(self, split: str, line: int) -> str:
        """Return where a pair is, for a message: a file and a line."""
        return f"{self.description}, pair {line}"


def digest_of(splits: dict[str, list[Pair]]) -> str:
    """Return the SHA-256 of all pairs, split after split, as TSV in UTF-8; beside a tab in a side, its place counts."""
    digest = hashlib.sha256()
    for name, pairs in splits.items():
        digest.update(f"{name}\n".encode())
        for pair in pairs:
            if "\t" in pair.source or "\t" in pair.target:
                digest.update(f"{len(pair.source)}\n".encode())
            digest.update(f"{pair.source}\t{pair.target}\n".encode())
    return digest.hexdigest()
