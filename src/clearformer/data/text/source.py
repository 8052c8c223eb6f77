"""The interface of a text's source."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
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
        """Return values for JSON that identify the text; files need not be read whole."""

    def by_split(self) -> Mapping[str, "Source"]:
        """Return the sources that the text consists of, in order, each under the first split that is in it."""
        return {"train": self}

    @abstractmethod
    def documents(self) -> Iterator[Chunk]:
        """Yield the text in order; every call starts from the beginning."""

    @abstractmethod
    def origins(self) -> Iterator[Origin]:
        """Yield where each document comes from, in order; documents without text are left out.

        Raises:
            DataError: the text cannot be read.
        """

    @abstractmethod
    def place(self, index: int) -> str:
        """Locate a character, counted from 0 over all documents, for a message; reads the text up to it."""
