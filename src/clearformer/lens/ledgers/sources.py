"""The source ledger: a logit as a sum over the text's tokens, with everything nonlinear held fixed.

Attention patterns, norm scales and activations keep their values from this call, which makes the model linear in its
embeddings. A token's share is that of its embedding along every path through values and residuals. An activation f(x)
is held by its ratio f(x) / x, a gated network by its gate. This is a convention, not a cause: with another token,
patterns and activations would change as well.

    logit = sum over tokens of J_s x_s + c        J the Jacobian held fixed, c the part due to biases alone

Shapes: T positions, D d_model.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from clearformer.decoding import Text
from clearformer.lens.inputs import Inputs, Readable, Subject, quiet, read
from clearformer.lens.ledgers.held import HeldStill
from clearformer.lens.ledgers.readout import readout
from clearformer.lens.ledgers.split import SplitLogit
from clearformer.lens.showing import Table, bars, letters, number, visible
from clearformer.text import Tokenizer

CONVENTION = (
    "a convention, not a cause: patterns, norm scales and activations are held constant (f(x)/x; gates)"
)
MOST_BARS = 48


@dataclass(frozen=True)
class Source:
    """The share of a token.

    Attributes:
        token: The token in readable form.
        position: Its position in its text.
        text: `text`; for an encoder-decoder `source` or `output`.
        embedding: The share of its embedding.
        order: The share of its position's vector, where positions are added to the embeddings.
        value: embedding + order.
    """

    token: str
    position: int
    text: str
    embedding: float
    order: float
    value: float


@dataclass(frozen=True, repr=False, eq=False)
class Sources(SplitLogit):
    """A logit, or the difference of two, as a sum over tokens.

    Attributes:
        parts: A share for each token of the text (or of both texts).
        biases: The share of all biases, which belongs to no token.
        convention: How the model was made linear.
    """

    parts: list[Source]
    biases: float
    convention: str = CONVENTION

    def table(self) -> Table:
        rows = [
            [part.text, str(part.position), visible(part.token), *map(number, _shares(part))]
            for part in self.parts
        ]
        rows.append(["biases", "", "", "", "", number(self.biases)])
        return Table(["text", "position", "token", "embedding", "order", "value"], rows, n_left=3)

    def notes(self) -> list[str]:
        return [*super().notes(), self.convention]

    def inches(self) -> tuple[float, float]:
        return 6.5, 1.6 + 0.21 * min(len(self.parts) + 1, MOST_BARS)

    def draw(self, figure: Any) -> None:
        shown = sorted(self.parts, key=lambda part: -abs(part.value))[: MOST_BARS - 1]
        shown.sort(key=lambda part: (part.text != "source", part.position))
        axes = figure.subplots()
        names = [*map(_place, shown), "biases"]
        bars(axes, names, [*(part.value for part in shown), self.biases])
        axes.set_xlabel("contribution to the logit (patterns, norms and activations held constant)")
        axes.set_title(f"{letters(self.caption())}\nlogit {self.logit:+.3f}", fontsize=10)


@torch.inference_mode(False)
def sources(
    subject: Subject,
    text: Readable,
    output: Text | None = None,
    *,
    position: int = -1,
    target: str | int | None = None,
    foil: str | int | None = None,
    tokenizer: Tokenizer | None = None,
    masked: Sequence[int] = (),
) -> Sources:
    """Split a logit of one position by the tokens of the text; the arguments are those of `ledger`.

    Raises:
        UserError: there is no such position, token or class, or the model has a part that cannot be held fixed.
    """
    inputs = read(subject, text, output, tokenizer=tokenizer, masked=masked)
    at, model = inputs.predicting(position), inputs.model
    with quiet(model, grad=True):
        held = HeldStill(inputs)
        with torch.no_grad():
            way = readout(inputs, held.cache, at, target, foil)
        vectors = {name: vectors.clone().requires_grad_() for name, vectors in held.embeddings.items()}

        def logit(of: dict[str, Tensor]) -> Tensor:
            return way.of(held.final(of)[way.rows]) + way.constant

        slopes = torch.autograd.grad(logit(vectors), list(vectors.values()), allow_unused=True)
        with torch.no_grad():
            shares = {name: _along(vectors[name], slope) for name, slope in zip(vectors, slopes, strict=True)}
            biases = float(logit({name: torch.zeros_like(vector) for name, vector in vectors.items()}))
    parts = list(_parts(inputs, shares))
    total = sum(part.value for part in parts) + biases
    return Sources(
        token=inputs.predicting_label(at),
        position=at,
        target=inputs.output_label(way.target),
        foil=None if way.foil is None else inputs.output_label(way.foil),
        logit=way.logit,
        sum=total,
        error=abs(total - way.logit),
        parts=parts,
        biases=biases,
    )


def _along(vectors: Float[Tensor, "1 T D"], slope: Tensor | None) -> list[float]:
    """Return the share of each token's vector; 0 if no path leads from it to the logit."""
    if slope is None:
        return [0.0] * vectors.shape[1]
    return (vectors * slope)[0].sum(-1).tolist()


def _parts(inputs: Inputs, shares: dict[str, list[float]]) -> Iterator[Source]:
    """Yield the shares of the tokens, text by text."""
    if inputs.source is None:
        texts = [("", "text", inputs.labels)]
    else:
        texts = [("encoder_", "source", inputs.source_labels), ("decoder_", "output", inputs.labels)]
    for prefix, name, labels in texts:
        embedded = shares[f"hook_{prefix}embed"]
        order = shares.get(f"hook_{prefix}pos_embed", [0.0] * len(labels))
        for position, (label, own, of_place) in enumerate(zip(labels, embedded, order, strict=True)):
            yield Source(label, position, name, own, of_place, own + of_place)


def _place(part: Source) -> str:
    """Return a token and its position, preceded by its text if there are two."""
    text = "" if part.text == "text" else f"{part.text}: "
    return f"{text}{visible(part.token)}  {part.position}"


def _shares(part: Source) -> tuple[float, float, float]:
    return part.embedding, part.order, part.value
