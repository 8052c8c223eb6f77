"""Alignment: which words of the source each word of the output was made from (Bahdanau et al. 2015; lecture 003).

    lens.alignment(run, "le 3 mai").figure("alignment.png")

A decoder's position reads the source to predict the token after it. Rows are therefore labelled with the token that
their position predicts. Labelled with the input token, every word would seem to attend one word too far.

Shapes: T positions of the output, S of the source.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from clearformer.decoding import Text
from clearformer.errors import UserError
from clearformer.lens.activations import kept
from clearformer.lens.inputs import Readable, Subject, quiet, read
from clearformer.lens.patterns.attention import checked_number, read_most
from clearformer.lens.showing import Shown, Table, heat_map, visible
from clearformer.model import EncoderDecoder
from clearformer.text import Tokenizer


@dataclass(frozen=True, repr=False, eq=False)
class Alignment(Shown):
    """The weights with which each token of an output reads the source.

    Attributes:
        source: The source tokens.
        predicted: For each row, the token that its position predicts.
        tokens: For each row, the input token at its position.
        weights: A row for each of `predicted`, a column for each of `source`; rows sum to 1.
        layer: The layer of the cross-attention.
        head: The head; None for the mean of all.
    """

    source: list[str]
    predicted: list[str]
    tokens: list[str]
    weights: Float[np.ndarray, "T S"]
    layer: int
    head: int | None

    def caption(self) -> str:
        head = "mean of all heads" if self.head is None else f"head {self.head}"
        return f"cross-attention of layer {self.layer}, {head}: each predicted token, and the source tokens it reads"

    def table(self) -> Table:
        rows = [
            [visible(label), read_most(row, self.source)]
            for label, row in zip(self.predicted, self.weights, strict=True)
        ]
        return Table(["predicted", "reads most"], rows, n_left=2)

    def inches(self) -> tuple[float, float]:
        return 2.6 + 0.24 * len(self.source), 1.9 + 0.24 * len(self.predicted)

    def draw(self, figure: Any) -> None:
        axes = figure.subplots()
        image = heat_map(axes, self.weights, self.predicted, self.source, limits=(0, 1))
        axes.set_ylabel("predicted token")
        axes.set_xlabel("source")
        head = "mean of heads" if self.head is None else f"head {self.head}"
        axes.set_title(f"cross-attention, layer {self.layer}, {head}", fontsize=10)
        figure.colorbar(image, ax=axes, shrink=0.8, label="weight").outline.set_visible(False)


def alignment(
    subject: Subject,
    source: Readable,
    output: Text | None = None,
    *,
    layer: int = -1,
    head: int | None = None,
    tokenizer: Tokenizer | None = None,
) -> Alignment:
    """Return the cross-attention of an encoder-decoder, its rows labelled with the token that each position predicts.

    Args:
        subject: A run, or a bare model.
        source: What is read.
        output: What is written; by default the model's own greedy translation.
        layer: A layer of the decoder; negative ones count from the last.
        head: One head; by default the mean of all.
        tokenizer: The tokenizer of a bare model.

    Raises:
        UserError: the model is not an encoder-decoder, or there is no such layer or head.
    """
    inputs = read(subject, source, output, tokenizer=tokenizer)
    model = inputs.model
    if not isinstance(model, EncoderDecoder):
        raise UserError(
            f"only an encoder-decoder aligns an output with a source; model.family is {model.config.family}: see "
            "lens.attention (--view attention)"
        )
    number = checked_number("layer", layer, model.config.decoder_layers)
    name = f"decoder_blocks.{number}.cross_attn.hook_pattern"
    with quiet(model):
        pattern = kept(inputs, lambda each: each == name)[name][0].float().cpu()  # [H T S]
    one = None if head is None else checked_number("head", head, len(pattern))
    return Alignment(
        inputs.source_labels,
        inputs.predicted_labels,
        inputs.labels,
        (pattern.mean(0) if one is None else pattern[one]).numpy().copy(),
        number,
        one,
    )
