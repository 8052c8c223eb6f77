"""`clearformer tokenizer`: train a tokeniser on a text, and look at what one makes of a text."""

import json
import os
import sys
from collections.abc import Iterator
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clearformer.errors import DataError, UserError, did_you_mean

if TYPE_CHECKING:  # these take time to import, and `--help` needs none of them
    from rich.console import Console
    from rich.table import Table

    from clearformer.text import BPETokenizer, Tokenizer

MAX_ROWS = 500  # a table longer than this is not read; --json gives all of it
NAMED = ("char", "byte", "gpt2")
UNITS = (("chars", "characters"), ("bytes", "bytes"), ("tokens", "tokens"))

app = typer.Typer(
    help="Train a tokenizer, or look at what one makes of a text.",
    no_args_is_help=True,
    add_completion=False,
)


class TrainedKind(StrEnum):
    """What `train` can make; GPT-2's vocabulary is read, never trained."""

    CHAR = "char"
    BYTE = "byte"
    BPE = "bpe"


@app.command()
def train(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PATH", help="Texts to learn from: files, or folders of them (byte needs none)."
        ),
    ] = None,
    kind: Annotated[
        TrainedKind, typer.Option(help="One token a character, a byte, or a learned group of bytes.")
    ] = TrainedKind.BPE,
    vocab_size: Annotated[
        int | None, typer.Option(help="Tokens in all, for bpe: 256 bytes, merges, special tokens.")
    ] = None,
    bos: Annotated[bool, typer.Option("--bos", help="Add <bos>, which starts a document.")] = False,
    eos: Annotated[bool, typer.Option("--eos", help="Add <eos>, which ends a document.")] = False,
    unk: Annotated[
        bool, typer.Option("--unk", help="Add <unk>, for characters that char has not seen.")
    ] = False,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("tokenizer.json"),
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
) -> None:
    """Train a tokenizer on text files and write tokenizer.json."""
    if out.exists() and not force:
        raise UserError(f"{out} exists: choose another --out, or add --force to replace it")
    specials = {"bos": bos, "eos": eos, "unk": unk}
    options: dict[str, Any] = {name: True for name, wanted in specials.items() if wanted}
    if vocab_size is not None:
        options["vocab_size"] = vocab_size
    spec = _spec(kind, options)
    if spec.needs_corpus and not paths:
        raise UserError(f"--kind {kind} learns from text: name at least one text file")
    if paths and not spec.needs_corpus:
        typer.echo(f"--kind {kind} has nothing to learn: the files are not read", err=True)
    tokenizer = spec.train(_read_texts(paths or []))
    tokenizer.save(out)
    typer.echo(f"{out}: {_description(tokenizer)}", err=True)
    if kind == TrainedKind.BPE and tokenizer.vocab_size < spec.vocab_size:
        typer.echo(
            f"fewer than the {spec.vocab_size:,} asked for: no pair of tokens occurs twice any more", err=True
        )
    typer.echo(f'next: clearformer tokenizer show "some text" --tokenizer {out}', err=True)


@app.command()
def show(
    text: Annotated[str, typer.Argument(help="The text to look at; - reads standard input.")],
    tokenizer: Annotated[
        str,
        typer.Option(
            metavar="FILE|RUN|char|byte|gpt2",
            help="A tokenizer.json, a run's name or folder, or char (the text's own characters), byte, gpt2.",
        ),
    ] = "byte",
    merges: Annotated[
        bool, typer.Option("--merges", help="Show the merges of BPE as they happen, word by word.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on standard output, nothing else.")
    ] = False,
) -> None:
    """Print the tokens of a text with their ids and bytes, and for BPE the merges that made them."""
    if text == "-":
        text = _read_standard_input()
    chosen = _find_tokenizer(tokenizer, text)
    bpe = _require_merges(chosen) if merges else None
    if as_json:
        typer.echo(json.dumps(_as_data(text, chosen, bpe)))
    else:
        _print(text, chosen, bpe)


def _spec(kind: TrainedKind, options: dict[str, Any]) -> Any:
    from clearformer import text
    from clearformer.config import resolve

    specs = {
        TrainedKind.CHAR: text.CharTokenizerSpec,
        TrainedKind.BYTE: text.ByteTokenizerSpec,
        TrainedKind.BPE: text.BPETokenizerSpec,
    }
    if foreign := [name for name in options if name not in specs[kind].model_fields]:
        option = "--" + foreign[0].replace("_", "-")
        raise UserError(f"{option} does not go with --kind {kind}: leave it out, or choose another kind")
    return resolve(specs[kind], options)


def _read_texts(paths: list[Path]) -> Iterator[str]:
    from clearformer.data import TextData, open_source
    from clearformer.data.splitting import split_into_pieces

    sources = [open_source(TextData(path=str(path))) for path in paths]
    for source in sources:
        yield from (piece.text for piece in split_into_pieces(source.documents(), {"all": sys.maxsize}))


