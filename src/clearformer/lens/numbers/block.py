"""One block by its numbers: every matrix on the way through it, for one head of its attention.

    found = lens.block(run, "First Citizen:", layer=0, head=2)
    found["blocks.0.attn.hook_q"].values        [T Dh]
    found["blocks.0.attn.scores"].equation      scores = scale q_rot k_rot^T
    lens.cell(run, "First Citizen:", layer=0, head=2, name="blocks.0.attn.hook_q", row=3, column=5)
    lens.matrix(run, text, layer=0, head=2, name="blocks.0.mlp.hook_post", row=700, column=900)     a part of one

Names are those of the hook points; a matrix without one (scores before the mask, one head's output) has no `hook_` in
its name. What a kind does not have is not there. The first block's way begins at the embeddings; the last one's ends
at the logits of the position.

Shapes: R rows, C columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from clearformer.decoding import Text
from clearformer.decoding.arguments import check_whole
from clearformer.errors import UserError, did_you_mean, shown
from clearformer.lens.inputs import Inputs, Subject, quiet, read
from clearformer.lens.numbers.sources import as_array
from clearformer.lens.numbers.steps import Step
from clearformer.lens.numbers.walk import Walk
from clearformer.lens.patterns.head_pattern import window
from clearformer.lens.showing import Shown, Table, heat_map
from clearformer.results import Result
from clearformer.text import Tokenizer

MOST_ROWS = 256
MOST_OUTPUTS = 64  # logits, the largest first
PICTURES_A_LINE = 4


@dataclass(frozen=True, repr=False, eq=False)
class NamedArray(Result):
    """One matrix on the way.

    Attributes:
        name: Its hook point.
        symbol: What the equations call it.
        title: It in words.
        equation: How it is made of earlier ones.
        stage: embedding, attention, cross-attention, feed-forward or output.
        rows: The numbers of its rows: positions.
        columns: Those of its columns: dimensions, positions that are read, or ids of outputs.
        row_axis: What the rows are: tokens, the source's, or the text as a whole.
        column_axis: What the columns are: dimensions, tokens, source, vocabulary or classes.
        column_labels: Of outputs; none elsewhere.
        size: How many rows and columns there are, of which these are shown.
        values: The numbers.
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
        """The same matrix of another run less this one; of logits, the largest of both runs.

        Raises:
            UserError: it has other rows or columns, or another equation.
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
    """The matrices of a block, in the order of computation.

    Attributes:
        layer: The block, from 0.
        head: Whose queries, keys, values and scores are shown.
        part: `attn`, `cross_attn`, or `encoder`.
        position: Looked at, from 0: of the rows.
        tokens: Those of the text; of an encoder-decoder those of its output.
        source: Those of an encoder-decoder's source.
        arrays: The matrices. Of a long text some rows around the position; of logits the largest.
    """

    layer: int
    head: int
    part: str
    position: int
    tokens: list[str]
    source: list[str]
    arrays: list[NamedArray]

    def __getitem__(self, name: str) -> NamedArray:
        """The matrix of a hook point.

        Raises:
            UserError: there is none of that name on the way.
        """
        names = [array.name for array in self.arrays]
        check_name(name, names)
        return self.arrays[names.index(name)]

    def caption(self) -> str:
        return f"block {self.layer}, head {self.head} of its {PART_WORDS[self.part]}: every matrix on the way"

    def table(self) -> Table:
        rows = [
            [array.symbol, array.name, f"{len(array.rows)} x {len(array.columns)}", array.equation]
            for array in self.arrays
        ]
        return Table(["symbol", "name", "size", "equation"], rows, n_left=4)

    def table_of_changes(self) -> Table:
        """Each matrix with how far it changed."""
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


LOWEST = 1e30  # in size: what lies beyond is a mask
PART_WORDS = {"attn": "attention", "cross_attn": "cross-attention", "encoder": "encoder's attention"}


def block(
    subject: Subject,
    text: Text,
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
    """Every matrix on the way through one block.

    Args:
        subject: A run, or a model by itself.
        text: What to read; see `read`, and there `output`, `tokenizer` and `masked`.
        output: What an encoder-decoder writes.
        layer: The block; negative ones count from the last.
        head: Of the attention: whose queries, keys, values and scores are shown.
        part: `attn`; of an encoder-decoder also `cross_attn`, or `encoder` for a block of its encoder.
        position: Looked at; of a long text some rows around it are shown, and the logits are its own.
        most_rows: Of a matrix, at most; `matrix` has the others.
        most_columns: Likewise: the first ones, and of positions those around the position; all, where not given.
        tokenizer: That of a model by itself.
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
    """Raise UserError where no rows or columns would be shown."""
    for name, most in (("most_rows", most_rows), ("most_columns", most_columns)):
        if most is not None:
            check_whole(name, most)
            if most < 1:
                raise UserError(f"{name}: at least 1; got {most}")


def centre_of(step: Step, at: int) -> int:
    """The column around which some are shown: of positions of the text that reads itself the one that is looked at."""
    return at if step.columns == step.rows else 0


def row_of(inputs: Inputs, part: str, position: int) -> int:
    """The row of a position, from 0; a classifier's, which has no position that predicts, may be any."""
    return inputs.position(position, of_source=part == "encoder")


def named_array(
    inputs: Inputs,
    step: Step,
    row: int,
    column: int,
    most_rows: int = MOST_ROWS,
    most_columns: int | None = None,
) -> NamedArray:
    """A step's matrix as it is shown: all of it, or so much of it around a row and a column."""
    source = step.source
    n_rows, n_columns = source.values.shape
    # Keys and values of another text, whose rows the position does not name, begin at the first.
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
    """Limits of the colours, centred at zero."""
    largest = float(np.nanmax(np.abs(values), initial=0.0)) or 1.0
    return -largest, largest


def check_name(name: Any, names: Sequence[str]) -> None:
    """Raise UserError where a way has no matrix of that name."""
    if name not in names:
        hint = did_you_mean(name, names) if isinstance(name, str) else ""
        raise UserError(
            f"name: the way through this block has no {shown(name)}{hint or '; it has ' + ', '.join(names)}"
        )
