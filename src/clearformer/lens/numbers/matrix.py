"""A part of one matrix of a block, around one of its numbers.

found = lens.matrix(run, text, layer=0, head=2, name="blocks.0.mlp.hook_post", row=700, column=900)
found.array.values[700 - found.array.rows[0], 900 - found.array.columns[0]]
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clearformer.decoding import Text
from clearformer.lens.inputs import Readable, Subject, read
from clearformer.lens.numbers.block import LOWEST, NamedArray, check_name, check_sizes, limits_of, named_array
from clearformer.lens.numbers.cell import place_in, walk_by
from clearformer.lens.showing import Shown, Table, heat_map, number
from clearformer.text import Tokenizer

MOST_ROWS, MOST_COLUMNS = 48, 192


@dataclass(frozen=True, repr=False, eq=False)
class MatrixPart(Shown):
    """Some numbers of one matrix of a block.

    Attributes:
        layer: The block, from 0.
        head: The head of its queries, keys, values and scores.
        part: `attn`, `cross_attn` or `encoder`.
        array: The numbers, with their rows and columns.
    """

    layer: int
    head: int
    part: str
    array: NamedArray

    def caption(self) -> str:
        array, (n_rows, n_columns) = self.array, self.array.size
        return (
            f"{array.symbol}: rows {array.rows[0]} to {array.rows[-1]} of {n_rows}, "
            f"columns {array.columns[0]} to {array.columns[-1]} of {n_columns}"
        )

    def table(self) -> Table:
        rows = [
            [str(row), *map(number, values)]
            for row, values in zip(self.array.rows, self.array.values.tolist(), strict=True)
        ]
        return Table(["row", *map(str, self.array.columns)], rows, 1)

    def inches(self) -> tuple[float, float]:
        rows, columns = self.array.values.shape
        return 2.0 + 0.06 * columns, 1.2 + 0.06 * rows

    def draw(self, figure: Any) -> None:
        finite = np.where(np.abs(self.array.values) < LOWEST, self.array.values, np.nan)
        axes = figure.subplots()
        heat_map(axes, finite, [], [], signed=True, limits=limits_of(finite))
        axes.set_title(f"{self.array.equation}\n{self.caption()}", fontsize=8)


def matrix(
    subject: Subject,
    text: Readable,
    output: Text | None = None,
    *,
    layer: int = 0,
    head: int = 0,
    part: str = "attn",
    name: str | None = None,
    row: int = -1,
    column: int = 0,
    most_rows: int = MOST_ROWS,
    most_columns: int = MOST_COLUMNS,
    tokenizer: Tokenizer | None = None,
    masked: Sequence[int] = (),
) -> MatrixPart:
    """Return a part of one matrix of `block`.

    Args:
        subject: A run, or a bare model.
        text: What to read; see `read` for this and for `output`, `tokenizer` and `masked`.
        output: What an encoder-decoder writes.
        layer: The block; negative ones count from the last.
        head: The number of the attention head.
        part: `attn`; for an encoder-decoder also `cross_attn`, or `encoder` for a block of its encoder.
        name: The name of a matrix of `block`; by default the residual stream after the block.
        row: The row to show with those around it; negative ones count from the end.
        column: The column to show with those around it.
        most_rows: The largest number of rows.
        most_columns: The largest number of columns.
        tokenizer: The tokenizer of a bare model.
        masked: Positions at which an encoder reads [MASK].

    Raises:
        UserError: there is no such layer, head, part, matrix, row or column, or a number of rows or columns is less
            than 1.
    """
    check_sizes(most_rows, most_columns)
    inputs = read(subject, text, output, tokenizer=tokenizer, masked=masked)
    walk = walk_by(inputs, layer, head, part, name, row)
    wanted = f"{walk.path}.hook_resid_post" if name is None else name
    check_name(wanted, list(walk.way.steps))
    step = walk.way.steps[wanted]
    array = named_array(inputs, step, *place_in(walk, step, row, column), most_rows, most_columns)
    return MatrixPart(walk.layer, walk.head, part, array)
