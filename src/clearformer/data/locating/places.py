"""An example of the training data, and its bytes in files."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Self

from clearformer.data.reading import lines_as_bytes


@dataclass(frozen=True)
class Span:
    """Some bytes of a file.

    Attributes:
        file: Its path, or the name of another source (`pydoc, ..., topic 'if'`).
        start: The first byte, from 0; in a gzip file, counted in the unpacked content.
        stop: The byte after the last.
    """

    file: str
    start: int
    stop: int

    def __str__(self) -> str:
        return f"{self.file}, bytes {self.start:,} to {self.stop:,}"


def in_short(spans: Iterable[Span]) -> str:
    """Return some spans on one line, each by its file's name without the folder, and its bytes."""
    return "; ".join(f"{Path(span.file).name} {span.start:,}-{span.stop:,}" for span in spans)


class Example(NamedTuple):
    """A window of a text, a pair or a labelled text, and its place in files."""

    text: str
    spans: list[Span]


class Origin(NamedTuple):
    """Where a document of a text comes from.

    Attributes:
        name: The file, or the name of another source.
        start: The document's first byte there.
        stop: The byte after its last.
        n_bytes: The bytes of its text. They differ from `stop - start` if the file encodes the text, as a JSON string
            does; a part of the text is then only known to lie between the two.
    """

    name: str
    start: int
    stop: int
    n_bytes: int

    @classmethod
    def of_text(cls, name: str, text: str) -> Self:
        """Return the origin of a text that comes from no file."""
        size = len(text.encode())
        return cls(name, 0, size, size)

    def span(self, first: int, last: int) -> Span:
        """Return where bytes `first` to `last` of the document are."""
        if self.stop - self.start != self.n_bytes:
            return Span(self.name, self.start, self.stop)
        return Span(self.name, self.start + first, self.start + last)


def spans_of_lines(path: Path, numbers: Iterable[int]) -> dict[int, Span]:
    """Locate some lines of a file, without their line ends; lines are numbered from 1.

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
    texts: Sequence[str], lines: Sequence[tuple[int, int]], paths: Sequence[Path], otherwise: str
) -> list[Example]:
    """Return examples, each of which is on the same lines of every file.

    Args:
        texts: The text of each example.
        lines: The first and the last line of each example.
        paths: The files; empty if the data are generated.
        otherwise: The name to give instead of a file in that case.

    Raises:
        DataError: a file cannot be read.
    """
    spans = [spans_of_lines(path, chain.from_iterable(lines)) for path in paths]
    made = [
        Span(f"{otherwise}, number {number}", 0, len(text.encode()))
        for text, (number, _) in zip(texts, lines, strict=True)
    ]
    return [
        Example(
            text,
            [_from_to(each[first], each[last]) for each in spans if {first, last} <= each.keys()] or [own],
        )
        for text, (first, last), own in zip(texts, lines, made, strict=True)
    ]


def _from_to(first: Span, last: Span) -> Span:
    return Span(first.file, first.start, last.stop)
