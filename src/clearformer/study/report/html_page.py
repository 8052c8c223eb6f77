"""A report as one HTML file: no script, no requests, light and dark, for screens from 400 pixels wide."""

from collections.abc import Iterable
from functools import singledispatch
from html import escape

from clearformer.study.outcomes import HOLDS, NOT_REPRODUCED, REFUTED, REPRODUCED, SLIP
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
from clearformer.study.report.pictures import with_variables
from clearformer.study.report.style import STYLE

NOTHING_IS_FETCHED = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
LONGEST_NUMBER = 15  # characters
KINDS = {REPRODUCED: "good", HOLDS: "good", NOT_REPRODUCED: "bad", REFUTED: "bad", SLIP: "slip"}
MARKS = {"good": "✓", "bad": "✗", "slip": "≠", "open": "·"}


def html_page(title: str, nodes: Iterable[Node]) -> str:
    """Return the whole HTML file."""
    body = "\n".join(html_of(node) for node in nodes)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{NOTHING_IS_FETCHED}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"{body}\n</main>\n</body>\n</html>\n"
    )


@singledispatch
def html_of(node: Node) -> str:
    """Return a part of the report as HTML."""
    raise TypeError(type(node).__name__)


@html_of.register
def _(node: Heading) -> str:
    anchor = f' id="{escape(node.anchor)}"' if node.anchor else ""
    return f"<h{node.level}{anchor}>{escape(node.text)}</h{node.level}>"


@html_of.register
def _(node: Paragraph) -> str:
    lead = f"<strong>{escape(node.lead)}.</strong> " if node.lead else ""
    kind = f' class="{node.kind}"' if node.kind else ""
    return f"<p{kind}>{lead}{escape(node.text)}</p>"


@html_of.register
def _(node: Bullets) -> str:
    return f"<ul>{''.join(f'<li>{escape(item)}</li>' for item in node.items)}</ul>"


@html_of.register
def _(node: Table) -> str:
    heads = "".join(
        f'<th scope="col"{_side(i, node)}>{escape(text)}</th>' for i, text in enumerate(node.heads)
    )
    rows = "\n".join(f"<tr>{_row(row, node)}</tr>" for row in node.rows)
    return _scrolling(
        node.caption,
        f"<table>\n<caption>{escape(node.caption)}</caption>\n"
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>",
    )


def _row(row: tuple[Cell, ...], table: Table) -> str:
    first, *others = row
    cells = "".join(f"<td{_side(i, table, cell)}>{_cell(cell)}</td>" for i, cell in enumerate(others, 1))
    return f'<th scope="row">{_cell(first)}</th>{cells}'


def _side(i: int, table: Table, cell: Cell = "") -> str:
    """Return the class of a cell: numbers stand at the right, on one line unless there are words with them."""
    if i < table.n_left or table.heads[i] == "verdict":
        return ""
    return (
        ' class="number long"' if isinstance(cell, str) and len(cell) > LONGEST_NUMBER else ' class="number"'
    )


@singledispatch
def _cell(cell: Cell) -> str:
    raise TypeError(type(cell).__name__)


@_cell.register
def _(cell: str) -> str:
    return escape(cell)


@_cell.register
def _(cell: Link) -> str:
    return f'<a href="#{escape(cell.name)}">{escape(cell.name)}</a>'


@_cell.register
def _(cell: Judged) -> str:
    kind = kind_of(cell.verdict)
    reason = f"<small>{escape(cell.reason)}</small>" if cell.reason else ""
    return (
        f'<span class="verdict {kind}"><span aria-hidden="true">{MARKS[kind]}</span> '
        f"{escape(cell.verdict)}</span>{reason}"
    )


def kind_of(verdict: str) -> str:
    """Return the kind of a verdict, which determines its mark and colour."""
    return KINDS.get(verdict, "open")


@html_of.register
def _(node: Picture) -> str:
    note = f"<figcaption>{escape(node.note)}</figcaption>" if node.note else ""
    return f"<figure>{_scrolling(node.title, with_variables(node.svg), 'picture')}{note}</figure>"


@html_of.register
def _(node: Samples) -> str:
    blocks = "\n".join(
        f'<div><p class="label">{escape(label)}</p><pre>{escape(text)}</pre></div>'
        for label, text in node.blocks
    )
    note = f"<figcaption>{escape(node.note)}</figcaption>" if node.note else ""
    return (
        f'<figure class="samples"><p class="title">{escape(node.title)}</p><div>{blocks}</div>{note}</figure>'
    )


@html_of.register
def _(node: Command) -> str:
    return f"<pre><code>{escape(node.text)}</code></pre>"


def _scrolling(name: str, content: str, kind: str = "") -> str:
    """Wrap content in a box that scrolls sideways on a narrow screen, also by keyboard."""
    kinds = " ".join(part for part in ("wide", kind) if part)
    return f'<div class="{kinds}" role="region" aria-label="{escape(name)}" tabindex="0">{content}</div>'
