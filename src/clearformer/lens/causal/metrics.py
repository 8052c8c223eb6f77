"""Metrics: a number for each text, computed from the model's output, that measures interventions.

A metric is any function of logits [B T V] (for a classifier [B C]) to numbers [B].

Shapes: B batch, T positions, V vocabulary, C classes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from clearformer.data.text.batches import IGNORED
from clearformer.decoding.arguments import check_whole
from clearformer.errors import UserError, shown
from clearformer.lens.activations import outputs_at
from clearformer.lens.inputs import Inputs, quiet
from clearformer.lens.showing import logit_name
from clearformer.model.arguments import check_ids, check_tokens
from clearformer.model.norms import at_least_float32

Metric = Callable[[Tensor], Tensor]
"""Maps a model's output to numbers [B]; differentiable where gradients are wanted."""

WANTED = "a function of the output, [B T V] or [B C], that returns a tensor [B]"


@dataclass(frozen=True)
class LogitDifference:
    """The logit of a target less that of a foil; without a foil, the logit itself.

    Attributes:
        target: A token or a class.
        foil: Another one.
        position: The position that predicts it; ignored for a classifier.
    """

    target: int
    foil: int | None = None
    position: int = -1

    def __call__(self, output: Float[Tensor, "B *T V"]) -> Float[Tensor, " B"]:
        *of_positions, n = output.shape[1:]
        for name, index, size in (
            ("target", self.target, n),
            ("foil", 0 if self.foil is None else self.foil, n),
            *(("position", self.position, n_positions) for n_positions in of_positions),
        ):
            check_index(name, index, size)
        logits = output[:, self.position] if of_positions else output
        return logits[:, self.target] - (0.0 if self.foil is None else logits[:, self.foil])


@dataclass(frozen=True, eq=False)
class MeanLoss:
    """-log p(target) in nats, averaged over the targets of a text that count.

    Attributes:
        targets: [B T], `IGNORED` where no target counts; a single row serves any batch.
    """

    targets: Int[Tensor, "B T"]

    def __call__(self, output: Float[Tensor, "B T V"]) -> Float[Tensor, " B"]:
        if output.shape[1:-1] != self.targets.shape[1:] or len(self.targets) not in (1, len(output)):
            raise UserError(
                f"targets: one for each position of the output {list(output.shape)}; got {list(self.targets.shape)}"
            )
        logits, targets = at_least_float32(output), self.targets.expand(len(output), -1)
        try:
            losses = F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=IGNORED, reduction="none")
        except IndexError:
            check_ids(targets[targets != IGNORED], output.shape[-1], "target")
            raise
        n_counted = (targets != IGNORED).sum(1)
        if not n_counted.all():
            row = n_counted.tolist().index(0)
            raise UserError(f"targets: none counts in row {row}, so it has no mean; leave the row out")
        return losses.sum(1) / n_counted


def next_token_loss(tokens: Int[Tensor, "B T"]) -> MeanLoss:
    """Return the mean loss of every token after the first, each predicted from those before it.

    Raises:
        UserError: there is only one token, or `tokens` are no tensor of ids.
    """
    check_tokens(tokens)
    if tokens.shape[1] < 2:
        raise UserError("the text has no token to predict, so it has no loss; give a longer text")
    last = torch.full_like(tokens[:, :1], IGNORED)
    return MeanLoss(torch.cat([tokens[:, 1:], last], dim=1).long())


def check_index(name: str, index: Any, n: int) -> None:
    """Raise UserError unless an index is one of the `n` that an output has; negative ones count from the end."""
    check_whole(name, index)
    if not -n <= index < n:
        raise UserError(f"{name}: {index} is out of range: the output has 0 to {n - 1}")


def loss_of(inputs: Inputs, instead: str = "give a target") -> MeanLoss:
    """Return the mean loss of the targets in the text itself.

    `instead` says in errors what a caller can give for a text without a loss, if anything.

    Raises:
        UserError: there are none, because the model is a classifier or there is only one token.
    """
    targets = [IGNORED if token is None else token for token in inputs.predicted]
    if inputs.class_names:
        raise UserError(f"a classifier predicts no token of the text, so the text has no loss; {instead}")
    if set(targets) <= {IGNORED}:
        raise UserError(
            f"the text has no token to predict, so it has no loss; {instead and f'{instead}, or '}give a longer text"
        )
    return MeanLoss(torch.tensor([targets], device=inputs.tokens.device))


def name_of(metric: Metric, inputs: Inputs) -> str:
    """Return the name of a metric for captions."""
    if isinstance(metric, MeanLoss):
        return "the mean loss in nats"
    if not isinstance(metric, LogitDifference):
        return "the metric"
    foil = None if metric.foil is None else inputs.output_label(metric.foil)
    return logit_name(inputs.output_label(metric.target), foil)


def given_metric(
    metric: Metric | None,
    target: str | int | None = None,
    foil: str | int | None = None,
    position: int = -1,
) -> Metric | None:
    """Return a caller's metric, checked; None if there is none.

    Raises:
        UserError: it is no function, or is given beside what it replaces.
    """
    if metric is None:
        return None
    if target is not None or foil is not None or position != -1:
        raise UserError("metric: replaces target, foil and position; omit them")
    return checked_metric(metric)


def checked_metric(metric: Metric) -> Metric:
    """Return a metric that raises UserError if it returns anything but numbers [B].

    Raises:
        UserError: it is no function.
    """
    if isinstance(metric, LogitDifference | MeanLoss):
        return metric
    if not callable(metric):
        raise UserError(f"metric: {WANTED}; got {shown(metric)}")

    def measured(output: Tensor) -> Tensor:
        numbers: Any = metric(output)
        if not isinstance(numbers, Tensor) or numbers.shape != output.shape[:1]:
            got = f"shape {list(numbers.shape)}" if isinstance(numbers, Tensor) else shown(numbers)
            raise UserError(f"metric: {WANTED}; it returned {got} for {list(output.shape)}")
        return numbers

    return measured


def metric_of(
    inputs: Inputs, target: str | int | None, foil: str | int | None = None, position: int = -1
) -> LogitDifference:
    """Return the metric of a target's logit, less that of a foil, at a position of a text.

    Without a target, it is the token or class that the model finds likeliest there.

    Raises:
        UserError: there is no such token, class or position, or a position is given for a classifier.
    """
    at = inputs.predicting(position)
    other = None if foil is None else inputs.output("foil", foil)
    if target is not None:
        return LogitDifference(inputs.output("target", target), other, at)
    with quiet(inputs.model):
        logits = outputs_at(inputs, at)
    return LogitDifference(int(logits.argmax()), other, at)
