"""The parts of a report, which `html_page` and `markdown_pages` both can write."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Heading:
    """A heading.

    Attributes:
        text: The text.
        level: 1, 2 or 3.
        anchor: The id that links refer to; for a study, its name.
    """

    text: str
    level: int
    anchor: str = ""


@dataclass(frozen=True)
class Paragraph:
    """A paragraph, optionally with a bold lead.

    Attributes:
        text: The text.
        lead: A few words on its topic, such as `What it means`.
        kind: `warning` stands out; `small` is small print.
    """

    text: str
    lead: str = ""
    kind: Literal["", "warning", "small"] = ""


@dataclass(frozen=True)
class Bullets:
    """A list."""

    items: tuple[str, ...]


@dataclass(frozen=True)
class Link:
    """A study's name in a table, as a link to its section."""

    name: str


@dataclass(frozen=True)
class Judged:
    """A verdict in a table, and its reason."""

    verdict: str
    reason: str = ""


Cell = str | Link | Judged


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        caption: The caption.
        heads: The heads of the columns.
        rows: The rows of cells.
        n_left: The number of leading columns with text; the others are numbers, except for verdicts.
    """

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    n_left: int = 1


@dataclass(frozen=True)
class Picture:
    """A figure.

    Attributes:
        title: The title.
        note: How to read it.
        summary: A description in words.
        svg: The figure itself.
        file: The name of its file.
    """

    title: str
    note: str
    summary: str
    svg: str
    file: str


@dataclass(frozen=True)
class Samples:
    """Texts side by side, each with its label."""

    title: str
    note: str
    blocks: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Command:
    """A command that a reader may type."""

    text: str


Node = Heading | Paragraph | Bullets | Table | Picture | Samples | Command
