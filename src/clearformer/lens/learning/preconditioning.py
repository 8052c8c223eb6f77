"""The step that an optimizer makes of a gradient with its state held fixed: linear in the gradient, lr P g.

    Adam, AdamW     P = 1 / (sqrt(v_hat) + eps), entry by entry
    Muon            P = (M M^T)^(-1/2) on the matrix's shorter side, M its momentum: P maps M itself to the orthogonal
                    matrix of Muon's step
    SGD             P = 1

Left out are momentum, which only spreads a gradient over the following steps; weight decay, which does not depend on
gradients; clipping, which scales all gradients of a step alike; the entries that a cautious Muon leaves out, which
depend on the gradient of the whole batch; and the effect of a gradient on the optimizer's state.
Learning rates are those of the optimizer's parameter groups.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from clearformer.errors import UserError
from clearformer.training.optim.adam import FusedAdam
from clearformer.training.optim.muon import MuonOptimizer

LEAST_SINGULAR_VALUE = 1e-3  # of the matrix's norm: Muon's own iterations do not resolve smaller ones

Gradients = dict[str, Tensor]


def steps_of(model: nn.Module, optimizers: Sequence[Optimizer], gradients: Mapping[str, Tensor]) -> Gradients:
    """Return lr P g for the gradient g of each parameter, by name; 0 for a parameter that the optimizer never moved.

    Of Adam's, that holds for each number: the embedding of a token that no batch had has no step.

    Raises:
        UserError: the optimizer's P is unknown.
    """
    parameters = dict(model.named_parameters())
    owners = {p: (o, group) for o in optimizers for group in o.param_groups for p in group["params"]}
    steps = {}
    for name, gradient in gradients.items():
        if parameters[name] not in owners:
            steps[name] = torch.zeros_like(gradient)
            continue
        optimizer, group = owners[parameters[name]]
        state = optimizer.state.get(parameters[name], {})
        steps[name] = group["lr"] * preconditioner_of(optimizer)(gradient, state, group)
    return steps


def preconditioner_of(optimizer: Optimizer) -> Callable[[Tensor, Mapping, Mapping], Tensor]:
    """Return P for a kind of optimizer, as a function of the gradient, the parameter's state and its group.

    Raises:
        UserError: it is unknown.
    """
    if (preconditioned := PRECONDITIONERS.get(type(optimizer))) is not None:  # a subclass may step otherwise
        return preconditioned
    raise UserError(
        f"train.optimizer: what {type(optimizer).__name__} does to one window's gradient is unknown; TracIn supports "
        "adam, adamw and muon"
    )


def by_adam(gradient: Tensor, state: Mapping[str, Tensor], group: Mapping) -> Tensor:
    """Return g / (sqrt(v_hat) + eps), with v_hat the bias-corrected second moment."""
    if not state:
        return torch.zeros_like(gradient)
    correction = 1 - group["betas"][1] ** state["step"].item()
    steps = gradient / ((state["exp_avg_sq"] / correction).sqrt() + group["eps"])
    return steps.where(state["exp_avg_sq"] > 0, 0)  # without that, g / eps of a token that was never seen


def by_muon(gradient: Tensor, state: Mapping[str, Tensor], _group: Mapping) -> Tensor:
    """Return (M M^T)^(-1/2) g on the shorter side, with Muon's scale for tall matrices."""
    if not state or not state["momentum"].any():
        return torch.zeros_like(gradient)
    momentum = state["momentum"].cpu().double()
    scale = max(1.0, momentum.shape[0] / momentum.shape[1]) ** 0.5
    is_wide = momentum.shape[0] <= momentum.shape[1]
    gram = momentum @ momentum.T if is_wide else momentum.T @ momentum
    values, vectors = torch.linalg.eigh(gram)
    least = LEAST_SINGULAR_VALUE * momentum.norm().clamp_min(torch.finfo(torch.float32).tiny)
    root = (vectors / values.clamp_min(0).sqrt().clamp_min(least)) @ vectors.T
    wide = gradient.cpu().double()
    return (scale * (root @ wide if is_wide else wide @ root)).to(gradient)


def by_sgd(gradient: Tensor, _state: Mapping[str, Tensor], _group: Mapping) -> Tensor:
    """Return the gradient itself."""
    return gradient


PRECONDITIONERS: dict[type[Optimizer], Callable[[Tensor, Mapping, Mapping], Tensor]] = {
    FusedAdam: by_adam,
    MuonOptimizer: by_muon,
    SGD: by_sgd,
}
