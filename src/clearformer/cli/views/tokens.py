"""The tokens of a text, and tokenizers beside each other, as text and for JSON."""

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import typer

from clearformer.cli.tables import table, terminal_width
from clearformer.errors import count

if TYPE_CHECKING:  # these take time to import
    from rich.console import Console
    from rich.table import Table

    from clearformer.text import BPETokenizer, Tokenizer

MAX_ROWS = 500  # the most rows of a printed table; --json prints all
WIDEST = 1_000_000  # columns of output that goes to a file or to another program
UNITS = (("chars", "character"), ("bytes", "byte"), ("tokens", "token"))


def print_tokens(text: str, tokenizer: "Tokenizer", bpe: "BPETokenizer | None") -> None:
    """Print the tokens of a text and their totals, and the merges of `bpe` where it is given."""
    console = _console()
    ids = tokenizer.encode(text).tolist()
    console.print(description(tokenizer))
    if bpe:
        _print_merges(console, bpe, text)
    console.print(_table(tokenizer, ids[:MAX_ROWS], console.encoding))
    if len(ids) > MAX_ROWS:
        console.print(f"... and {len(ids) - MAX_ROWS:,} more; --json prints all")
    console.print(_totals_line(text, len(ids)))


def _totals_line(text: str, n_tokens: int) -> str:
    totals = _totals(text, n_tokens)
    counts = [count(totals[f"n_{unit}"], name) for unit, name in UNITS]
    ratio = [f"{totals['chars_per_token']:.2f} characters per token"] if n_tokens else []
    return ", ".join(counts + ratio)


def _table(tokenizer: "Tokenizer", ids: list[int], encoding: str) -> "Table":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    rows = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    rows.add_column("index", justify="right", no_wrap=True)
    rows.add_column("id", justify="right", no_wrap=True)
    rows.add_column("token", overflow="fold", min_width=5)
    rows.add_column("bytes", overflow="fold", min_width=8)
    for index, token in enumerate(ids):
        label = Text(_visible(tokenizer.token_label(token), encoding))
        rows.add_row(str(index), str(token), label, tokenizer.token_bytes(token).hex(" "))
    return rows


def _print_merges(console: "Console", tokenizer: "BPETokenizer", text: str) -> None:
    console.print()
    for rows in islice(_merge_labels(tokenizer, text), MAX_ROWS):
        chain = [" ".join(_visible(label, console.encoding) for label in row) for row in rows]
        console.print("\n".join(_fill(chain, console.width)), soft_wrap=True)
    if (n_left := len(tokenizer.pre_tokens(text)) - MAX_ROWS) > 0:
        console.print(f"... and {n_left:,} more; --json prints all")


def _fill(chain: list[str], width: int) -> list[str]:
    """Break a chain of merges into lines of at most `width` columns, only before an arrow."""
    from rich.cells import cell_len

    lines = [chain[0]]
    for row in chain[1:]:
        if cell_len(lines[-1]) + cell_len(row) + 4 <= width:
            lines[-1] += f" -> {row}"
        else:
            lines.append(f"    -> {row}")
    return lines


def _visible(label: str, encoding: str) -> str:
    """Make a label's spaces visible, and escape characters that the terminal's encoding lacks."""
    return label.replace(" ", "␣").encode(encoding, errors="backslashreplace").decode(encoding)


def description(tokenizer: "Tokenizer") -> str:
    """Describe a tokenizer in a line: its kind, its sizes and its special tokens."""
    n_merges = len(tokenizer.merges)
    merges = f", {count(n_merges, 'merge')}" if n_merges else ""
    specials = f", with {tokenizer.named_specials()}" if tokenizer.specials else ""
    return f"{tokenizer.kind} tokenizer, {count(tokenizer.vocab_size, 'token')}{merges}{specials}"


def tokens_as_data(text: str, tokenizer: "Tokenizer", bpe: "BPETokenizer | None") -> dict[str, Any]:
    """Return what `print_tokens` prints, and every token, for JSON."""
    ids = tokenizer.encode(text).tolist()
    spelled = {  # each once, as a long text repeats them
        token: {"label": tokenizer.token_label(token), "bytes": tokenizer.token_bytes(token).hex()}
        for token in set(ids)
    }
    data = {
        "kind": tokenizer.kind,
        "vocab_size": tokenizer.vocab_size,
        **_totals(text, len(ids)),
        "tokens": [{"index": index, "id": token, **spelled[token]} for index, token in enumerate(ids)],
    }
    if bpe:
        data["merges"] = list(_merge_labels(bpe, text))
    return data


def _totals(text: str, n_tokens: int) -> dict[str, Any]:
    return {
        "n_chars": len(text),
        "n_bytes": len(text.encode("utf-8")),
        "n_tokens": n_tokens,
        "chars_per_token": len(text) / n_tokens if n_tokens else None,
    }


def _merge_labels(tokenizer: "BPETokenizer", text: str) -> Iterator[list[list[str]]]:
    from clearformer.text import merge_steps

    for steps in merge_steps(tokenizer, text):
        yield [[tokenizer.token_label(token) for token in row] for row in steps]


def print_comparison(compared: list[dict[str, Any]], about: str) -> None:
    """Print what `tokenizer compare` measured, and how each tokenizer cuts the example.

    Args:
        compared: Of each tokenizer its name, sizes, ratios and the tokens of the example.
        about: The texts that they were trained and measured on.
    """
    console = _console()
    heads = ("tokenizer", "size", "tokens/word", "tokens/line", "bytes/token", "unknown", "lossless")
    rows = [
        (
            _visible(row["name"], console.encoding),
            f"{row['vocab_size']:,}",
            _ratio(row["tokens_per_word"], ".3f"),
            _ratio(row["tokens_per_line"], ".2f"),
            _ratio(row["bytes_per_token"], ".3f"),
            _ratio(row["unknown_share"], ".2%"),
            "yes" if row["lossless"] else "no",
        )
        for row in compared
    ]
    typer.echo(f"{about}\n\n{table(heads, rows)}\n")
    for row in compared:
        console.print(f"{_visible(row['name'], console.encoding)} {row['vocab_size']:,}:")
        console.print("  " + _visible("|".join(row["example"]), console.encoding))


def _ratio(value: float | None, how: str) -> str:
    """Format a ratio; a tokenizer that leaves out all of a text has none to its tokens."""
    return "-" if value is None else format(value, how)


def _console() -> "Console":
    """A console as wide as the terminal, or wide enough for every line if the output goes elsewhere."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False, width=terminal_width() or WIDEST)
