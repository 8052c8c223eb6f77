"""Texts made by a function."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from clearformer.data.locating.places import Origin
from clearformer.data.reading import Chunk, check_characters
from clearformer.data.text.source import Source
from clearformer.errors import DataError, shown


@dataclass(frozen=True)
class GeneratedSource(Source):
    """The documents that a function yields, the same ones on every call."""

    name: str
    about: str
    make: Callable[[], Iterable[str]]

    @property
    def description(self) -> str:
        return f"{self.name}: {self.about}"

    def identity(self) -> dict[str, Any]:
        digest = hashlib.sha256()
        for document, _ in self.documents():
            digest.update(f"{len(document)}\0{document}".encode())
        return {"name": self.name, "documents_sha256": digest.hexdigest()}

    def strings(self) -> Iterator[str]:
        """Yield the strings that the function yields.

        Raises:
            DataError: it yields anything but strings of whole characters.
        """
        made: Any = self.make()
        if isinstance(made, str) or not isinstance(made, Iterable):
            raise DataError(
                f"the text {self.name}: its function must yield documents; it returned {shown(made)}"
            )
        for number, document in enumerate(made, start=1):
            if not isinstance(document, str):
                raise DataError(
                    f"the text {self.name}: its function must yield strings; document {number} is {shown(document)}"
                )
            check_characters(f"the text {self.name}: document {number}", document)
            yield document

    def documents(self) -> Iterator[Chunk]:
        for document in filter(None, self.strings()):  # an empty one is none, in files too
            yield Chunk(document, ends_document=True)

    def origins(self) -> Iterator[Origin]:
        for number, document in enumerate(self.strings(), start=1):
            if document:
                yield Origin.of_text(f"{self.name}, document {number}", document)

    def place(self, index: int) -> str:
        for number, document in enumerate(self.strings(), start=1):
            if index < len(document):
                return f"{self.name}, document {number}, line {document.count(chr(10), 0, index) + 1}"
            index -= len(document)
        raise IndexError(index)
