"""The likeliest next tokens, at several temperatures (lecture 000, section 5.7 and figure 5.3).

lens.next_tokens(run, "KING RICHARD II:\\n").figure("next.png")
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from jaxtyping import Float

from clearformer.decoding import Text
from clearformer.decoding.arguments import check_whole
from clearformer.decoding.samplers import LOWEST_TEMPERATURE
from clearformer.errors import UserError, shown
from clearformer.lens.activations import outputs_at
from clearformer.lens.inputs import Readable, Subject, quiet, read
from clearformer.lens.showing import Shown, Table, bars, is_changing, letters, place_name, visible
from clearformer.text import Tokenizer

TEMPERATURES = (0.2, 0.5, 0.8, 1.0, 1.5)
"""The temperatures of lecture 000's figure."""


@dataclass(frozen=True, repr=False, eq=False)
class NextTokens(Shown):
    """The tokens that a position predicts.

    Attributes:
        token: The token at the position; "" if all positions predict together, as for a classifier's mean.
        position: The position, from 0.
        temperatures: The temperatures, by which the logits are divided.
        tokens: The likeliest tokens, likeliest first.
        ids: Their ids, or the numbers of a classifier's classes.
        probabilities: A row for each temperature, a column for each token.
    """

    token: str
    position: int
    temperatures: list[float]
    tokens: list[str]
    ids: list[int]
    probabilities: Float[np.ndarray, "N K"]

    def caption(self) -> str:
        return f"likeliest {place_name(self.token, self.position)}"

    def table(self) -> Table:
        heads = ["token", *(f"t={temperature:g}" for temperature in self.temperatures)]
        columns = zip(self.tokens, self.probabilities.T, strict=True)
        return Table(heads, [[visible(token), *(f"{p:.4f}" for p in column)] for token, column in columns])

    def inches(self) -> tuple[float, float]:
        return 0.9 + 2.3 * len(self.temperatures), 1.2 + 0.24 * len(self.tokens)

    def draw(self, figure: Any) -> None:
        every = figure.subplots(1, len(self.temperatures), sharey=True, squeeze=False)[0]
        for axes, temperature, row in zip(every, self.temperatures, self.probabilities, strict=True):
            bars(axes, [visible(token) for token in self.tokens], row.tolist())
            axes.set_title(f"temperature {temperature:g}", fontsize=9)
            if not is_changing():
                axes.set_xlim(0, 1)
            axes.set_xlabel("probability", fontsize=8)
        figure.suptitle(letters(self.caption()), fontsize=10)


def next_tokens(
    subject: Subject,
    text: Readable,
    output: Text | None = None,
    *,
    temperatures: Sequence[float] = TEMPERATURES,
    top: int = 15,
    position: int = -1,
    tokenizer: Tokenizer | None = None,
    masked: Sequence[int] = (),
) -> NextTokens:
    """Return the likeliest tokens at one position, and their probabilities at each temperature.

    Args:
        subject: A run, or a bare model.
        text: What to read; see `read` for this and for `output`, `tokenizer` and `masked`.
        output: What an encoder-decoder has written so far.
        temperatures: Numbers above 0; 1 is the model's own distribution.
        top: How many tokens.
        position: The position whose prediction it is; by default the last.
        tokenizer: The tokenizer of a bare model.
        masked: Positions at which an encoder reads [MASK].

    Raises:
        UserError: a temperature is not above 0, `top` is less than 1, or the text cannot be read.
    """
    check_whole("top", top, least=1)
    if not isinstance(temperatures, Iterable):
        raise UserError(f"temperatures: a list, such as [1.0]; got {shown(temperatures)}")
    wanted = [_checked_temperature(each) for each in temperatures]
    if not wanted:
        raise UserError("temperatures: give at least one, such as [1.0]")
    inputs = read(subject, text, output, tokenizer=tokenizer, masked=masked)
    at = inputs.predicting(position)
    with quiet(inputs.model):
        logits = outputs_at(inputs, at).cpu().double()
    ids = logits.topk(min(top, len(logits))).indices
    rows = [(logits / temperature).softmax(-1)[ids].numpy() for temperature in wanted]
    labels = [inputs.output_label(token) for token in ids.tolist()]
    return NextTokens(inputs.predicting_label(at), at, wanted, labels, ids.tolist(), np.stack(rows))


def _checked_temperature(value: Any) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, Real)
        or not (LOWEST_TEMPERATURE <= float(value) < math.inf)
    ):
        raise UserError(f"temperatures: numbers of at least {LOWEST_TEMPERATURE:g}; got {shown(value)}")
    return float(value)
