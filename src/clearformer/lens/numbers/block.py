"""One block in numbers: every matrix on the way through it, for one head of its attention.

    found = lens.block(run, "First Citizen:", layer=0, head=2)
    found["blocks.0.attn.hook_q"].values        [T Dh]
    found["blocks.0.attn.scores"].equation      scores = scale q_rot k_rot^T
    lens.cell(run, "First Citizen:", layer=0, head=2, name="blocks.0.attn.hook_q", row=3, column=5)
    lens.matrix(run, text, layer=0, head=2, name="blocks.0.mlp.hook_post", row=700, column=900)     a part of one

Names are those of hook points; a matrix without one (scores before the mask, one head's output) has a name without
`hook_`. Matrices that a kind does not have are left out. The first block also has the embeddings, the last one also the
logits of the position.

Shapes: R rows, C columns.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from clearformer.decoding import Text
from clearformer.decoding.arguments import check_whole
from clearformer.errors import UserError, did_you_mean, shown
from clearformer.lens.activations import check_part
from clearformer.lens.inputs import Inputs, Readable, Subject, quiet, read
from clearformer.lens.numbers.sources import as_array
from clearformer.lens.numbers.steps import Step
from clearformer.lens.numbers.walk import Walk
from clearformer.lens.patterns.head_pattern import window
from clearformer.lens.showing import Shown, Table, heat_map
from clearformer.results import Result
from clearformer.text import Tokenizer

MOST_ROWS = 256
MOST_OUTPUTS = 64  # logits, largest first
PICTURES_A_LINE = 4


@dataclass(frozen=True, repr=False, eq=False)
class NamedArray(Result):
    """One matrix of a block.

    Attributes:
        name: Its hook point, or its name without one.
        symbol: Its symbol in equations.
        title: The matrix in words.
        equation: How it is made from earlier matrices.
        stage: embedding, attention, cross-attention, feed-forward or output.
        rows: The numbers of its rows: positions.
        columns: The numbers of its columns: dimensions, key positions, or ids of outputs.
        row_axis: The kind of its rows: tokens, source, or the text as a whole.
        column_axis: The kind of its columns: dimensions, tokens, source, vocabulary or classes.
        column_labels: The labels of outputs; otherwise empty.
        size: The numbers of rows and columns of the whole matrix.
        values: The numbers shown.
    """

    name: str
    symbol: str
    title: str
    equation: str
    stage: str
    rows: list[int]
    columns: list[int]
    row_axis: str
    column_axis: str
    column_labels: list[str]
    size: tuple[int, int]
    values: Float[np.ndarray, "R C"]

    def change_to(self, other: "NamedArray") -> "NamedArray":
        """Return the same matrix of another run less this one; for logits, at the outputs that both show.

        Raises:
            UserError: its rows, columns or equation differ.
        """
        common = [each for each in self.columns if each in other.columns]
        is_same = (self.rows, self.equation) == (other.rows, other.equation)
        if not is_same or (len(common) < len(self.columns) and not self.column_labels):
            raise UserError(f"{self.name}: {_described(self)} and {_described(other)} cannot be subtracted")
        ours, theirs = ([each.columns.index(column) for column in common] for each in (self, other))
        return replace(
            self,
            columns=common,
            column_labels=[self.column_labels[i] for i in ours] if self.column_labels else [],
            values=other.values[:, theirs] - self.values[:, ours],
        )


def _described(array: NamedArray) -> str:
    return f"{array.equation} of {len(array.rows)} x {len(array.columns)} numbers"


@dataclass(frozen=True, repr=False, eq=False)
class BlockNumbers(Shown):
    """The matrices of a block, in order of computation.

    Attributes:
        layer: The block, from 0.
        head: The head whose queries, keys, values and scores are shown.
        part: `attn`, `cross_attn` or `encoder`.
        position: The chosen row, from 0.
        tokens: The tokens of the text; for an encoder-decoder, of its output.
        source: The tokens of an encoder-decoder's source.
        arrays: The matrices; for a long text the rows around the position, for logits the largest.
    """

    layer: int
    head: int
    part: str
    position: int
    tokens: list[str]
    source: list[str]
    arrays: list[NamedArray]

    def __getitem__(self, name: str) -> NamedArray:
        """Return a matrix by name.

        Raises:
            UserError: the block has no such matrix.
        """
        names = [array.name for array in self.arrays]
        check_name(name, names)
        return self.arrays[names.index(name)]

    def caption(self) -> str:
        return (
            f"block {self.layer}, head {self.head} of its {PART_WORDS[self.part]}: every matrix along the way"
        )

    def table(self) -> Table:
        rows = [
            [array.symbol, array.name, f"{len(array.rows)} x {len(array.columns)}", array.equation]
            for array in self.arrays
        ]
        return Table(["symbol", "name", "size", "equation"], rows, n_left=4)

    def table_of_changes(self) -> Table:
        """Return the size of each matrix's change."""
        rows = []
        for array in self.arrays:
            size = np.abs(array.values[np.isfinite(array.values)])
            mean = float(np.sqrt(np.mean(size**2))) if size.size else 0.0
            shape = f"{len(array.rows)} x {len(array.columns)}"
            rows.append([array.symbol, array.name, shape, f"{mean:.4g}", f"{float(size.max(initial=0)):.4g}"])
        return Table(["symbol", "name", "size", "root mean square", "largest"], rows, n_left=3)

    def inches(self) -> tuple[float, float]:
        lines = -(-len(self.arrays) // PICTURES_A_LINE)
        return 3.2 * PICTURES_A_LINE, 1.9 * lines + 0.6

    def draw(self, figure: Any) -> None:
        lines = -(-len(self.arrays) // PICTURES_A_LINE)
        grid = figure.subplots(lines, PICTURES_A_LINE, squeeze=False).ravel()
        for axes in grid[len(self.arrays) :]:
            axes.set_axis_off()
        for axes, array in zip(grid, self.arrays, strict=False):
            finite = np.where(np.abs(array.values) < LOWEST, array.values, np.nan)
            heat_map(axes, finite, [], [], signed=True, limits=limits_of(finite))
            axes.set_title(f"{array.equation}\n{len(array.rows)} x {len(array.columns)}", fontsize=6, pad=2)
        figure.suptitle(self.caption(), fontsize=10)


LOWEST = 1e30  # in absolute value; anything beyond is a mask
PART_WORDS = {"attn": "attention", "cross_attn": "cross-attention", "encoder": "encoder's attention"}


def block(
    subject: Subject,
    text: Readable,
    output: Text | None = None,
    *,
    layer: int = 0,
    head: int = 0,
    part: str = "attn",
    position: int = -1,
    most_rows: int = MOST_ROWS,
    most_columns: int | None = None,
    tokenizer: Tokenizer | None = None,
    masked: Sequence[int] = (),
) -> BlockNumbers:
    """Return every matrix on the way through one block.

    Args:
        subject: A run, or a bare model.
        text: What to read; see `read` for this and for `output`, `tokenizer` and `masked`.
        output: What an encoder-decoder writes.
        layer: The block; negative ones count from the last.
        head: The attention head whose queries, keys, values and scores are shown.
        part: `attn`; for an encoder-decoder also `cross_attn`, or `encoder` for a block of its encoder.
        position: The chosen row; for a long text the rows around it are shown, and the logits are its own.
        most_rows: The largest number of rows of a matrix; `matrix` has the others.
        most_columns: Likewise for columns: the first ones, or key positions around the position; by default all.
        tokenizer: The tokenizer of a bare model.
        masked: Positions at which an encoder reads [MASK].

    Raises:
        UserError: there is no such layer, head, part or position, or a number of rows or columns is less than 1.
    """
    check_sizes(most_rows, most_columns)
    inputs = read(subject, text, output, tokenizer=tokenizer, masked=masked)
    at = row_of(inputs, part, position)
    with quiet(inputs.model):
        walk = Walk(inputs, layer, head, part, at)
    return BlockNumbers(
        layer=walk.layer,
        head=walk.head,
        part=part,
        position=at,
        tokens=inputs.labels,
        source=inputs.source_labels,
        arrays=[
            named_array(inputs, step, at, centre_of(step, at), most_rows, most_columns)
            for step in walk.way.steps.values()
        ],
    )


def check_sizes(most_rows: Any, most_columns: Any) -> None:
    """Raise UserError if no rows or columns would be shown."""
    sizes = {"most_rows": most_rows} | ({} if most_columns is None else {"most_columns": most_columns})
    for name, most in sizes.items():
        check_whole(name, most, least=1)


def centre_of(step: Step, at: int) -> int:
    """Return the column around which to show others: in self-attention the position, otherwise the first."""
    return at if step.columns == step.rows else 0


def row_of(inputs: Inputs, part: str, position: int) -> int:
    """Return the row of a position, from 0; for a classifier, any row of its text."""
    check_part(inputs.model, part)
    return inputs.position(position, of_source=part == "encoder")


def named_array(
    inputs: Inputs,
    step: Step,
    row: int,
    column: int,
    most_rows: int = MOST_ROWS,
    most_columns: int | None = None,
) -> NamedArray:
    """Return a step's matrix for display: all of it, or at most so many numbers around a row and a column."""
    source = step.source
    n_rows, n_columns = source.values.shape
    # The keys and values of another text, whose rows the position does not index, start at the first row.
    place = row - source.first_row if 0 <= row - source.first_row < n_rows else 0
    rows, columns = window(place, n_rows, most_rows), window(column, n_columns, most_columns or n_columns)
    labels: list[str] = []
    if step.columns in ("vocabulary", "classes"):
        values = as_array(source.values)
        chosen = np.argsort(-values[0], kind="stable")[:MOST_OUTPUTS].tolist()
        values, labels = values[rows, chosen], [inputs.output_label(each) for each in chosen]
    else:
        values, chosen = as_array(source.values[rows, columns]), list(range(columns.start, columns.stop))
    return NamedArray(
        source.name,
        source.symbol,
        step.title,
        step.equation,
        step.stage,
        list(range(source.first_row + rows.start, source.first_row + rows.stop)),
        chosen,
        step.rows,
        step.columns,
        labels,
        (n_rows, n_columns),
        values.copy(),
    )


def limits_of(values: Float[np.ndarray, "R C"]) -> tuple[float, float]:
    """Return colour limits centred at zero."""
    largest = float(np.nanmax(np.abs(values), initial=0.0)) or 1.0
    return -largest, largest


def check_name(name: Any, names: Sequence[str]) -> None:
    """Raise UserError if a block has no matrix of that name."""
    if name not in names:
        hint = (layer_hint(name, names) or did_you_mean(name, names)) if isinstance(name, str) else ""
        raise UserError(
            f"name: this block has no matrix {shown(name)}{hint or '; it has ' + ', '.join(names)}"
        )


def layer_hint(name: str, names: Sequence[str]) -> str:
    """Return the setting to change, for a message, if a block's names would have `name` in another layer."""
    in_a_layer = re.fullmatch(r"(\w+\.)(\d+)(\..+)", name)
    if in_a_layer is None:
        return ""
    stack, layer, matrix = in_a_layer.groups()
    if not any(re.fullmatch(rf"{re.escape(stack)}\d+{re.escape(matrix)}", each) for each in names):
        return ""
    return f", which is of another layer: set layer={layer}"
