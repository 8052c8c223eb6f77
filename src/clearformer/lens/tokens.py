"""A text as a model reads it: each token, the one that its position predicts, and the probability the model gave it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from clearformer.decoding import Text
from clearformer.hooks.readings import once
from clearformer.lens.activations import last_vectors, outputs_of
from clearformer.lens.inputs import Inputs, Readable, Subject, quiet, read
from clearformer.lens.showing import FIRST, Shown, Table, amount, letters, visible
from clearformer.model import Encoder, Transformer
from clearformer.text import Tokenizer

MOST_LOGITS = 1 << 21  # computed at once; longer texts are split by positions
MOST_DOUBLES = 1 << 16  # likewise in float64: as many as fit in a processor's cache


@dataclass(frozen=True, repr=False, eq=False)
class TokenTable(Shown):
    """The tokens of a text.

    Attributes:
        tokens: The tokens in readable form.
        ids: Their ids.
        n_bytes: The length of each in UTF-8 bytes; 0 for special tokens and without a tokenizer.
        predicted: The token that each position predicts; empty where the text does not contain it.
        probabilities: The probability of the predicted token; NaN where the text does not contain it.
        losses: -ln of that probability, in nats.
        source: The tokens of an encoder-decoder's source; empty for other models.
        mask: The label of [MASK], if the model is an encoder that fills in masked tokens; otherwise empty.
        masked: The positions of [MASK].
        uniform_loss: The loss if all tokens were equally likely: ln V, in nats.
    """

    tokens: list[str]
    ids: list[int] = field(metadata={FIRST: True})
    n_bytes: list[int]
    predicted: list[str]
    probabilities: Float[np.ndarray, " T"]
    losses: Float[np.ndarray, " T"]
    source: list[str]
    mask: str
    masked: list[int]
    uniform_loss: float

    def caption(self) -> str:
        return "the text as the model reads it" if not self.source else "the output as the model reads it"

    def table(self) -> Table:
        rows = [
            [
                str(i),
                str(self.ids[i]),
                visible(self.tokens[i]),
                visible(self.predicted[i]),
                _or_nothing(self.probabilities[i]),
                _or_nothing(self.losses[i]),
            ]
            for i in range(len(self.tokens))
        ]
        return Table(["position", "id", "token", "predicts", "probability", "loss"], rows, n_left=4)

    def notes(self) -> list[str]:
        notes = [f"source: {' | '.join(map(visible, self.source))}"] if self.source else []
        if np.isfinite(self.losses).any():
            notes.append(f"mean loss {np.nanmean(self.losses):.4f} nats")
        return notes

    def inches(self) -> tuple[float, float]:
        return 5.5, 0.9 + 0.22 * len(self.tokens)

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
    text: Readable,
    output: Text | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    masked: Sequence[int] = (),
) -> TokenTable:
    """Return the tokens of a text and what each position is to predict; the arguments are those of `read`."""
    inputs = read(subject, text, output, tokenizer=tokenizer, masked=masked)
    losses = losses_of(inputs)
    ids = inputs.tokens[0].tolist()
    mask = mask_of(inputs)
    return TokenTable(
        inputs.labels,
        ids,
        [n_bytes(inputs.tokenizer, token) for token in ids],
        inputs.predicted_labels,
        np.exp(-losses),
        losses,
        inputs.source_labels,
        mask,
        [i for i, token in enumerate(ids) if mask and token == inputs.tokenizer.mask_id],  # type: ignore[union-attr]
        math.log(inputs.model.embed.num_embeddings),
    )


def mask_of(inputs: Inputs) -> str:
    """Return the label of [MASK] for an encoder that fills in masked tokens; otherwise an empty string."""
    is_filled_in = isinstance(inputs.model, Encoder) and inputs.model.config.n_classes is None
    if not is_filled_in or inputs.tokenizer is None or inputs.tokenizer.mask_id is None:
        return ""
    return inputs.label(inputs.tokenizer.mask_id)


def losses_of(inputs: Inputs) -> Float[np.ndarray, " T"]:
    """Return -ln of each predicted token's probability, in nats; NaN where the text does not contain the token."""
    if all(token is None for token in inputs.predicted):
        return np.full(len(inputs), np.nan)
    # The targets too: what a masked position predicts is not among the ids.
    key = "losses", inputs.key, tuple(inputs.predicted)
    return once(inputs.model, key, lambda: _losses_of(inputs)).copy()


def _losses_of(inputs: Inputs) -> Float[np.ndarray, " T"]:
    """Compute the losses, with the logits of only a few positions in memory at a time."""
    with quiet(inputs.model):
        vectors, first = last_vectors(inputs), 0
        losses = []
        for part in vectors.split(rows_at_once(inputs.model), dim=1):
            predicted = inputs.predicted[first : first + part.shape[1]]
            losses.append(losses_of_logits(predicted, outputs_of(inputs.model, part)[0]))
            first += part.shape[1]
    return np.concatenate(losses)


def rows_at_once(model: Transformer) -> int:
    """Return how many positions to compute the logits of at once."""
    return max(1, MOST_LOGITS // model.embed.num_embeddings)


def losses_of_logits(
    predicted: Sequence[int | None], logits: Float[Tensor, "T V"] | Float[Tensor, " C"]
) -> Float[np.ndarray, " T"]:
    """Return the losses of positions that predict the given tokens; NaN where none is given, as for a classifier."""
    losses = np.full(len(predicted), np.nan)
    known = [(at, token) for at, token in enumerate(predicted) if token is not None]
    n_rows = max(1, MOST_DOUBLES // logits.shape[-1])
    for first in range(0, len(known), n_rows):
        at, wanted = map(list, zip(*known[first : first + n_rows], strict=True))
        rows = logits[at].cpu().double()
        targets = rows[range(len(at)), wanted]
        losses[at] = (log_total_(rows) - targets).numpy()
    return losses


def log_total_(rows: Float[Tensor, "N V"]) -> Float[Tensor, " N"]:
    """Return the logarithm of each row's sum of exponentials, like `logsumexp`; the rows are overwritten."""
    largest = rows.amax(-1, keepdim=True)
    largest.masked_fill_(largest.isinf(), 0)
    return rows.sub_(largest).exp_().sum(-1).log_().add_(largest[:, 0])


def n_bytes(tokenizer: Tokenizer | None, token: int) -> int:
    """Return the number of bytes of a token's text; 0 for special tokens and without a tokenizer."""
    if tokenizer is None or token >= tokenizer.vocab_size:
        return 0
    return len(tokenizer.token_bytes(token))


def _or_nothing(value: float) -> str:
    return amount(value, 4) if np.isfinite(value) else ""
