"""The loss of every token in a part of a run's data, with the hardest and easiest passages and where they are.

    found = lens.corpus(run, rows=100)
    found.losses[3, 17]                           the loss of one token, in nats
    found.hardest[0].text, found.hardest[0].spans the worst passage, and its bytes in the files

The rows and their losses are those by which `evaluate` measures a run of this kind (see `rows.py`), except that an
encoder that predicts masked tokens is measured on every token, where `evaluate` draws some.

Shapes: N rows, W predictions of the longest row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from clearformer.data import Prepared
from clearformer.data.locating.places import Span, in_short
from clearformer.decoding.arguments import OnStep, check_function, check_run, check_whole
from clearformer.errors import UserError, count
from clearformer.lens.inputs import quiet
from clearformer.lens.passages.rows import MASKED_EVERY, MaskedRows, Row, Rows, losses_of, rows_of
from clearformer.lens.showing import Shown, Table, heat_map, visible
from clearformer.runs.evaluation import HELD_OUT
from clearformer.runs.folders import RunLike
from clearformer.runs.own_data import read_own_data

ROWS = 48  # by default
LENGTH = 16  # tokens of a passage of running text
TOP = 8
TEXT_CHARS = 60  # of a passage in a table
NONE = -1  # the id of no token


@dataclass(frozen=True)
class CorpusRow:
    """One row of the data, and the arguments with which the lens reproduces its predictions.

    Attributes:
        number: The row's number in its split, from 0.
        text: What the model reads, or the source of a pair.
        output: The target of a pair.
        position: The position that predicts the row's first token; the others follow one by one. -1 for a class.
        masked_every: The distance between [MASK] positions for an encoder that predicts tokens, counted from the
            predicted one; 0 for other models.
        special: Columns that are never masked, and so have no loss.
        read_alike: Whether the text by itself gives exactly the tokens that were measured. Otherwise a token at its
            edge differs, or a special token is missing, and the lens shows slightly different numbers.
        spans: The bytes of the files that contain the row's tokens.
    """

    number: int
    text: str
    output: str | None
    position: int
    masked_every: int
    special: list[int]
    read_alike: bool
    spans: list[Span]


@dataclass(frozen=True)
class Passage:
    """Some tokens of a row.

    Attributes:
        row: The number of its row among those that were read, from 0.
        column: The column of its first token.
        n: The number of its tokens.
        loss: Their mean loss, in nats.
        text: Their text; for a pair both sides, for a labelled text also the label.
        spans: The bytes of the files that contain them.
    """

    row: int
    column: int
    n: int
    loss: float
    text: str
    spans: list[Span]

    @property
    def where(self) -> str:
        """The file's name and the bytes."""
        return in_short(self.spans)


@dataclass(frozen=True, repr=False, eq=False)
class Corpus(Shown):
    """The losses on a part of a run's data.

    Attributes:
        split: The split that was read.
        splits: All splits of the data.
        unit: The kind of row: a row of a running text, a pair or a text.
        n_rows: The number of rows in the split.
        first: The first row that was read, from 0.
        losses: [N W] in nats; NaN where a row has no such token.
        ids: [N W] the tokens or classes to predict; -1 where there is none.
        likeliest: [N W] the model's likeliest output in their place.
        labels: The readable form of those ids.
        rows: The rows that were read.
        hardest: The passages with the largest mean loss, hardest first.
        easiest: The passages with the smallest, easiest first.
        mean: The mean of all losses.
        uniform_loss: The loss if all tokens, or all classes, were equally likely.
    """

    split: str
    splits: list[str]
    unit: str
    n_rows: int
    first: int
    losses: Float[np.ndarray, "N W"]
    ids: Int[np.ndarray, "N W"]
    likeliest: Int[np.ndarray, "N W"]
    labels: dict[int, str]
    rows: list[CorpusRow]
    hardest: list[Passage]
    easiest: list[Passage]
    mean: float
    uniform_loss: float

    @property
    def n_losses(self) -> int:
        """The number of measured predictions."""
        return int(np.isfinite(self.losses).sum())

    def caption(self) -> str:
        last = self.first + len(self.rows) - 1
        read = f"{self.unit}s {self.first:,} to {last:,} of {self.n_rows:,}"
        return (
            f"split {self.split}, {read}: mean loss {self.mean:.4f} nats over {self.n_losses:,} predictions"
        )

    def table(self) -> Table:
        rows = [
            [name, f"{each.loss:.4f}", short_text(each.text), each.where]
            for name, passages in (("hardest", self.hardest), ("easiest", self.easiest))
            for each in passages
        ]
        return Table(["", "loss", "text", "bytes"], rows, 4)

    def notes(self) -> list[str]:
        files = dict.fromkeys(span.file for each in self.rows for span in each.spans)
        masked = max((each.masked_every for each in self.rows), default=0)
        turns = f"every token is predicted once, with one in {masked} masked at a time"
        return [turns] * bool(masked) + [f"read from {file}" for file in list(files)[:3]]

    def inches(self) -> tuple[float, float]:
        return 9.0, 1.2 + 0.12 * len(self.rows)

    def draw(self, figure: Any) -> None:
        axes = figure.subplots()
        names = [f"{each.number:,}" for each in self.rows]
        image = heat_map(axes, self.losses, names, [""] * self.losses.shape[1])
        axes.set_xticks([])
        figure.colorbar(image, ax=axes, label="loss, nats")


