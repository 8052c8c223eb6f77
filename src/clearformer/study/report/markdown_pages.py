"""A report as Markdown, with its figures as separate files."""

import re
from collections.abc import Iterable
from functools import singledispatch

from clearformer.study.report.html_page import MARKS, kind_of
from clearformer.study.report.nodes import (
    Bullets,
    Cell,
    Command,
    Heading,
    Judged,
    Link,
    Node,
    Paragraph,
    Picture,
    Samples,
    Table,
)

SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$])")
LIST_MARK = re.compile(r"^(\d*)([-+=.)])(?=\s|$)")  # would start a list or a heading
PAGE = "README.md"


def markdown_page(nodes: Iterable[Node]) -> str:
    """Return the whole Markdown file."""
    return "\n\n".join(markdown_of(node) for node in nodes) + "\n"


@singledispatch
def markdown_of(node: Node) -> str:
    """Return a part of the report as Markdown."""
    raise TypeError(type(node).__name__)


@markdown_of.register
def _(node: Heading) -> str:
    return f"{'#' * node.level} {escaped(node.text)}"


@markdown_of.register
def _(node: Paragraph) -> str:
    lead = f"**{escaped(node.lead)}.** " if node.lead else ""
    quote = "> " if node.kind == "warning" else ""
    return f"{quote}{lead}{escaped(node.text)}"


@markdown_of.register
def _(node: Bullets) -> str:
    return "\n".join(f"- {escaped(item)}" for item in node.items)


@markdown_of.register
def _(node: Table) -> str:
    sides = ["---" if i < node.n_left or head == "verdict" else "--:" for i, head in enumerate(node.heads)]
    lines = [map(escaped, node.heads), sides, *([_cell(cell) for cell in row] for row in node.rows)]
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"**{escaped(node.caption)}**\n\n{rows}"


@singledispatch
def _cell(cell: Cell) -> str:
    raise TypeError(type(cell).__name__)


@_cell.register
def _(cell: str) -> str:
    return escaped(cell)


@_cell.register
def _(cell: Link) -> str:
    return f"[{escaped(cell.name)}]({cell.name}/{PAGE})"


@_cell.register
def _(cell: Judged) -> str:
    reason = f": {escaped(cell.reason)}" if cell.reason else ""
    return f"{MARKS[kind_of(cell.verdict)]} **{escaped(cell.verdict)}**{reason}"


@markdown_of.register
def _(node: Picture) -> str:
    told = ": ".join(part for part in (node.title, node.summary) if part)
    note = f"\n\n*{escaped(node.note)}*" if node.note else ""
    return f"![{escaped(told)}]({node.file}){note}"


@markdown_of.register
def _(node: Samples) -> str:
    blocks = "\n\n".join(f"{escaped(label)}:\n\n{fenced(text)}" for label, text in node.blocks)
    note = f"\n\n*{escaped(node.note)}*" if node.note else ""
    return f"**{escaped(node.title)}**\n\n{blocks}{note}"


@markdown_of.register
def _(node: Command) -> str:
    return fenced(node.text, "sh")


def escaped(text: str) -> str:
    """Escape a text so that Markdown shows it literally, on one line."""
    line = SPECIAL.sub(r"\\\1", " ".join(text.split())).replace("&", "&amp;")
    return LIST_MARK.sub(r"\1\\\2", line)


def fenced(text: str, language: str = "text") -> str:
    """Return a text as a fenced block of code, with a fence longer than any in the text."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"
