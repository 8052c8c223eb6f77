"""The logit lens: the prediction of each layer if it were the last (nostalgebraist 2020).

    found = lens.logit_lens(run, "First Citizen:")
    found.layers[2].top[0]                 the likeliest token after two blocks
    found.figure("lens.png")               every layer and position

Each layer's residual stream goes through the final norm, computed anew, and then the head. The last layer's logits are
the model's own.

Shapes: L layers, T tokens, D d_model, V vocabulary, C classes.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearformer.decoding import Text
from clearformer.decoding.arguments import check_whole
from clearformer.errors import UserError, shown
from clearformer.hooks.readings import once
from clearformer.lens.activations import kept, outputs_at, outputs_of
from clearformer.lens.divergence import divergence_of_logs
from clearformer.lens.inputs import Inputs, Readable, Subject, quiet, read
from clearformer.lens.ledgers.stream import own_prefix
from clearformer.lens.showing import (
    AMOUNT,
    EITHER,
    Shown,
    Table,
    amount,
    heat_map,
    letters,
    place_name,
    quoted,
    visible,
)
from clearformer.lens.tokens import rows_at_once
from clearformer.model import Transformer
from clearformer.model.norms import at_least_float32
from clearformer.results import Result
from clearformer.text import Tokenizer

if TYPE_CHECKING:
    from clearformer.lens.predictions.tuned_lens import TunedLens

AT_ONCE = 16  # positions of the figure that are computed and cached together


@dataclass(frozen=True)
class Guess:
    """A token (or class) and its probability."""

    token: str
    probability: float


@dataclass(frozen=True, repr=False, eq=False)
class Layer(Result):
    """The prediction of one layer at one position.

    Attributes:
        name: The hook point of the residual stream that is unembedded.
        top: The likeliest tokens or classes, likeliest first.
        rank: The target's rank among all, 1 for the likeliest.
        entropy: -sum over v of p(v) ln p(v), in nats, p the distribution of this layer over all tokens (or classes).
        probability: The target's probability.
        kl: KL(last || layer) = sum over v of q(v) ln(q(v) / p(v)), in nats, q the distribution of the last layer.
    """

    name: str
    top: list[Guess] = field(metadata={EITHER: True})
    rank: int = field(metadata={AMOUNT: True})
    entropy: float
    probability: float
    kl: float


@dataclass(frozen=True, repr=False, eq=False)
class LogitLens(Shown):
    """The predictions of every layer.

    Attributes:
        token: The token at the position; "" if all positions predict together, as for a classifier's mean.
        position: The position, from 0.
        target: The token (or class) whose rank is given.
        layers: The predictions before the first block, and after every one.
        learned: Whether the layers are read through a tuned lens, which was trained.
        error: The largest difference between the last layer's logits and the model's.
        tokens: The text's tokens.
        best: For the figure, the likeliest of each layer at each position, or only at `most` positions around the
            chosen one.
        probabilities: Their probabilities, [L C].
        first: The position of their first column.
        of_text: Whether the one column is the whole text's, as a classifier's is.
    """

    token: str
    position: int
    target: str
    layers: list[Layer]
    learned: bool
    error: float
    tokens: list[str] = field(repr=False)
    best: list[list[str]] = field(repr=False)
    probabilities: Float[np.ndarray, "L C"] = field(repr=False)
    first: int = field(default=0, repr=False)
    of_text: bool = field(default=False, repr=False)

    def caption(self) -> str:
        learned = " through a learned lens" if self.learned else ""
        where = place_name(self.token, self.position)
        return f"predictions by layer {where}{learned}; rank of {quoted(self.target)}"

    def table(self) -> Table:
        rows = [
            [
                layer.name,
                "  ".join(
                    f"{visible(guess.token)} {amount(guess.probability, 2)}" for guess in layer.top[:3]
                ),
                amount(layer.probability, 4),
                amount(layer.rank, 0),
                amount(layer.entropy, 3),
                amount(layer.kl, 3),
            ]
            for layer in self.layers
        ]
        return Table(
            ["layer", "likeliest", "probability", "rank", "entropy", "KL to the last"], rows, n_left=2
        )

    def notes(self) -> list[str]:
        notes = [f"the last layer and the model's own logits: error {self.error:.1e}; entropy and KL in nats"]
        n, last = len(self.tokens), self.first + self.probabilities.shape[1] - 1
        is_part = not self.of_text and self.probabilities.shape[1] < n
        return [*notes, f"the picture: positions {self.first} to {last} of {n}"] if is_part else notes

    @property
    def columns(self) -> list[str]:
        """The tokens of the figure's columns; for a classifier, the one that it reads, or the whole text."""
        return (
            [self.token or "the text"]
            if self.of_text
            else self.tokens[self.first : self.first + len(self.best[0])]
        )

    def inches(self) -> tuple[float, float]:
        return 2.4 + 0.62 * len(self.best[0]), 1.6 + 0.34 * len(self.layers)

    def draw(self, figure: Any) -> None:
        axes = figure.subplots()
        columns = self.columns
        names = [layer.name for layer in self.layers][::-1]
        image = heat_map(axes, self.probabilities[::-1], names, columns, limits=(0, 1))
        for row, labels in enumerate(self.best[::-1]):
            for column, label in enumerate(labels):
                likely = self.probabilities[len(self.best) - 1 - row, column] > 0.55
                axes.text(
                    column,
                    row,
                    letters(visible(label)),
                    ha="center",
                    va="center",
                    fontsize=7,
                    color="white" if likely else "#1f2a38",
                )
        axes.set_title("likeliest by layer" + (" (learned lens)" if self.learned else ""), fontsize=10)
        axes.set_xlabel("input token")
        figure.colorbar(image, ax=axes, shrink=0.8, label="probability").outline.set_visible(False)


