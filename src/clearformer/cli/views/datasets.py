"""Prepared data on the terminal: a summary and details for each kind of data."""

import textwrap
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import typer

from clearformer.cli.streams import write_text
from clearformer.cli.tables import table
from clearformer.data import (
    Data,
    Dataset,
    PairDataset,
    PairSplit,
    Progress,
    Split,
    prepare_data,
)
from clearformer.data.labelled.preparing import LabelledDataset, LabelledSplit
from clearformer.data.pairs.files import check_pair_contents
from clearformer.data.shards import check_contents
from clearformer.data.text.overlap import Overlap, overlap, usual_width
from clearformer.errors import count
from clearformer.text import Tokenizer, TokenizerConfig

N_FREQUENT = 10
N_FIRST_CHARS = 160
MOST_TOKENS_OF_A_CHARACTER = 4  # the bytes of UTF-8
N_EXAMPLES = 3
COUNTED_AT_ONCE = 1 << 22


class DatasetView(ABC):
    """Prepared data, formatted for the terminal and for JSON."""

    files: str
    """The word for the files of this kind of data, such as "shards"."""
    columns: tuple[str, ...]
    """Heads of the table of splits, after the split's name."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def check(self) -> int:
        """Check the contents of all files and return their number.

        Raises:
            ShardError: a file differs from what was written.
        """
        return check_contents(self.dataset.folder, self.dataset.manifest)

    @abstractmethod
    def source(self) -> Iterable[str]:
        """Yield lines about the source of the data."""

    @abstractmethod
    def row(self, split: Any) -> Sequence[str]:
        """Return a split's row of the table, without its name."""

    @abstractmethod
    def details(self) -> dict[str, Any]:
        """Return examples and statistics, for JSON."""

    @abstractmethod
    def print_details(self) -> None:
        """Print examples and statistics."""

    def summary(self) -> dict[str, Any]:
        """Return the folder and the manifest, for JSON."""
        return {"folder": str(self.dataset.folder)} | self.dataset.manifest

    def print_summary(self) -> None:
        """Print the source of the data, and the table of its splits."""
        for line in self.source():
            typer.echo(line)
        tokenizer = self.dataset.tokenizer
        typer.echo(f"tokenizer  {tokenizer.kind}, {tokenizer.vocab_size:,} tokens")
        typer.echo(f"folder     {self.dataset.folder}\n")
        rows = ((name, *self.row(split)) for name, split in self.dataset.splits.items())
        typer.echo(table(("split", *self.columns), rows))


class TextView(DatasetView):
    """A running text."""

    dataset: Dataset
    files = "shards"
    columns = ("characters", "bytes", "tokens", "characters/token")

    def source(self) -> Iterable[str]:
        source = self.dataset.manifest["source"]
        yield f"text       {source['description']}"
        yield f"           {count(source['n_documents'], 'document')}, {source['n_chars']:,} characters"

    def row(self, split: Split) -> Sequence[str]:
        sizes = (f"{size:,}" for size in (split.n_chars, split.n_bytes, split.n_tokens))
        return *sizes, f"{split.n_chars / split.n_tokens:.2f}"

    def details(self) -> dict[str, Any]:
        splits, tokenizer = self.dataset.splits.items(), self.dataset.tokenizer
        return {
            "first_text": {name: _first_text(split, tokenizer) for name, split in splits},
            "most_frequent": {name: _most_frequent(split, tokenizer) for name, split in splits},
            "also_in_train": {name: found._asdict() for name, found in self._overlaps().items()},
        }

    def _overlaps(self) -> dict[str, Overlap]:
        """Return how much of each held-out split is in training."""
        train = self.dataset.splits["train"]
        held_out = {name: split for name, split in self.dataset.splits.items() if name != "train"}
        return {name: overlap(split, train, usual_width(split)) for name, split in held_out.items()}

    def print_details(self) -> None:
        details = self.details()
        for name, found in details["also_in_train"].items():
            typer.echo(
                f"{found['share']:.1%} of {name} is also in train, in stretches of {count(found['width'], 'token')} "
                "or more"
            )
        for name in self.dataset.splits:
            typer.echo(f"\n{typer.style(name, bold=True)} starts:")
            tokens = (f"'{each['token']}' {each['share']:.1%}" for each in details["most_frequent"][name])
            write_text(textwrap.indent(details["first_text"][name], "  ") + "\n")
            write_text(f"most frequent: {'  '.join(tokens)}\n")


