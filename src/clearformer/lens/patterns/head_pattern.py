"""One head's pattern: all of its weights, or for a long text those around one query and one key.

    found = lens.head_pattern(run, text, layer=2, head=1, position=700, key=650)
    found.weights[700 - found.first_row, 650 - found.first_column]
    found.reads                                         [S], all weights of the query at the position

Shapes: T query positions, S key positions, R and C rows and columns of the part that is shown.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from clearformer.decoding import Text
from clearformer.decoding.arguments import check_whole
from clearformer.hooks.readings import once
from clearformer.lens.activations import check_part, patterns_in_the_open, prefix_of
from clearformer.lens.inputs import Inputs, Readable, Subject, quiet, read
from clearformer.lens.patterns.attention import checked_number, draw_one, pattern_names, read_most
from clearformer.lens.showing import Shown, Table, visible
from clearformer.text import Tokenizer

MOST = 512


@dataclass(frozen=True, repr=False, eq=False)
class HeadPattern(Shown):
    """The pattern of one head.

    Attributes:
        name: Its hook point.
        layer: The block, from 0.
        head: The head, from 0.
        part: `attn`, `cross_attn` or `encoder`.
        tokens: The query labels.
        read: The key labels.
        position: The query's position, from 0.
        key: The key's position, from 0.
        first_row: The position of the first row of `weights`.
        first_column: The position of its first column.
        weights: A row for each query, a column for each key: all of them, or those around the query and the key.
        reads: All weights of the query at the position.
    """

    name: str
    layer: int
    head: int
    part: str
    tokens: list[str]
    read: list[str]
    position: int
    key: int
    first_row: int
    first_column: int
    weights: Float[np.ndarray, "R C"]
    reads: Float[np.ndarray, " S"]

    @property
    def is_whole(self) -> bool:
        """Whether `weights` holds the whole pattern."""
        return self.weights.shape == (len(self.tokens), len(self.read))

    def caption(self) -> str:
        return f"{self.name}, head {self.head}: where each token reads"

    def table(self) -> Table:
        names = self.read[self.first_column : self.first_column + self.weights.shape[1]]
        rows = [
            [str(position), visible(self.tokens[position]), read_most(row, names)]
            for position, row in enumerate(self.weights, self.first_row)
        ]
        return Table(["position", "token", "reads most"], rows, n_left=3)

    def notes(self) -> list[str]:
        if self.is_whole:
            return []
        rows, columns = self.weights.shape
        return [
            f"queries {self.first_row} to {self.first_row + rows - 1} of {len(self.tokens)}, "
            f"keys {self.first_column} to {self.first_column + columns - 1} of {len(self.read)}"
        ]

    def inches(self) -> tuple[float, float]:
        rows, columns = self.weights.shape
        return 2.4 + 0.2 * columns, 1.9 + 0.2 * rows

    def draw(self, figure: Any) -> None:
        rows, columns = self.weights.shape
        readers = self.tokens[self.first_row : self.first_row + rows]
        read_ones = self.read[self.first_column : self.first_column + columns]
        draw_one(figure, f"{self.name}, head {self.head}", self.weights, readers, read_ones)


def head_pattern(
    subject: Subject,
    text: Readable,
    output: Text | None = None,
    *,
    layer: int = 0,
    head: int = 0,
    part: str = "attn",
    position: int = -1,
    key: int = 0,
    most: int = MOST,
    tokenizer: Tokenizer | None = None,
    masked: Sequence[int] = (),
) -> HeadPattern:
    """Return the pattern of one head.

    Args:
        subject: A run, or a bare model.
        text: What to read; see `read` for this and for `output`, `tokenizer` and `masked`.
        output: What an encoder-decoder writes.
        layer: The block; negative ones count from the last.
        head: The number of the head.
        part: `attn`; for an encoder-decoder also `cross_attn`, or `encoder` for a block of its encoder.
        position: A query's position; if the text is longer than `most`, the rows around it are returned.
        key: A key's position; likewise for the columns. It is clamped to the end of the text.
        most: The largest number of rows and of columns.
        tokenizer: The tokenizer of a bare model.
        masked: Positions at which an encoder reads [MASK].

    Raises:
        UserError: there is no such layer, head, part or position, the attention has no pattern, or `most` is less
            than 1.
    """
    check_whole("most", most, least=1)
    check_whole("key", key)
    inputs = read(subject, text, output, tokenizer=tokenizer, masked=masked)
    check_part(inputs.model, part)
    pattern_names(inputs)
    prefix = prefix_of(inputs.model, part)
    n_layers = len(inputs.model.stack(prefix).blocks)
    layer = checked_number("layer", layer, n_layers)
    at = inputs.position(position, of_source=part == "encoder")
    name = f"{prefix}blocks.{layer}.{'cross_attn' if part == 'cross_attn' else 'attn'}.hook_pattern"
    patterns = once(inputs.model, ("pattern", inputs.key, name), lambda: _patterns(inputs, name))
    head = checked_number("head", head, len(patterns))
    pattern = patterns[head]
    n_rows, n_columns = pattern.shape
    key = min(max(int(key), -n_columns), n_columns - 1) % n_columns
    rows, columns = window(at, n_rows, most), window(key, n_columns, most)
    readers, read_ones = (
        inputs.source_labels if of_source else inputs.labels
        for of_source in (part == "encoder", part in ("encoder", "cross_attn"))
    )
    return HeadPattern(
        name,
        layer,
        head,
        part,
        readers,
        read_ones,
        at,
        key,
        rows.start,
        columns.start,
        pattern[rows, columns].copy(),
        pattern[at].copy(),
    )


def _patterns(inputs: Inputs, name: str) -> Float[np.ndarray, "H T S"]:
    with quiet(inputs.model):
        [(_, pattern)] = patterns_in_the_open(inputs, [name])
        return pattern.float().cpu().numpy()


def window(centre: int, n: int, most: int) -> slice:
    """Return a slice of at most `most` of n places, around one of them."""
    first = min(max(0, centre - most // 2), max(0, n - most))
    return slice(first, min(n, first + most))
