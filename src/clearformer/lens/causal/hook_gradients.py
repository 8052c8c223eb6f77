"""Gradients at hook points: how a metric changes with each number of an activation.

Shapes: B batch.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from clearformer.errors import UserError
from clearformer.hooks import Hook, hook_points, matching, patterns_of
from clearformer.lens.causal.metrics import Metric, checked_metric
from clearformer.lens.inputs import check_model, quiet
from clearformer.model import Transformer


class Gradient(NamedTuple):
    """An activation and d metric / d activation, both of the same shape."""

    value: Float[Tensor, "..."]
    gradient: Float[Tensor, "..."]


@torch.inference_mode(False)
def gradients_at(
    model: Transformer,
    arguments: tuple[Tensor, ...],
    metric: Metric,
    names: str | Iterable[str] | None = None,
) -> dict[str, Gradient]:
    """Return activations and their gradients by hook point, in evaluation mode; the weights' own `grad` is unchanged.

    Each row has the gradient of its own metric, 0 if the metric does not depend on the activation.

    Args:
        model: The model.
        arguments: The arguments to call it with.
        metric: A differentiable number for each row of the output; see `metrics`.
        names: Hook points or patterns; by default all.

    Raises:
        UserError: there is no such model or metric, or a name or pattern matches no hook point.
    """
    check_model(model)
    metric = checked_metric(metric)
    points = list(hook_points(model))
    patterns = ["*"] if names is None else patterns_of(names)
    wanted = dict.fromkeys(name for pattern in patterns for name in matching(pattern, points))
    if not wanted:
        raise UserError("names: give at least one hook point or pattern, such as 'blocks.*.hook_resid_post'")
    nodes: dict[str, Tensor] = {}

    def keep(activation: Tensor, hook: Hook) -> Tensor:
        # A separate node: one tensor may pass several points, and each has its own gradient.
        node = activation.view_as(activation) if activation.requires_grad else activation.detach().clone()
        nodes[hook.name] = node.requires_grad_()
        return node

    with quiet(model, grad=True), model.hooked(dict.fromkeys(wanted, keep)):
        measure = metric(model(*arguments)).sum()
        found = torch.autograd.grad(measure, list(nodes.values()), allow_unused=True, materialize_grads=True)
    return {
        name: Gradient(node.detach(), gradient)
        for (name, node), gradient in zip(nodes.items(), found, strict=True)
    }
