"""Input attribution: how much each token of the text matters to a prediction.

    lens.gradient_x_input(run, text, target=" Paris")       x . d metric / d x, x the token's embedding
    lens.integrated_gradients(run, text, target=" Paris")   its integral from a baseline, with the error of the sum
    lens.occlusion(run, text, target=" Paris")              the metric less that of the text without the token

The first is the slope at one point, and 0 where the prediction is saturated. The second spreads the whole difference
from a baseline over the tokens, and depends on the baseline (Sundararajan et al. 2017). The third is an intervention,
one token at a time (Zeiler and Fergus 2014).

Shapes: T tokens, S tokens of an encoder-decoder's source, D d_model, N steps.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clearformer.data.text.batches import IGNORED
from clearformer.decoding import Text
from clearformer.decoding.arguments import check_whole
from clearformer.errors import UserError, shown
from clearformer.hooks import Hook, HookFn
from clearformer.lens.causal.hook_gradients import gradients_at
from clearformer.lens.causal.interventions import Arguments, activations, output_with, rows_at_once
from clearformer.lens.causal.metrics import (
    LogitDifference,
    MeanLoss,
    Metric,
    given_metric,
    metric_of,
    name_of,
)
from clearformer.lens.inputs import Inputs, Readable, Subject, quiet, read
from clearformer.lens.showing import Shown, Table, bars, number, visible
from clearformer.model import Encoder, EncoderDecoder, Transformer

MOST_STEPS = 1000  # the points of the quadrature are the eigenvalues of a matrix of this size
ROUGH = 0.05  # of the difference; if the sum misses more than this, a note advises more steps


@dataclass(frozen=True, repr=False, eq=False)
class InputAttribution(Shown):
    """The contribution of each token to a metric.

    Attributes:
        method: The method's name.
        labels: The text's tokens; for an encoder-decoder, those of its output.
        values: [T] the contribution of each.
        source_labels: The tokens of an encoder-decoder's source; empty in the other families.
        source_values: [S] the contribution of each.
        measure: The metric of the whole text.
        baseline: The metric of the baseline, for integrated gradients.
        error: The values' sum less (measure - baseline), for integrated gradients.
        metric: The name of the metric.
    """

    method: str
    labels: list[str]
    values: Float[Tensor, " T"]
    source_labels: list[str]
    source_values: Float[Tensor, " S"]
    measure: float
    baseline: float | None = None
    error: float | None = None
    metric: str = "the metric"

    def caption(self) -> str:
        return f"{self.method}: what each token contributes to {self.metric}, {self.measure:.4f}"

    def table(self) -> Table:
        return Table(["token", "contribution"], [[name, number(value)] for name, value in self._all()])

    def notes(self) -> list[str]:
        if self.error is None or self.baseline is None:
            return []
        missed = f"of a baseline of {self.baseline:.4f}; the sum misses the difference by {self.error:.1e}"
        is_rough = abs(self.error) > ROUGH * abs(self.measure - self.baseline)
        return [f"{missed}: take more steps"] if is_rough else [missed]

    def inches(self) -> tuple[float, float]:
        return 5.0, 0.8 + 0.2 * len(self._all())

    def draw(self, figure: Any) -> None:
        axes = figure.subplots()
        names, values = zip(*self._all(), strict=True)
        bars(axes, list(names), values)
        axes.set_xlabel(self.method)

    def _all(self) -> list[tuple[str, float]]:
        """Return every token, spaces made visible, and its value, the source's first."""
        names = [f"source: {visible(label)}" for label in self.source_labels] + list(
            map(visible, self.labels)
        )
        return list(zip(names, [*self.source_values.tolist(), *self.values.tolist()], strict=True))


@torch.inference_mode(False)
def gradient_x_input(
    subject: Subject,
    text: Readable,
    output: Text | None = None,
    *,
    target: str | int | None = None,
    foil: str | int | None = None,
    position: int = -1,
    metric: Metric | None = None,
) -> InputAttribution:
    """Return the product of each token's embedding with its gradient, summed over the dimensions.

    Args:
        subject: A run, or a bare model.
        text: A string or ids, or the result of `read`.
        output: What an encoder-decoder writes.
        target: A token or class whose logit is measured; by default the likeliest one.
        foil: Another, whose logit is subtracted.
        position: The position that predicts it.
        metric: A function of the output, in place of `target`, `foil` and `position`; see `causal.metrics`.

    Raises:
        UserError: there is no such token, class or position.
    """
    inputs, metric = _read(subject, text, target, foil, position, output, metric)
    found = gradients_at(inputs.model, inputs.arguments, metric, _embeddings(inputs.model))
    values = [(each.value * each.gradient).sum(-1)[0] for each in found.values()]
    return _result("gradient x input", inputs, metric, values, _measure(inputs, metric))


