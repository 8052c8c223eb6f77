"""Attention patterns: which positions each head attends to (lecture 000, figure 4.5; lecture 004).

    found = lens.attention(run, "First Citizen:")
    found.patterns["blocks.0.attn.hook_pattern"]        [H T S], each row sums to 1
    found.figure("attention.png")
    lens.attention(run, text, layer=2, head=1)          one head

A pattern shows where a head attends, not what for: for that see the score ledger and the interventions.

Shapes: T query positions, S key positions, H heads.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from clearformer.decoding import Text
from clearformer.decoding.arguments import check_whole
from clearformer.errors import UserError, count
from clearformer.hooks import hook_points
from clearformer.lens.activations import kept
from clearformer.lens.inputs import Inputs, Readable, Subject, quiet, read
from clearformer.lens.showing import Shown, Table, amount, heat_map, is_shown, visible
from clearformer.text import Tokenizer

MOST_READ = 4  # tokens named in a row of the table


@dataclass(frozen=True, repr=False, eq=False)
class AttentionPatterns(Shown):
    """The attention patterns of a text.

    Attributes:
        tokens: The tokens of the text; for an encoder-decoder, of its output.
        source: The tokens of an encoder-decoder's source; empty for other models.
        heads: The numbers of the heads, the same for each layer.
        patterns: By hook point, the weights of each of those heads: a row for each query, a column for each key.
    """

    tokens: list[str]
    source: list[str]
    heads: list[int]
    patterns: dict[str, Float[np.ndarray, "H T S"]]

    def labels(self, name: str) -> tuple[list[str], list[str]]:
        """Return the query labels and the key labels of a pattern."""
        if name.startswith("encoder_"):
            return self.source, self.source
        return self.tokens, self.source if ".cross_attn." in name else self.tokens

    def caption(self) -> str:
        if (one := self._one()) is not None:
            name, head, _ = one
            return f"{name}, head {head}: where each token reads"
        return f"{count(len(self.heads), 'head')} in each of {count(len(self.patterns), 'pattern')}: where they read"

    def table(self) -> Table:
        if (one := self._one()) is not None:
            return self._of_tokens(one[0], one[2])
        heads = ["pattern", "head", "itself", "previous", "first", "distance"]
        rows = [
            [name, str(head), *habits]
            for name, patterns in self.patterns.items()
            for head, habits in zip(self.heads, habits_of(patterns, ".cross_attn." in name), strict=True)
        ]
        return Table(heads, rows)

    def notes(self) -> list[str]:
        if self._one() is not None:
            return []
        return [
            "mean weights of the token itself, the previous and the first token; mean distance to the tokens read"
        ]

    def inches(self) -> tuple[float, float]:
        if (one := self._one()) is not None:
            rows, columns = one[2].shape
            return 2.4 + 0.2 * columns, 1.9 + 0.2 * rows
        return 1.2 + 1.35 * len(self.heads), 0.9 + 1.45 * len(self.patterns)

    def draw(self, figure: Any) -> None:
        if (one := self._one()) is not None:
            name, head, pattern = one
            draw_one(figure, f"{name}, head {head}", pattern, *self.labels(name))
        else:
            draw_all(figure, self.heads, self.patterns)

    def _one(self) -> tuple[str, int, Float[np.ndarray, "T S"]] | None:
        """Return the name, head and pattern if there is only one head; otherwise None."""
        if len(self.patterns) > 1 or len(self.heads) > 1:
            return None
        [(name, patterns)] = self.patterns.items()
        return name, self.heads[0], patterns[0]

    def _of_tokens(self, name: str, pattern: Float[np.ndarray, "T S"]) -> Table:
        readers, read_ones = self.labels(name)
        rows = [
            [str(position), visible(label), read_most(row, read_ones)]
            for position, (label, row) in enumerate(zip(readers, pattern, strict=True))
        ]
        return Table(["position", "token", "reads most"], rows, n_left=3)


def attention(
    subject: Subject,
    text: Readable,
    output: Text | None = None,
    *,
    layer: int | None = None,
    head: int | None = None,
    tokenizer: Tokenizer | None = None,
    masked: Sequence[int] = (),
) -> AttentionPatterns:
    """Return the attention patterns of a text, for all layers and heads or for one.

    Args:
        subject: A run, or a bare model.
        text: What to read; see `read` for this and for `output`, `tokenizer` and `masked`.
        output: What an encoder-decoder writes.
        layer: One layer; negative ones count from the last of each stack. By default all.
        head: One head; by default all.
        tokenizer: The tokenizer of a bare model.
        masked: Positions at which an encoder reads [MASK].

    Raises:
        UserError: there is no such layer or head, or the model's attention has no pattern.
    """
    inputs = read(subject, text, output, tokenizer=tokenizer, masked=masked)
    names = pattern_names(inputs)
    if layer is not None:
        names = names_in_layer(names, layer)
    with quiet(inputs.model):
        seen = kept(inputs, lambda name: name in names)
    n_heads = next(iter(seen.values())).shape[1]
    heads = list(range(n_heads)) if head is None else [checked_number("head", head, n_heads)]
    patterns = {name: seen[name][0, heads].float().cpu().numpy() for name in names}
    return AttentionPatterns(inputs.labels, inputs.source_labels, heads, patterns)


def pattern_names(inputs: Inputs) -> list[str]:
    """Return the hook points of a model's patterns.

    Raises:
        UserError: the model has none.
    """
    names = [name for name in hook_points(inputs.model) if name.endswith(".hook_pattern")]
    if not names:
        kind = inputs.model.config.attention.kind
        raise UserError(
            f"model.attention.kind is {kind}: it has no attention weights, so there is no pattern to show"
        )
    return names


def names_in_layer(names: Sequence[str], layer: int) -> list[str]:
    """Return the hook points of one layer in every stack that has it.

    Raises:
        UserError: there is no such layer.
    """
    sizes: dict[str, int] = {}
    for name in names:
        stack = name.partition(".")[0]
        sizes[stack] = max(sizes.get(stack, 0), layer_of(name) + 1)
    checked_number("layer", layer, max(sizes.values()))
    return [
        name
        for name in names
        if layer_of(name) == (layer if layer >= 0 else sizes[name.partition(".")[0]] + layer)
    ]


def checked_number(what: str, number: Any, n: int) -> int:
    """Return the number of a layer or head, from 0.

    Raises:
        UserError: there is no such layer or head.
    """
    check_whole(what, number)
    if not -n <= number < n:
        raise UserError(f"{what} {number}: there {'is' if n == 1 else 'are'} {count(n, what)}, 0 to {n - 1}")
    return int(number) % n


def read_most(weights: Float[np.ndarray, " S"], labels: Sequence[str]) -> str:
    """Return the tokens with the largest weights, in words."""
    order: list[int] = np.argsort(-np.abs(weights), kind="stable")[:MOST_READ].tolist()
    return "  ".join(f"{visible(labels[i])} {amount(weights[i], 2)}" for i in order if is_shown(weights[i]))


def habits_of(patterns: Float[np.ndarray, "H T S"], is_cross: bool) -> list[list[str]]:
    """Return each head's mean weight on the token itself, the previous and the first one, and its mean distance."""
    firsts = patterns[:, :, 0].mean(-1)
    if is_cross:
        return [["", "", f"{first:.3f}", ""] for first in firsts]
    n = patterns.shape[1]
    places = np.arange(n, dtype=patterns.dtype)
    sums = patterns.reshape(len(patterns), -1) @ np.abs(places[:, None] - places).ravel()
    columns = (
        np.diagonal(patterns, axis1=1, axis2=2).mean(-1),
        np.diagonal(patterns, -1, axis1=1, axis2=2).mean(-1) if n > 1 else np.zeros(len(patterns)),
        firsts,
    )
    means = zip(*columns, sums / n, strict=True)
    return [[*(f"{weight:.3f}" for weight in weights), f"{distance:.2f}"] for *weights, distance in means]


