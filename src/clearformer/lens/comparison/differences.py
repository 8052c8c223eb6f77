"""Two runs on one text: the differences of their weights, activations and losses.

    found = lens.differences(run, other, text)
    found.losses            by token: the loss of each run
    found.weights           by part of the model: how far apart the weights are
    found.activations       by hook point

All differences are other - run. Weights and activations are compared where both models have them in the same shape.
"""

from dataclasses import dataclass
from math import isnan, nan, sqrt
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from clearformer.data.text.batches import IGNORED
from clearformer.decoding import Text
from clearformer.decoding.text.samples import Run
from clearformer.errors import count
from clearformer.hooks import ActivationCache
from clearformer.lens.comparison.pairs import check_alike
from clearformer.lens.gradients.loss_change import part_of
from clearformer.lens.inputs import Inputs, Readable, quiet, read
from clearformer.lens.showing import Shown, Table, bars, number, visible
from clearformer.model import Transformer
from clearformer.model.masks import Mask
from clearformer.model.norms import at_least_float32

MOST_NAMED = 3  # parts, and hook points, below the table


@dataclass(frozen=True)
class Distance:
    """How far apart two sets of numbers are.

    Attributes:
        name: A part of the model, or a hook point.
        norm: The norm of the first run's numbers, |a|.
        change: |b - a|.
        cosine: a . b / (|a| |b|); NaN if one of them is 0.
    """

    name: str
    norm: float
    change: float
    cosine: float

    @property
    def relative(self) -> float:
        """|b - a| / |a|; NaN if a is 0."""
        return self.change / self.norm if self.norm else nan


@dataclass(frozen=True)
class TokenLoss:
    """The loss of one token in both runs.

    Attributes:
        position: The position that predicts it.
        token: The token at that position.
        target: The token that is predicted.
        loss: -log p(target) of the first run, in nats.
        other: The same for the second run.
    """

    position: int
    token: str
    target: str
    loss: float
    other: float

    @property
    def change(self) -> float:
        """other - loss."""
        return self.other - self.loss


@dataclass(frozen=True, repr=False, eq=False)
class Differences(Shown):
    """Two runs on one text.

    Attributes:
        loss: The first run's mean loss on the text, in nats; NaN for classifiers.
        other: The second run's.
        losses: The losses of each token.
        weights: By part of the model, all parameters of a part together, for parts with the same shapes in both.
        activations: By hook point, for activations with the same shape in both.
        apart: Parameters that one of them lacks, or has in another shape.
    """

    loss: float
    other: float
    losses: list[TokenLoss]
    weights: list[Distance]
    activations: list[Distance]
    apart: list[str]

    def caption(self) -> str:
        if not self.losses:
            return "distance between the two runs, part by part"
        return f"loss of each token in the two runs: {self.loss:.4f} and {self.other:.4f} nats on average"

    def table(self) -> Table:
        if not self.losses:
            rows = [[each.name, f"{each.relative:.4f}", f"{each.cosine:.4f}"] for each in self.weights]
            return Table(["part", "|b-a|/|a|", "cosine"], rows)
        rows = [
            [
                *(str(each.position), visible(each.token), visible(each.target)),
                *(f"{each.loss:.4f}", f"{each.other:.4f}", number(each.change)),
            ]
            for each in self.losses
        ]
        return Table(["position", "token", "predicts", "loss", "other", "difference"], rows, 3)

    def notes(self) -> list[str]:
        named = [("weights", self.weights), ("activations", self.activations)]
        lines = [f"{what} furthest apart: {_furthest(distances)}" for what, distances in named if distances]
        if self.apart:
            lines.append(
                "not compared, because one model lacks them or has them in another shape, and the rest of their parts: "
                f"{count(len(self.apart), 'parameter')}"
            )
        return lines

    def inches(self) -> tuple[float, float]:
        return 5.0, 0.8 + 0.2 * max(1, len(self.losses) or len(self.weights))

    def draw(self, figure: Any) -> None:
        axes = figure.subplots()
        if not self.losses:
            bars(axes, [each.name for each in self.weights], [each.relative for each in self.weights])
            axes.set_xlabel("|b - a| / |a|")
            return
        names = [f"{each.position} {visible(each.target)}" for each in self.losses]
        bars(axes, names, [each.change for each in self.losses])
        axes.set_xlabel("difference of losses, nats")