@torch.inference_mode(False)
def integrated_gradients(
    subject: Subject,
    text: Readable,
    output: Text | None = None,
    *,
    target: str | int | None = None,
    foil: str | int | None = None,
    position: int = -1,
    metric: Metric | None = None,
    baseline: str | int | None = None,
    steps: int = 32,
) -> InputAttribution:
    """Return the mean gradient on the straight line from a baseline to the text, times the difference of embeddings.

    The integral is by Gauss-Legendre quadrature; where the model is smooth on the line, the error falls fast with the
    number of steps. The other arguments are those of `gradient_x_input`.

    Args:
        baseline: A token to put at every position of the baseline; by default each embedding is the mean of the
            vocabulary's. (Not 0: a norm makes the line from there jump at its start.)
        steps: The number of points on the line at which the gradient is taken.

    Raises:
        UserError: there is no such token, class or position, or `steps` is out of range.
    """
    check_whole("steps", steps)
    if not 1 <= steps <= MOST_STEPS:
        raise UserError(f"steps: from 1 to {MOST_STEPS:,} points on the path; got {shown(steps)}")
    inputs, metric = _read(subject, text, target, foil, position, output, metric)
    model, names = inputs.model, _embeddings(inputs.model)
    ends = activations(model, inputs.arguments, names)
    starts = _baseline(inputs, ends, baseline)
    way = [(starts[name], ends[name]) for name in names]
    points, weights = np.polynomial.legendre.leggauss(steps)
    total = [torch.zeros_like(end[0]) for _, end in way]
    for part in torch.arange(steps, device="cpu").split(_rows_at_once(inputs)):
        at, weight = (torch.from_numpy(each[part.numpy()]) / 2 for each in (points, weights))
        for i, gradient in enumerate(_gradients_on_the_way(inputs, names, way, at + 0.5, metric)):
            total[i] += (weight.to(gradient)[:, None, None] * gradient).sum(0)
    values = [((end - start)[0] * mean).sum(-1) for (start, end), mean in zip(way, total, strict=True)]
    first, last = (
        metric(_output_from(inputs, names, way, torch.tensor([alpha], device="cpu"))).item()
        for alpha in (0.0, 1.0)
    )
    error = sum(value.sum().item() for value in values) - (last - first)
    return _result("integrated gradients", inputs, metric, values, last, first, error)


def occlusion(
    subject: Subject,
    text: Readable,
    output: Text | None = None,
    *,
    target: str | int | None = None,
    foil: str | int | None = None,
    position: int = -1,
    metric: Metric | None = None,
    by: str | int | None = None,
) -> InputAttribution:
    """Return the metric less that of the same text with one token replaced, or dropped as if it were absent.

    A dropped token is masked as padding: no position attends to it, and later tokens move one position back. The
    predicting position predicts nothing when it is dropped: its own value is NaN. Of a `MeanLoss`, the dropped token is
    no target, and where the next token is predicted, the one before it predicts the one behind it. The other arguments
    are those of `gradient_x_input`.

    Args:
        by: A token to put in its place; by default it is dropped.

    Raises:
        UserError: there is no such token, class or position, or the only token of a text would be dropped.
    """
    inputs, metric = _read(subject, text, target, foil, position, output, metric)
    measure = _measure(inputs, metric)
    if by is None:
        variants = _dropped(inputs)
    else:
        variants = _replaced(inputs, _token(inputs, "by", by))
    *of_source, of_output = variants
    values = [measure - _measures(inputs, rows, metric) for rows in of_source]
    if by is None and isinstance(metric, MeanLoss):
        values.append(measure - _losses_without_each(inputs, of_output, metric))
    else:
        values.append(measure - _measures(inputs, of_output, metric))
    if by is None and isinstance(metric, LogitDifference) and not inputs.class_names:
        values[-1][metric.position] = torch.nan
    return _result("occlusion", inputs, metric, values, measure)


# --- embeddings -----------------------------------------------------------------------------------------------


def _embeddings(model: Transformer) -> list[str]:
    """Return the hook points of the tokens' vectors, in the order of the model's arguments."""
    return (
        ["hook_encoder_embed", "hook_decoder_embed"] if isinstance(model, EncoderDecoder) else ["hook_embed"]
    )


def _baseline(inputs: Inputs, ends: dict[str, Tensor], token: str | int | None) -> dict[str, Tensor]:
    model = inputs.model
    if token is not None:
        same = tuple(torch.full_like(each, _token(inputs, "baseline", token)) for each in inputs.arguments)
        return activations(model, same, list(ends))
    everything = torch.arange(model.embed.num_embeddings, device=inputs.tokens.device)[None]
    with quiet(model):
        mean = model.token_vectors(everything).mean(1, keepdim=True)
        own = map(model.token_vectors, inputs.arguments)
        # Only the token's vector is replaced: other parts of the embedding, such as the token type, stay.
        return {name: end + (mean - vectors) for (name, end), vectors in zip(ends.items(), own, strict=True)}


