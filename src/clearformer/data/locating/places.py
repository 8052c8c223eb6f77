"""An example of the training data, and the bytes of the files that it stands in."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from clearformer.data.reading import lines_as_bytes


@dataclass(frozen=True)
class Span:
    """Some bytes of a file.

    Attributes:
        file: Its path; of a text that comes from no file, what it comes from (`pydoc, ..., topic 'if'`).
        start: The first byte, from 0; of a packed file, of what it unpacks to.
        stop: The byte behind the last.
    """

    file: str
    start: int
    stop: int

    def __str__(self) -> str:
        return f"{self.file}, bytes {self.start:,} to {self.stop:,}"


class Example(NamedTuple):
    """A window of a text, a pair or a labelled text: what it says, and where it stands."""

    text: str
    spans: list[Span]


class Origin(NamedTuple):
    """Where a document of a text comes from.

    Attributes:
        name: A file, or what is in its place.
        start: Its first byte there.
        stop: The byte behind its last one.
        n_bytes: Those of its text. Fewer than `stop - start` where it is written otherwise, as in a JSON string: then
            any part of it stands somewhere between the two.
    """

    name: str
    start: int
    stop: int
    n_bytes: int

    @classmethod
    def of_text(cls, name: str, text: str) -> Self:
        """That of a text which comes from no file."""
        size = len(text.encode())
        return cls(name, 0, size, size)

    def span(self, first: int, last: int) -> Span:
        """Where the bytes `first` to `last` of the document stand."""
        if self.stop - self.start != self.n_bytes:
            return Span(self.name, self.start, self.stop)
        return Span(self.name, self.start + first, self.start + last)


def spans_of_lines(path: Path, numbers: Iterable[int]) -> dict[int, Span]:
    """The bytes of some lines of a file, each without what ends it; lines are numbered from 1.

    Raises:
        DataError: the file cannot be read.
    """
    wanted, found = set(numbers), {}
    for line in lines_as_bytes(path):
        if line.number in wanted:
            found[line.number] = Span(str(path), line.start, line.stop)
            if len(found) == len(wanted):
                break
    return found


def examples_on_lines(
    texts: Sequence[str], numbers: Sequence[int], paths: Sequence[Path], otherwise: str
) -> list[Example]:
    """Examples that stand on numbered lines of one or more files alike.

    Args:
        texts: What each says.
        numbers: The line of each.
        paths: The files; none, where the data are made and not read.
        otherwise: What is named in place of a file then.

    Raises:
        DataError: a file cannot be read.
    """
    spans = [spans_of_lines(path, numbers) for path in paths]
    made = [
        Span(f"{otherwise}, number {number}", 0, len(text.encode()))
        for text, number in zip(texts, numbers, strict=True)
    ]
    return [
        Example(text, [each[number] for each in spans if number in each] or [own])
        for text, number, own in zip(texts, numbers, made, strict=True)
    ]
