"""A text as a model reads it: each token, and the one that its position predicts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clearformer.decoding import Text
from clearformer.lens.inputs import Subject, read
from clearformer.lens.showing import Shown, Table, letters, visible
from clearformer.text import Tokenizer


@dataclass(frozen=True, repr=False, eq=False)
class TokenTable(Shown):
    """A text's tokens.

    Attributes:
        tokens: As a person can read them.
        ids: Theirs.
        predicted: The token that each position predicts; empty where the text does not tell it.
        source: Those of an encoder-decoder's source; none in other models.
    """

    tokens: list[str]
    ids: list[int]
    predicted: list[str]
    source: list[str]

    def caption(self) -> str:
        return "the text as the model reads it" if not self.source else "the output as the model reads it"

    def table(self) -> Table:
        rows = [
            [str(i), str(token), visible(label), visible(predicted)]
            for i, (token, label, predicted) in enumerate(
                zip(self.ids, self.tokens, self.predicted, strict=True)
            )
        ]
        return Table(["position", "id", "token", "predicts"], rows, n_left=4)

    def notes(self) -> list[str]:
        return [f"source: {' | '.join(map(visible, self.source))}"] if self.source else []

    def inches(self) -> tuple[float, float]:
        return 4.0, 0.9 + 0.22 * len(self.tokens)

    def draw(self, figure: Any) -> None:
        axes = figure.subplots()
        axes.set_axis_off()
        heads, rows, _ = self.table()
        cells = [[letters(cell) for cell in row] for row in rows]
        drawn = axes.table(cells, colLabels=heads, loc="upper center", cellLoc="left", edges="horizontal")
        drawn.auto_set_font_size(False)
        drawn.set_fontsize(8)


def tokens(
    subject: Subject,
    text: Text,
    output: Text | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    masked: Sequence[int] = (),
) -> TokenTable:
    """The tokens of a text and what each position is to predict; the arguments are those of `read`."""
    inputs = read(subject, text, output, tokenizer=tokenizer, masked=masked)
    return TokenTable(inputs.labels, inputs.tokens[0].tolist(), inputs.predicted_labels, inputs.source_labels)