def logit_lens(
    subject: Subject,
    text: Readable,
    output: Text | None = None,
    *,
    position: int = -1,
    target: str | int | None = None,
    top: int = 5,
    most: int | None = None,
    tuned: "TunedLens | None" = None,
    tokenizer: Tokenizer | None = None,
    masked: Sequence[int] = (),
) -> LogitLens:
    """Return the prediction of each layer; for an encoder-decoder, of each layer of its decoder.

    Args:
        subject: A run, or a bare model.
        text: What to read; see `read` for this and for `output`, `tokenizer` and `masked`.
        output: What an encoder-decoder writes.
        position: The position whose predictions are returned; negative ones count from the end.
        target: The token (or class) to rank; by default the one that follows in the text or, at its end, the model's
            likeliest.
        top: How many of the likeliest to return.
        most: The largest number of positions in `best`, around the chosen one; by default all.
        tuned: A lens made by `tune`, through which the layers are read.
        tokenizer: The tokenizer of a bare model.
        masked: Positions at which an encoder reads [MASK].

    Raises:
        UserError: there is no such position, token or class, the lens is for another model, or `top` or `most` is less
            than 1.
    """
    check_whole("top", top, least=1)
    inputs = read(subject, text, output, tokenizer=tokenizer, masked=masked)
    at = inputs.predicting(position)
    if tuned is not None:
        if not hasattr(tuned, "check_model"):
            raise UserError(f"tuned: a lens made by lens.tune; got {shown(tuned)}")
        tuned.check_model(inputs.model)
    part = around(at, len(inputs), most)
    with quiet(inputs.model):
        streams = list(_streams(inputs, tuned))
        best, probabilities = _picture(inputs, streams, part, is_kept=tuned is None)
        logits = _logits_at(inputs, streams, at)  # [L V]
        own = outputs_at(inputs, at)  # [V] or [C]
    follows = inputs.predicted[at]
    if target is not None:
        wanted = inputs.output("target", target)
    else:
        wanted = int(own.argmax()) if follows is None else follows
    return LogitLens(
        token=inputs.predicting_label(at),
        position=at,
        target=inputs.output_label(wanted),
        layers=_layers(inputs, logits, wanted, top),
        learned=tuned is not None,
        error=float((logits[-1] - own).abs().max()),
        tokens=inputs.labels,
        best=[inputs.output_labels(row) for row in best],
        probabilities=probabilities.copy(),
        first=0 if inputs.class_names else part.start,
        of_text=bool(inputs.class_names),
    )


