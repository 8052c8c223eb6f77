"""Gradients at hook points: how a measure changes with each number of an activation.

Shapes: B batch.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from clearformer.hooks import Hook, hook_points, matching
from clearformer.lens.causal.metrics import Metric
from clearformer.lens.inputs import quiet
from clearformer.model import Transformer


class Gradient(NamedTuple):
    """An activation, and d measure / d activation; of one shape."""

    value: Float[Tensor, "..."]
    gradient: Float[Tensor, "..."]


def gradients_at(
    model: Transformer,
    arguments: tuple[Tensor, ...],
    metric: Metric,
    names: str | Iterable[str] | None = None,
) -> dict[str, Gradient]:
    """Activations and their gradients by hook point, in evaluation mode; the weights' own `grad` stays as it was.

    Each row's gradient is of its own measure. 0 where the measure does not depend on the activation.

    Args:
        model: A model.
        arguments: What it is called with.
        metric: A differentiable number for each row of the output; see `metrics`.
        names: Hook points or patterns of them; all, where none are given.

    Raises:
        UserError: a name or pattern means no hook point of this model.
    """
    points = list(hook_points(model))
    patterns = ["*"] if names is None else [names] if isinstance(names, str) else list(names)
    wanted = dict.fromkeys(name for pattern in patterns for name in matching(pattern, points))
    nodes: dict[str, Tensor] = {}

    def keep(activation: Tensor, hook: Hook) -> Tensor:
        # A node of its own: one tensor may come by several points, and each has its own gradient.
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
