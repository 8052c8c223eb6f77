"""The seam between a text and where it comes from."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from clearformer.data.locating.places import Origin
from clearformer.data.reading import Chunk


class Source(ABC):
    """A text as a sequence of documents, each read in chunks."""

    @property
    @abstractmethod
    def description(self) -> str:
        """The text's name and place, for messages."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """An identity of the text, for JSON, without reading it all."""

    @abstractmethod
    def documents(self) -> Iterator[Chunk]:
        """The text in order, anew on every call."""

    @abstractmethod
    def origins(self) -> Iterator[Origin]:
        """Where each document comes from, in their order; those without text are left out.

        Raises:
            DataError: the text cannot be read.
        """

    @abstractmethod
    def place(self, index: int) -> str:
        """Where a character stands, counted from 0 over all documents, for a message; the text is read up to it."""