def around(position: int, n: int, most: int | None) -> slice:
    """Return the positions around one. Neighbours mostly get the same range, so that it is computed once.

    Raises:
        UserError: `most` is less than 1.
    """
    if most is None:
        return slice(0, n)
    check_whole("most", most, least=1)
    stride = max(1, most // 2)
    first = (position - most // 4) // stride * stride
    first = max(0, min(first, n - most))
    return slice(first, min(n, first + most))


Picture = tuple[list[list[int]], Float[np.ndarray, "L C"]]
"""The likeliest of each layer at some positions, and their probabilities."""


def _picture(
    inputs: Inputs, streams: Sequence[Float[Tensor, "1 T D"]], part: slice, is_kept: bool
) -> Picture:
    """Return the picture of some positions, computed a few at a time; pieces already cached are reused."""
    if inputs.class_names:
        return _likeliest([unembedded(inputs.model, vectors)[0] for vectors in streams], len(streams))
    if not is_kept:
        return _made(inputs, streams, part)
    first = part.start // AT_ONCE * AT_ONCE
    pieces = []
    for start in range(first, part.stop, AT_ONCE):
        piece = slice(start, min(start + AT_ONCE, len(inputs)))
        key = ("likeliest by layer", inputs.key, piece.start, piece.stop)
        pieces.append(once(inputs.model, key, partial(_made, inputs, streams, piece)))
    wanted = slice(part.start - first, part.stop - first)
    best = [list(chain(*rows))[wanted] for rows in zip(*(best for best, _ in pieces), strict=True)]
    return best, np.concatenate([chances for _, chances in pieces], axis=1)[:, wanted]


def _made(inputs: Inputs, streams: Sequence[Float[Tensor, "1 T D"]], piece: slice) -> Picture:
    """Return the picture of some positions, with the logits of only a part of them in memory at a time."""
    vectors = torch.cat([each[:, piece] for each in streams], dim=1)  # [1 LC D]
    parts = vectors.split(rows_at_once(inputs.model), dim=1)
    return _likeliest((unembedded(inputs.model, part)[0] for part in parts), len(streams))


def _likeliest(parts: Iterable[Float[Tensor, "N V"]], n_layers: int) -> Picture:
    """Return the picture given the logits in parts, those of the first layer first."""
    best: list[int] = []
    probabilities: list[float] = []
    for logits in parts:
        largest, likeliest = logits.max(-1)
        best += likeliest.tolist()
        total = at_least_float32(logits).logsumexp(-1)
        probabilities += (largest - total).exp().tolist()
    n = len(best) // n_layers
    rows = [best[first : first + n] for first in range(0, len(best), n)]
    return rows, np.array(probabilities).reshape(n_layers, n)


def _logits_at(
    inputs: Inputs, streams: Sequence[Float[Tensor, "1 T D"]], position: int
) -> Float[Tensor, "L V"]:
    """Return the logits of each layer at one position, or those of the classes."""
    if inputs.class_names:
        return torch.cat([unembedded(inputs.model, vectors)[0] for vectors in streams])
    rows = [vectors[:, position : position + 1] for vectors in streams]
    # The last one separately, as the model does: products of other sizes differ in their last bits.
    parts = (torch.cat(rows[:-1], dim=1), rows[-1])
    return torch.cat([unembedded(inputs.model, part)[0] for part in parts])


def _streams(inputs: Inputs, tuned: "TunedLens | None") -> Iterator[Float[Tensor, "1 T D"]]:
    """Yield the residual stream before the first block and after every one, as the final norm receives it."""
    names = stream_names(inputs.model)
    seen = kept(inputs, lambda name: name in names)
    for i, name in enumerate(names):
        yield seen[name] if tuned is None else tuned.translated(seen[name], i)


def stream_names(model: Transformer) -> list[str]:
    """Return the hook points of the residual stream before the first block and after every one."""
    blocks = f"{own_prefix(model)}blocks"
    n = len(model.stack(own_prefix(model)).blocks)
    return [f"{blocks}.0.hook_resid_pre", *(f"{blocks}.{i}.hook_resid_post" for i in range(n))]


def unembedded(model: Transformer, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T V"]:
    """Apply a model's final norm and head to its residual stream; [B 1 C] for a classifier."""
    return outputs_of(model, model.stack(own_prefix(model)).ln_final(x))


def _layers(inputs: Inputs, logits: Float[Tensor, "L V"], target: int, top: int) -> list[Layer]:
    """Return the predictions of each layer at the position whose logits are given."""
    logs = at_least_float32(logits).log_softmax(-1)
    likeliest = logits.topk(min(top, logits.shape[-1])).indices
    ranks = _ranks(logits, target)
    chances = logs.exp()
    entropies = torch.special.entr(chances).sum(-1)
    columns = zip(
        stream_names(inputs.model),
        likeliest.tolist(),
        chances.gather(-1, likeliest).tolist(),
        ranks.tolist(),
        entropies.tolist(),
        chances[:, target].tolist(),
        divergence_of_logs(logs[-1], logs).tolist(),
        strict=True,
    )
    return [
        Layer(
            name,
            [Guess(inputs.output_label(token), p) for token, p in zip(tokens, probabilities, strict=True)],
            *rest,
        )
        for name, tokens, probabilities, *rest in columns
    ]


def _ranks(logits: Float[Tensor, "L V"], target: int) -> Int[Tensor, " L"]:
    """Return the target's rank in each layer; the last where logits are NaN, as in a run that diverged."""
    before = ~(logits <= logits[:, target, None])
    return (1 + before.sum(-1)).clamp(max=logits.shape[-1])
