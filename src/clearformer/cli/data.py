"""`clearformer data`: which texts there are, a text as tokens, and a look at what was made."""

import json
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import numpy as np
import typer

from clearformer.config import Spec, parse_override, resolve
from clearformer.data import BUILT_IN, TextData, Dataset, Split, prepare
from clearformer.data.preparing import Progress
from clearformer.data.shards import check_contents
from clearformer.errors import ClearformerError
from clearformer.text import CharTokenizerSpec, Tokenizer, TokenizerConfig

app = typer.Typer(
    help="List the built-in texts, prepare a text as tokens, and inspect what was made.", no_args_is_help=True
)

N_FREQUENT = 10
N_FIRST_CHARS = 160
COUNTED_AT_ONCE = 1 << 22

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="Settings, such as data.path=book.txt tokenizer.kind=bpe tokenizer.vocab_size=512.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


class PrepareConfig(Spec):
    """What `prepare` and `inspect` can be told: the two sections of a run that tokens depend on."""

    data: TextData = TextData()
    tokenizer: TokenizerConfig = CharTokenizerSpec()


@app.command("list")
def list_command(as_json: AsJson = False) -> None:
    """Show the built-in texts, and whether they are on this machine."""
    if as_json:
        texts = [
            {"name": name, "about": text.about, "size": text.size, "place": text.where()}
            for name, text in BUILT_IN.items()
        ]
        typer.echo(json.dumps({"texts": texts}))
        return
    for name, text in BUILT_IN.items():
        place = text.where()
        typer.echo(f"{typer.style(f'{name:12}', bold=True)} {text.about}")
        typer.echo(f"{'':12} {text.size}; {f'at hand: {place}' if place else 'fetched when first used'}")
    typer.echo(
        "\ndata.name=NAME takes one of these; data.path=FILE a text of yours: a file, a folder of them,"
    )
    typer.echo("JSONL (data.field=NAME is the field that holds the text), or any of them gzipped.")


@app.command("prepare")
def prepare_command(overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Turn a text into tokens in the cache, or check those that are there."""
    dataset = _prepared(overrides, check=True)
    if as_json:
        typer.echo(json.dumps(_summary(dataset)))
    else:
        _print_summary(dataset)


@app.command("inspect")
def inspect_command(overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Look at a prepared text: its splits, how each starts, its most frequent tokens, its checksums."""
    dataset = _prepared(overrides, check=False)
    try:
        n_shards = check_contents(dataset.folder, dataset.manifest)
    except ClearformerError as error:
        error.args = (f"{error}; `clearformer data prepare` with the same settings makes it again",)
        raise
    frequent = {name: _most_frequent(split, dataset.tokenizer) for name, split in dataset.splits.items()}
    first = {name: _first_text(split, dataset.tokenizer) for name, split in dataset.splits.items()}
    if as_json:
        details = {"first_text": first, "most_frequent": frequent, "n_shards_checked": n_shards}
        typer.echo(json.dumps(_summary(dataset) | details))
        return
    _print_summary(dataset)
    for name in dataset.splits:
        typer.echo(f"\n{typer.style(name, bold=True)} starts:")
        typer.echo(textwrap.indent(first[name], "  "))
        tokens = "  ".join(f"'{each['token']}' {each['share']:.1%}" for each in frequent[name])
        typer.echo(f"most frequent: {tokens}")
    typer.echo(f"\n{n_shards} shards, each with the SHA-256 it was written with")


def _prepared(overrides: list[str] | None, check: bool) -> Dataset:
    config = resolve(PrepareConfig, *map(parse_override, overrides or []))
    with _progress_bar() as progress:
        return prepare(config.data, config.tokenizer, check=check, progress=progress)


@contextmanager
def _progress_bar() -> Iterator[Progress]:
    """A bar on standard error, where someone looks; it goes when the work is done."""
    from rich.console import Console
    from rich.progress import Progress as RichProgress

    with RichProgress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("")
        yield lambda doing, done, total: bar.update(task, description=doing, completed=done, total=total)


def _summary(dataset: Dataset) -> dict[str, Any]:
    return {"folder": str(dataset.folder)} | dataset.manifest


def _print_summary(dataset: Dataset) -> None:
    from rich.console import Console
    from rich.table import Table

    manifest = dataset.manifest
    source, tokenizer = manifest["source"], manifest["tokenizer"]
    typer.echo(f"text       {source['description']}")
    typer.echo(f"           {_count(source['n_documents'], 'document')}, {source['n_chars']:,} characters")
    typer.echo(f"tokenizer  {tokenizer['kind']}, {tokenizer['vocab_size']:,} tokens")
    typer.echo(f"folder     {dataset.folder} ({np.dtype(manifest['dtype']).name})")
    typer.echo()
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("split")
    for header in ("characters", "bytes", "tokens", "characters/token"):
        table.add_column(header, justify="right")
    for name, split in dataset.splits.items():
        sizes = (f"{size:,}" for size in (split.n_chars, split.n_bytes, split.n_tokens))
        table.add_row(name, *sizes, f"{split.n_chars / split.n_tokens:.2f}")
    Console().print(table)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _first_text(split: Split, tokenizer: Tokenizer) -> str:
    text = tokenizer.decode(split.read(0, min(len(split), N_FIRST_CHARS)))
    return f"{text[:N_FIRST_CHARS].rstrip()} ..." if split.n_chars > N_FIRST_CHARS else text


def _most_frequent(split: Split, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    counts = np.zeros(tokenizer.vocab_size, np.int64)
    for start in range(0, len(split), COUNTED_AT_ONCE):
        tokens = split.read(start, min(start + COUNTED_AT_ONCE, len(split)))
        counts += np.bincount(tokens, minlength=len(counts))
    ids = [int(token) for token in np.argsort(-counts, kind="stable")[:N_FREQUENT] if counts[token]]
    return [
        {
            "id": token,
            "token": tokenizer.token_label(token),
            "count": int(counts[token]),
            "share": float(counts[token] / len(split)),
        }
        for token in ids
    ]
