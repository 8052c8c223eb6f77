"""The parts of which a report is made; `html_page` and `markdown_pages` write the same parts."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Heading:
    """A heading.

    Attributes:
        text: Its words.
        level: 1, 2 or 3.
        anchor: By which it is found, of a study its name.
    """

    text: str
    level: int
    anchor: str = ""


@dataclass(frozen=True)
class Paragraph:
    """A paragraph, with a word before it where it has one.

    Attributes:
        text: Its words.
        lead: What it is about, such as `Refuted if`.
        kind: A warning stands out; small print does not.
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
    """A study's name in a table, which leads to it."""

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
        caption: What it shows.
        heads: Of the columns.
        rows: Of cells.
        n_left: How many columns are words; the others are numbers, but for verdicts.
    """

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    n_left: int = 1


@dataclass(frozen=True)
class Picture:
    """A figure.

    Attributes:
        title: Its title.
        note: How to read it.
        summary: What it shows, in words.
        svg: Itself.
        file: The name of its file.
    """

    title: str
    note: str
    summary: str
    svg: str
    file: str


@dataclass(frozen=True)
class Samples:
    """Texts beside each other, each with its label."""

    title: str
    note: str
    blocks: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Command:
    """A command that a reader may type."""

    text: str


Node = Heading | Paragraph | Bullets | Table | Picture | Samples | Command
