"""All heads at a glance for texts of any length: a reduced pattern of each, and measures of the whole one.

    found = lens.attention_overview(run, text, most=64)
    found.patterns["blocks.0.attn.hook_pattern"]        [H R C], at most 64 of each

A number of a reduced pattern is the largest weight of the group that it stands for, so that no large weight is lost.
`head_pattern` has the weights themselves.

Shapes: H heads, T query positions, S key positions, R and C rows and columns of a reduced pattern.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from clearformer.decoding import Text
from clearformer.decoding.arguments import check_whole
from clearformer.errors import count
from clearformer.hooks.readings import once
from clearformer.lens.activations import patterns_in_the_open
from clearformer.lens.inputs import Inputs, Readable, Subject, quiet, read
from clearformer.lens.patterns.attention import draw_all, habits_of, pattern_names
from clearformer.lens.showing import Shown, Table
from clearformer.text import Tokenizer

MOST = 64
HABITS = ["itself", "previous", "first", "distance"]


@dataclass(frozen=True, repr=False, eq=False)
class AttentionOverview(Shown):
    """The attention patterns of a text, each reduced in size.

    Attributes:
        tokens: The tokens of the text; for an encoder-decoder, of its output.
        source: The tokens of an encoder-decoder's source; empty for other models.
        heads: The numbers of the heads, the same for each layer.
        patterns: By hook point, the largest weight of each group of queries and keys.
        steps: By hook point, how many queries and how many keys a group holds.
        habits: By hook point, for each head as strings: the mean weights on the token itself, the previous and the
            first one, and the mean distance.
    """

    tokens: list[str]
    source: list[str]
    heads: list[int]
    patterns: dict[str, Float[np.ndarray, "H R C"]]
    steps: dict[str, tuple[int, int]]
    habits: dict[str, list[list[str]]]

    def caption(self) -> str:
        return f"{count(len(self.heads), 'head')} in each of {count(len(self.patterns), 'pattern')}: where they read"

    def table(self) -> Table:
        rows = [
            [name, str(head), *habits]
            for name, of_heads in self.habits.items()
            for head, habits in zip(self.heads, of_heads, strict=True)
        ]
        return Table(["pattern", "head", *HABITS], rows)

    def notes(self) -> list[str]:
        rows, columns = (max(step) for step in zip(*self.steps.values(), strict=True))
        if rows == columns == 1:
            return []
        return [f"small pictures show the largest weight of up to {rows} x {columns} positions"]

    def inches(self) -> tuple[float, float]:
        return 1.2 + 1.35 * len(self.heads), 0.9 + 1.45 * len(self.patterns)

    def draw(self, figure: Any) -> None:
        draw_all(figure, self.heads, self.patterns)


def attention_overview(
    subject: Subject,
    text: Readable,
    output: Text | None = None,
    *,
    most: int = MOST,
    tokenizer: Tokenizer | None = None,
    masked: Sequence[int] = (),
) -> AttentionOverview:
    """Return the patterns of all layers and heads, each reduced in size.

    Args:
        subject: A run, or a bare model.
        text: What to read; see `read` for this and for `output`, `tokenizer` and `masked`.
        output: What an encoder-decoder writes.
        most: The largest number of rows and of columns of a reduced pattern.
        tokenizer: The tokenizer of a bare model.
        masked: Positions at which an encoder reads [MASK].

    Raises:
        UserError: the model's attention has no pattern, or `most` is less than 1.
    """
    check_whole("most", most, least=1)
    inputs = read(subject, text, output, tokenizer=tokenizer, masked=masked)
    names = pattern_names(inputs)
    found = once(
        inputs.model, ("attention overview", inputs.key, most), lambda: _small_patterns(inputs, names, most)
    )
    return AttentionOverview(
        inputs.labels,
        inputs.source_labels,
        list(range(len(next(iter(found.values()))[0]))),
        {name: small.copy() for name, (small, _, _) in found.items()},
        {name: steps for name, (_, steps, _) in found.items()},
        {name: [list(each) for each in habits] for name, (_, _, habits) in found.items()},
    )


SmallPatterns = dict[str, tuple[np.ndarray, tuple[int, int], list[list[str]]]]


def _small_patterns(inputs: Inputs, names: Sequence[str], most: int) -> SmallPatterns:
    """Return the reduced pattern, its steps and the heads' habits by name; only one block's patterns are in memory."""
    found: SmallPatterns = {}
    with quiet(inputs.model):
        for name, pattern in patterns_in_the_open(inputs, names):
            small, steps = made_small(pattern.float(), most)
            found[name] = small, steps, habits_of(pattern.float().cpu().numpy(), ".cross_attn." in name)
    return found


def made_small(
    pattern: Float[Tensor, "H T S"], most: int
) -> tuple[Float[np.ndarray, "H R C"], tuple[int, int]]:
    """Return the maxima of groups of rows and columns, and how many of each a group holds."""
    rows, columns = (-(-n // most) for n in pattern.shape[1:])
    small = F.max_pool2d(pattern[None], (rows, columns), ceil_mode=True)[0]
    return small.cpu().numpy().copy(), (rows, columns)