def _furthest(distances: list[Distance]) -> str:
    known = [each for each in distances if not isnan(each.relative)]
    first = sorted(known, key=lambda each: -each.relative)[:MOST_NAMED]
    return ", ".join(f"{each.name} {each.relative:.2f}" for each in first) + " (|b-a|/|a|)"


def differences(run: Run, other: Run, text: Readable, output: Text | None = None) -> Differences:
    """Compare two runs on a text.

    Args:
        run: A run.
        other: Another, with the same tokenizer.
        text: A string or ids, or the result of `read`.
        output: What an encoder-decoder writes; by default the first run's translation.

    Raises:
        UserError: the families or tokenizers differ, or the text cannot be read; see `lens.read`.
    """
    check_alike(run, other)
    inputs = read(run, text, output)
    of_one_task = run.model.config.n_classes == other.model.config.n_classes
    of_other = read(other, inputs if of_one_task else inputs.tokens[0].tolist())
    with quiet(inputs.model), quiet(of_other.model):
        (logits, cache), (other_logits, other_cache) = (
            each.model.run_with_cache(*each.arguments) for each in (inputs, of_other)
        )
    classifies = any(each.model.config.n_classes is not None for each in (run, other))
    losses = [] if classifies else token_losses(inputs, logits, other_logits)
    weights, apart = weight_distances(inputs.model, of_other.model)
    return Differences(
        _mean([each.loss for each in losses]),
        _mean([each.other for each in losses]),
        losses,
        weights,
        activation_distances(cache, other_cache),
        apart,
    )


def token_losses(inputs: Inputs, logits: Tensor, other: Tensor) -> list[TokenLoss]:
    """Return both models' loss of each token whose target is in the text."""
    targets = torch.tensor([IGNORED if each is None else each for each in inputs.predicted], device="cpu")
    one, another = (
        F.cross_entropy(
            at_least_float32(each[0]).cpu(), targets, ignore_index=IGNORED, reduction="none"
        ).tolist()
        for each in (logits, other)
    )
    labels, predicted = inputs.labels, inputs.predicted_labels
    return [
        TokenLoss(i, labels[i], predicted[i], one[i], another[i])
        for i, target in enumerate(inputs.predicted)
        if target is not None
    ]


def weight_distances(model: Transformer, other: Transformer) -> tuple[list[Distance], list[str]]:
    """Return how far apart the weights are by part of the model, and the parameters that cannot be compared."""
    ours, theirs = (dict(each.named_parameters()) for each in (model, other))
    one, another = ({name: weight.shape for name, weight in each.items()} for each in (ours, theirs))
    apart = [name for name in one | another if one.get(name) != another.get(name)]
    left_out = set(map(part_of, apart))
    parts: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for name in ours:
        if part_of(name) not in left_out:
            parts.setdefault(part_of(name), []).append((_plain(ours[name]), _plain(theirs[name])))
    return [distance(name, pairs) for name, pairs in parts.items()], apart


def _plain(values: Tensor) -> Tensor:
    """Return the numbers of a tensor as a vector in float64."""
    return values.detach().flatten().cpu().double()


def activation_distances(cache: ActivationCache, other: ActivationCache) -> list[Distance]:
    """Return how far apart the activations are, by hook point; scores only where both masks let a key be read."""
    found = []
    for name, one in cache.items():
        if name in other and (another := other[name]).shape == one.shape:
            both = Mask.keeps(one) & Mask.keeps(another)
            found.append(distance(name, [(_plain(one[both]), _plain(another[both]))]))
    return found


def distance(name: str, pairs: list[tuple[Tensor, Tensor]]) -> Distance:
    """Return the distance of some pairs of vectors, each side taken as one long vector."""
    norm = sqrt(sum(a.square().sum().item() for a, _ in pairs))
    other = sqrt(sum(b.square().sum().item() for _, b in pairs))
    change = sqrt(sum((b - a).square().sum().item() for a, b in pairs))
    product = sum((a @ b).item() for a, b in pairs)
    return Distance(name, norm, change, product / (norm * other) if norm and other else nan)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else nan