def short_text(text: str) -> str:
    """Return a passage on one line, shortened if long."""
    line = visible(" ".join(text.split("\n")))
    return line if len(line) <= TEXT_CHARS else f"{line[: TEXT_CHARS - 3]}..."


def corpus(
    run: RunLike,
    split: str = HELD_OUT,
    *,
    first: int = 0,
    rows: int = ROWS,
    length: int = LENGTH,
    on_step: OnStep = lambda *_: None,
) -> Corpus:
    """Return the loss of every token of some rows of a run's own data.

    Args:
        run: A run in the directory in which it was trained, with its data in place.
        split: `val` for held-out data, `train` for training data.
        first: The first row to read, from 0.
        rows: The number of rows to read; fewer if the split ends.
        length: Tokens per passage of running text; each pair or labelled text is one passage.
        on_step: Called after each row with the number done and the total.

    Raises:
        RunError: the run has no directory, or was not trained in it.
        DataError: its data cannot be read, or have changed.
        UserError: there is no such split or row.
    """
    check_run(run, "folder")
    for name, value, least in (("first", first, 0), ("rows", rows, 1), ("length", length, 1)):
        check_whole(name, value, least=least)
    check_function("on_step", on_step)
    prepared = read_own_data(run).prepared
    data = rows_of(run, prepared, split)
    if first >= len(data):
        raise UserError(f"first: the split {split} has {count(len(data), data.unit)}; got {first}")
    numbers = range(first, min(first + rows, len(data)))
    read = [data.row(number) for number in numbers]
    losses, likeliest = measured(data, read, on_step)
    passages = ranked(data, losses, length)
    n_told = min(TOP, -(-len(passages) // 2))  # so that none is listed as both hard and easy
    hardest, easiest = passages[::-1][:n_told], passages[: len(passages) - n_told][:n_told]
    spans = data.find([(number, 0, len(row.targets)) for number, row in zip(numbers, read, strict=True)])
    ids = padded([row.targets for row in read], NONE).astype(np.int64)
    return Corpus(
        split,
        list(prepared.splits),
        data.unit,
        len(data),
        first,
        losses,
        ids,
        likeliest,
        labels_of(prepared, data, [*np.unique(ids), *np.unique(likeliest)]),
        [
            corpus_row(data, number, row, found.spans)
            for number, row, found in zip(numbers, read, spans, strict=True)
        ],
        found_again(data, first, hardest),
        found_again(data, first, easiest),
        float(np.nanmean(losses.astype(np.float64))),
        log(run.model.config.n_classes or run.model.embed.num_embeddings),
    )


def measured(
    data: Rows, rows: Sequence[Row], on_step: OnStep
) -> tuple[Float[np.ndarray, "N W"], Int[np.ndarray, "N W"]]:
    """Return the losses of some rows, and the likeliest output in the place of each target."""
    found = []
    with quiet(data.run.model):
        for row in rows:
            found.append(losses_of(data, row))
            on_step(len(found), len(rows))
    return padded([losses for losses, _ in found], np.nan), padded([best for _, best in found], NONE)


def padded(rows: Sequence[np.ndarray], fill: float) -> np.ndarray:
    """Return rows of unequal length as one array [N W]."""
    out = np.full((len(rows), max(map(len, rows))), fill, rows[0].dtype)
    for number, row in enumerate(rows):
        out[number, : len(row)] = row
    return out


# --- passages -------------------------------------------------------------------------------------------------


def ranked(data: Rows, losses: Float[np.ndarray, "N W"], length: int) -> list[tuple[int, int, int, float]]:
    """Return row, first column, length and mean loss of every passage, easiest first.

    A passage of running text has `length` tokens; the rest at the end of a row is left out.
    """
    found = []
    for number, row in enumerate(losses):
        width = int(np.isfinite(row).nonzero()[0].max(initial=-1)) + 1
        size = width if data.are_whole else min(length, width)
        for start in range(0, width - size + 1, max(1, size)):
            part = row[start : start + size]
            if np.isfinite(part).any():
                found.append((number, start, size, float(np.nanmean(part.astype(np.float64)))))
    return sorted(found, key=lambda each: each[3])


def found_again(data: Rows, first: int, passages: Sequence[tuple[int, int, int, float]]) -> list[Passage]:
    """Return passages with their text and their place in the files."""
    places = [(first + row, start, start + n) for row, start, n, _ in passages]
    examples = data.find(places) if places else []
    return [
        Passage(*passage, example.text, example.spans)
        for passage, example in zip(passages, examples, strict=True)
    ]


def corpus_row(data: Rows, number: int, row: Row, spans: list[Span]) -> CorpusRow:
    """Return a row with the arguments that reproduce it."""
    unguessed = data.special if isinstance(data, MaskedRows) else []
    special = [i for i, token in enumerate(row.targets.tolist()) if token in unguessed]
    every = MASKED_EVERY if isinstance(data, MaskedRows) else 0
    return CorpusRow(
        number, row.text, row.output, row.position, every, special, data.is_read_alike(row), spans
    )


def labels_of(prepared: Prepared, data: Rows, ids: Sequence[int]) -> dict[int, str]:
    """Return the readable form of tokens' or classes' ids."""
    classes = getattr(prepared, "labels", None) if data.run.model.config.n_classes is not None else None
    names = classes or [data.tokenizer.token_label(i) for i in range(data.tokenizer.vocab_size)]
    return {int(i): names[i] if i < len(names) else f"#{i}" for i in ids if i != NONE}