def _read_standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError:
        raise DataError("standard input is not UTF-8 text: convert it first, such as with iconv") from None


def _find_tokenizer(name: str, text: str) -> "Tokenizer":
    from clearformer.text import ByteTokenizerSpec, CharTokenizerSpec, GPT2TokenizerSpec, load_tokenizer

    if name == "char":
        return CharTokenizerSpec().train([text])
    if name == "byte":
        return ByteTokenizerSpec().train()
    if name == "gpt2":
        return GPT2TokenizerSpec().train()
    runs = Path(os.environ.get("CLEARFORMER_RUNS", "runs"))
    for candidate in (Path(name), runs / name):
        if candidate.is_dir():
            return load_tokenizer(candidate / "tokenizer.json")
        if candidate.exists():
            return load_tokenizer(candidate)
    raise UserError(
        f"--tokenizer {name}: neither a file, nor a run in {runs}/, nor one of {', '.join(NAMED)}"
        f"{did_you_mean(name, NAMED)}"
    )


def _require_merges(tokenizer: "Tokenizer") -> "BPETokenizer":
    from clearformer.text import BPETokenizer

    if not isinstance(tokenizer, BPETokenizer):
        raise UserError(
            f"--merges needs BPE, and this is a {tokenizer.kind} tokenizer, which merges nothing: "
            f"leave --merges out, or choose --tokenizer gpt2 or a BPE's tokenizer.json"
        )
    return tokenizer


def _as_data(text: str, tokenizer: "Tokenizer", bpe: "BPETokenizer | None") -> dict[str, Any]:
    ids = tokenizer.encode(text).tolist()
    data = {
        "kind": tokenizer.kind,
        "vocab_size": tokenizer.vocab_size,
        **_totals(text, len(ids)),
        "tokens": [
            {
                "index": index,
                "id": token,
                "label": tokenizer.token_label(token),
                "bytes": tokenizer.token_bytes(token).hex(),
            }
            for index, token in enumerate(ids)
        ],
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


def _print(text: str, tokenizer: "Tokenizer", bpe: "BPETokenizer | None") -> None:
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    ids = tokenizer.encode(text).tolist()
    console.print(_description(tokenizer))
    if bpe:
        _print_merges(console, bpe, text)
    console.print(_table(tokenizer, ids[:MAX_ROWS], console.encoding))
    if len(ids) > MAX_ROWS:
        console.print(f"... and {len(ids) - MAX_ROWS:,} more; --json gives all of them")
    console.print(_totals_line(text, len(ids)))


def _totals_line(text: str, n_tokens: int) -> str:
    totals = _totals(text, n_tokens)
    counts = [f"{totals[f'n_{unit}']:,} {name}" for unit, name in UNITS]
    ratio = [f"{totals['chars_per_token']:.2f} characters per token"] if n_tokens else []
    return ", ".join(counts + ratio)


def _table(tokenizer: "Tokenizer", ids: list[int], encoding: str) -> "Table":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("index", justify="right", no_wrap=True)
    table.add_column("id", justify="right", no_wrap=True)
    table.add_column("token", overflow="fold", min_width=5)
    table.add_column("bytes", overflow="fold", min_width=8)
    for index, token in enumerate(ids):
        label = Text(_visible(tokenizer.token_label(token), encoding))
        table.add_row(str(index), str(token), label, tokenizer.token_bytes(token).hex(" "))
    return table


def _print_merges(console: "Console", tokenizer: "BPETokenizer", text: str) -> None:
    console.print()
    for rows in islice(_merge_labels(tokenizer, text), MAX_ROWS):
        chain = [" ".join(_visible(label, console.encoding) for label in row) for row in rows]
        console.print("\n".join(_fill(chain, console.width)), soft_wrap=True)
    if (n_left := len(tokenizer.pre_tokens(text)) - MAX_ROWS) > 0:
        console.print(f"... and {n_left:,} more; --json gives all of them")


def _fill(chain: list[str], width: int) -> list[str]:
    """A chain of merges on lines of at most `width`, broken only before an arrow."""
    from rich.cells import cell_len

    lines = [chain[0]]
    for row in chain[1:]:
        if cell_len(lines[-1]) + cell_len(row) + 4 <= width:
            lines[-1] += f" -> {row}"
        else:
            lines.append(f"    -> {row}")
    return lines


def _visible(label: str, encoding: str) -> str:
    """A label whose spaces can be seen, and of which the terminal can show every character."""
    return label.replace(" ", "␣").encode(encoding, errors="backslashreplace").decode(encoding)


def _description(tokenizer: "Tokenizer") -> str:
    n_merges = len(tokenizer.merges)
    merges = f", {n_merges:,} merge{'s' if n_merges > 1 else ''}" if n_merges else ""
    specials = f", with {' '.join(tokenizer.specials)}" if tokenizer.specials else ""
    return f"{tokenizer.kind} tokenizer, {tokenizer.vocab_size:,} tokens{merges}{specials}"
