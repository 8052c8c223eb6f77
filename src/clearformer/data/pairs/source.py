"""The seam between pairs and where they come from."""

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
    """The values that its words state, where they are known: it is held out by these."""

    @property
    def own_values(self) -> tuple[str, ...]:
        """The values that decide the pair's split; its source where none are known."""
        return self.values or (own_text(self.source),)


class PairSource(ABC):
    """Pairs of lines, by split."""

    @property
    @abstractmethod
    def description(self) -> str:
        """The pairs' name and place, for messages."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """An identity of the pairs, for JSON, without reading them all."""

    @abstractmethod
    def read(self) -> HeldOutPairs[Pair]:
        """The pairs of each split, train first, in the order they are read in.

        Raises:
            DataError: a file cannot be read, or its lines make no pairs; or a split would be empty.
        """

    def place(self, split: str, line: int) -> str:
        """Where a pair is, for a message: a file and a line."""
        return f"{self.description}, pair {line}"


def digest_of(splits: dict[str, list[Pair]]) -> str:
    """The SHA-256 of all pairs, split after split, as TSV in UTF-8."""
    digest = hashlib.sha256()
    for name, pairs in splits.items():
        digest.update(f"{name}\n".encode())
        for pair in pairs:
            digest.update(f"{pair.source}\t{pair.target}\n".encode())
    return digest.hexdigest()
