"""The step that an optimiser makes of a gradient, its state held as it is: linear in the gradient, lr P g.

    Adam, AdamW     P = 1 / (sqrt(v_hat) + eps), entry by entry
    Muon            P = (M M^T)^(-1/2) on the matrix' shorter side, M its momentum: of M itself it makes the orthogonal
                    matrix that Muon steps along
    SGD             P = 1

Momentum hands a gradient on over the following steps, all of it in the end, so that it is left out; so are weight
decay, which no gradient has a part in, clipping, which scales all gradients of a step alike, and what a gradient does
to the optimiser's state. Rates are those that the optimisers' groups have.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from clearformer.errors import UserError
from clearformer.training.optim.adam import FusedAdam
from clearformer.training.optim.muon import MuonOptimizer

LEAST_SINGULAR_VALUE = 1e-3  # of the matrix' norm: Muon's own iterations tell no smaller ones apart

Gradients = dict[str, Tensor]


def steps_of(model: nn.Module, optimizers: Sequence[Optimizer], gradients: Mapping[str, Tensor]) -> Gradients:
    """lr P g for the gradient g of each parameter, by its name; 0 where the optimiser has never moved it.

    Raises:
        UserError: it is an optimiser whose P is not known.
    """
    parameters = dict(model.named_parameters())
    owners = {p: (o, group) for o in optimizers for group in o.param_groups for p in group["params"]}
    steps = {}
    for name, gradient in gradients.items():
        optimizer, group = owners[parameters[name]]
        state = optimizer.state.get(parameters[name], {})
        steps[name] = group["lr"] * preconditioner_of(optimizer)(gradient, state, group)
    return steps


def preconditioner_of(optimizer: Optimizer) -> Callable[[Tensor, Mapping, Mapping], Tensor]:
    """P of a kind of optimiser, as a function of the gradient, the parameter's state and its group.

    Raises:
        UserError: it is not known.
    """
    for kind, preconditioned in PRECONDITIONERS.items():
        if isinstance(optimizer, kind):
            return preconditioned
    raise UserError(
        f"train.optimizer: what {type(optimizer).__name__} makes of one window's gradient is not known: TracIn "
        "knows adam, adamw and muon"
    )


def by_adam(gradient: Tensor, state: Mapping[str, Tensor], group: Mapping) -> Tensor:
    """g / (sqrt(v_hat) + eps), v_hat being v corrected for its start."""
    if not state:
        return torch.zeros_like(gradient)
    correction = 1 - group["betas"][1] ** state["step"].item()
    return gradient / ((state["exp_avg_sq"] / correction).sqrt() + group["eps"])


def by_muon(gradient: Tensor, state: Mapping[str, Tensor], _group: Mapping) -> Tensor:
    """(M M^T)^(-1/2) g on the shorter side, with Muon's scale for tall matrices."""
    if not state:
        return torch.zeros_like(gradient)
    momentum = state["momentum"].double()
    scale = max(1.0, momentum.shape[0] / momentum.shape[1]) ** 0.5
    is_wide = momentum.shape[0] <= momentum.shape[1]
    gram = momentum @ momentum.T if is_wide else momentum.T @ momentum
    values, vectors = torch.linalg.eigh(gram)
    least = LEAST_SINGULAR_VALUE * momentum.norm().clamp_min(torch.finfo(torch.float32).tiny)
    root = (vectors / values.clamp_min(0).sqrt().clamp_min(least)) @ vectors.T
    wide = gradient.double()
    return (scale * (root @ wide if is_wide else wide @ root)).to(gradient.dtype)


def by_sgd(gradient: Tensor, _state: Mapping[str, Tensor], _group: Mapping) -> Tensor:
    """The gradient itself."""
    return gradient


PRECONDITIONERS: dict[type[Optimizer], Callable[[Tensor, Mapping, Mapping], Tensor]] = {
    FusedAdam: by_adam,
    MuonOptimizer: by_muon,
    SGD: by_sgd,
}