class ExamplesView(DatasetView):
    """Rows that do not continue each other, of which the first ones are shown."""

    def details(self) -> dict[str, Any]:
        return {"examples": {name: self._examples(split) for name, split in self.dataset.splits.items()}}

    def _examples(self, split: Any) -> list[dict[str, Any]]:
        return [self.example(split, index) for index in range(min(N_EXAMPLES, len(split)))]

    @abstractmethod
    def example(self, split: Any, index: int) -> dict[str, Any]:
        """Return a row of a split and its tokens, for JSON."""

    def token_labels(self, ids: np.ndarray) -> list[str]:
        """Return tokens as they are shown."""
        return [self.dataset.tokenizer.token_label(token) for token in ids.tolist()]


class PairsView(ExamplesView):
    """Pairs of lines in two languages."""

    dataset: PairDataset
    files = "files"
    columns = ("pairs", "source tokens", "a line", "longest", "target tokens", "a line", "longest")

    def check(self) -> int:
        return check_pair_contents(self.dataset.folder, self.dataset.manifest)

    def source(self) -> Iterable[str]:
        source = self.dataset.manifest["source"]
        languages = f", {' to '.join(source['languages'])}" if source["languages"] else ""
        yield f"pairs      {source['description']}"
        yield f"           {count(source['n_pairs'], 'pair')}{languages}"

    def row(self, split: PairSplit) -> Sequence[str]:
        sides = (split.source_lengths, split.target_lengths)
        lengths = (
            text for side in sides for text in (f"{side.sum():,}", f"{side.mean():.1f}", f"{side.max():,}")
        )
        return f"{len(split):,}", *lengths

    def print_details(self) -> None:
        for name, examples in self.details()["examples"].items():
            typer.echo(f"\n{typer.style(name, bold=True)}")
            for example in examples:
                for side in ("source", "target"):
                    write_text(f"  {side}  {example[side]}\n")
                    write_text(f"          {' | '.join(example[f'{side}_tokens'])}\n")

    def example(self, split: PairSplit, index: int) -> dict[str, Any]:
        return {
            "source": split.source_texts[index],
            "source_tokens": self.token_labels(split.source(index)),
            "target": split.target_texts[index],
            "target_tokens": self.token_labels(split.target(index)),
        }


class LabelledView(ExamplesView):
    """Texts with labels."""

    dataset: LabelledDataset
    files = "shards"
    columns = ("texts", "tokens", "a text", "longest", "labels")

    def source(self) -> Iterable[str]:
        source = self.dataset.manifest["source"]
        yield f"texts      {source['description']}"
        yield (
            f"           {count(source['n_documents'], 'text')}, {source['n_chars']:,} characters, "
            f"{count(len(self.dataset.labels), 'label')}"
        )

    def row(self, split: LabelledSplit) -> Sequence[str]:
        lengths = split.lengths
        n_labels = len(np.unique(split.label_ids))
        sizes = (f"{size:,}" for size in (len(split), lengths.sum()))
        return *sizes, f"{lengths.mean():.1f}", f"{lengths.max():,}", f"{n_labels:,}"

    def print_details(self) -> None:
        for name, examples in self.details()["examples"].items():
            typer.echo(f"\n{typer.style(name, bold=True)}")
            counts = self.dataset.manifest["splits"][name]["label_counts"]
            typer.echo(f"  labels: {', '.join(f'{label} {count:,}' for label, count in counts.items())}")
            for example in examples:
                write_text(f"  {example['label']}  {example['text']}\n")
                write_text(f"    {' | '.join(example['tokens'])}\n")

    def example(self, split: LabelledSplit, index: int) -> dict[str, Any]:
        return {
            "label": self.dataset.labels[split.label_ids[index]],
            "text": split.texts[index],
            "tokens": self.token_labels(split.row(index)),
        }


def prepare_view(
    data: Data, tokenizer: TokenizerConfig, *, check: bool = False, progress: Progress
) -> DatasetView:
    """Prepare data and return their view; `check` verifies what the cache holds and makes damaged data again."""
    match prepare_data(data, tokenizer, check=check, progress=progress):
        case Dataset() as text:
            return TextView(text)
        case PairDataset() as pairs:
            return PairsView(pairs)
        case LabelledDataset() as texts:
            return LabelledView(texts)


def _first_text(split: Split, tokenizer: Tokenizer) -> str:
    text = tokenizer.decode(split.read(0, min(len(split), MOST_TOKENS_OF_A_CHARACTER * N_FIRST_CHARS)))
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