def draw_one(
    figure: Any, title: str, pattern: Float[np.ndarray, "T S"], readers: Sequence[str], read: Sequence[str]
) -> None:
    """Draw one head's pattern with the labels of its queries and keys."""
    axes = figure.subplots()
    image = heat_map(axes, pattern, readers, read, limits=(0, 1))
    axes.set_ylabel("reads")
    axes.set_xlabel("is read")
    axes.set_title(title, fontsize=10)
    figure.colorbar(image, ax=axes, shrink=0.8, label="weight").outline.set_visible(False)


def draw_all(figure: Any, heads: Sequence[int], patterns: Mapping[str, Float[np.ndarray, "H T S"]]) -> None:
    """Draw the patterns of all heads without labels, a line of pictures for each hook point."""
    grid = figure.subplots(len(patterns), len(heads), squeeze=False)
    for line, (name, of_layer) in zip(grid, patterns.items(), strict=True):
        for axes, head, pattern in zip(line, heads, of_layer, strict=True):
            heat_map(axes, pattern, [], [], limits=(0, 1))
            axes.set_title(f"head {head}", fontsize=7, pad=2)
        line[0].set_ylabel(name.removesuffix(".hook_pattern").replace(".", "\n"), fontsize=7)
    figure.suptitle("attention patterns: rows read, columns are read", fontsize=10)


def layer_of(name: str) -> int:
    found = re.search(r"blocks\.(\d+)\.", name)
    assert found is not None
    return int(found[1])