def _gradients_on_the_way(
    inputs: Inputs,
    names: list[str],
    way: list[tuple[Tensor, Tensor]],
    at: Float[Tensor, " N"],
    metric: Metric,
) -> tuple[Float[Tensor, "N T D"], ...]:
    vectors = [_between(*ends, at).requires_grad_() for ends in way]
    with quiet(inputs.model, grad=True):
        measure = metric(_output_of(inputs, names, vectors)).sum()
        return torch.autograd.grad(measure, vectors, allow_unused=True, materialize_grads=True)


def _output_from(
    inputs: Inputs, names: list[str], way: list[tuple[Tensor, Tensor]], at: Float[Tensor, " N"]
) -> Tensor:
    with quiet(inputs.model):
        return _output_of(inputs, names, [_between(*ends, at) for ends in way])


def _between(start: Tensor, end: Tensor, at: Float[Tensor, " N"]) -> Float[Tensor, "N T D"]:
    return start + at.to(end)[:, None, None] * (end - start)


def _output_of(inputs: Inputs, names: list[str], vectors: list[Tensor]) -> Tensor:
    """Return the model's output, one row for each row of embeddings put in place of the tokens'."""
    rows = tuple(each.expand(len(vectors[0]), -1) for each in inputs.arguments)
    hooks = {name: _put(each) for name, each in zip(names, vectors, strict=True)}
    with inputs.model.hooked(hooks):
        return inputs.model(*rows)


def _put(vectors: Tensor) -> HookFn:
    def put(_activation: Tensor, _hook: Hook) -> Tensor:
        return vectors

    return put


# --- variants of a text ---------------------------------------------------------------------------------------


def _replaced(inputs: Inputs, token: int) -> list[Arguments]:
    """Return a batch for each of the model's texts; in row i of it, token i is replaced."""
    batches = []
    for which, own in enumerate(inputs.arguments):
        rows = [each.repeat(own.shape[1], 1) for each in inputs.arguments]
        rows[which].fill_diagonal_(token)
        batches.append(tuple(rows))
    return batches


def _dropped(inputs: Inputs) -> list[Arguments]:
    """Return a batch for each of the model's texts; in row i of it, token i is masked as padding."""
    batches = []
    for which, own in enumerate(inputs.arguments):
        n = own.shape[1]
        if n == 1:
            raise UserError(
                "a text of one token is empty without it; give by=TOKEN to replace the token instead"
            )
        rows = [each.expand(n, -1) for each in inputs.arguments]
        real = [torch.ones_like(each, dtype=torch.bool) for each in rows]
        real[which].fill_diagonal_(False)
        batches.append((*rows, *real))
    return batches


def _losses_without_each(inputs: Inputs, rows: Arguments, metric: MeanLoss) -> Float[Tensor, " T"]:
    """Return the mean loss of the text without each token, which is no target then; NaN where no other is."""
    n = inputs.tokens.shape[1]
    targets = metric.targets.repeat(n, 1)  # [T T]
    if not isinstance(inputs.model, Encoder):  # what was predicted behind the token is predicted before it
        behind = torch.where(targets[0, :-1] == IGNORED, IGNORED, targets[0, 1:])
        targets[1:].diagonal().copy_(behind)
    targets.fill_diagonal_(IGNORED)
    counts = (targets != IGNORED).any(1)
    targets = torch.where(counts[:, None], targets, metric.targets)
    parts = zip(*(each.split(_rows_at_once(inputs)) for each in (targets, *rows)), strict=True)
    losses = [MeanLoss(of_part)(output_with(inputs.model, tuple(part))) for of_part, *part in parts]
    return torch.cat(losses).masked_fill(~counts, torch.nan)


def _measures(inputs: Inputs, rows: Arguments, metric: Metric) -> Tensor:
    parts = zip(*(each.split(_rows_at_once(inputs)) for each in rows), strict=True)
    return torch.cat([metric(output_with(inputs.model, part)) for part in parts])


def _rows_at_once(inputs: Inputs) -> int:
    return rows_at_once(inputs.model, inputs.arguments)


# --- parts ----------------------------------------------------------------------------------------------------


def _read(
    subject: Subject,
    text: Readable,
    target: str | int | None,
    foil: str | int | None,
    position: int,
    output: Text | None,
    metric: Metric | None,
) -> tuple[Inputs, Metric]:
    inputs = read(subject, text, output)
    return inputs, given_metric(metric, target, foil, position) or metric_of(inputs, target, foil, position)


def _token(inputs: Inputs, name: str, given: str | int) -> int:
    """Return the id of a token, for classifiers as well."""
    return replace(inputs, class_names=()).output(name, given)


def _measure(inputs: Inputs, metric: Metric) -> float:
    return metric(output_with(inputs.model, inputs.arguments)).item()


def _result(
    method: str,
    inputs: Inputs,
    metric: Metric,
    values: list[Tensor],
    measure: float,
    baseline: float | None = None,
    error: float | None = None,
) -> InputAttribution:
    source = values[0] if len(values) > 1 else values[0].new_empty(0)
    return InputAttribution(
        method,
        inputs.labels,
        values[-1],
        inputs.source_labels,
        source,
        measure,
        baseline,
        error,
        name_of(metric, inputs),
    )
