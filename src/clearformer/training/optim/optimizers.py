"""Optimizers: Adam, AdamW and Muon.

A spec's `build(model, lr, dtype)` returns a list of torch optimizers that are stepped together. Each parameter group
has a `peak_lr`, its learning rate where the schedule's factor is 1. Optimizers that multiply matrices do so in `dtype`,
the type of the run's matrix products.
"""

import inspect
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import nn
from torch.optim import Optimizer

from clearformer.config import Spec
from clearformer.errors import ConfigError, shown
from clearformer.training.optim.adam import FusedAdam
from clearformer.training.optim.muon import MuonOptimizer

Beta = Annotated[float, Field(ge=0, lt=1)]


def build_optimizers(spec: Any, model: nn.Module, lr: float, dtype: torch.dtype) -> list[Optimizer]:
    """Return a spec's optimizers of a model; `peak_lr` is added to the parameter groups of torch's own.

    Raises:
        ConfigError: a user's `build` returns anything but a list of optimizers, or one whose steps need a closure.
    """
    optimizers = spec.build(model, lr, dtype)
    are_some = isinstance(optimizers, list | tuple) and optimizers
    if not are_some or not all(isinstance(each, Optimizer) for each in optimizers):
        raise ConfigError(
            f"train.optimizer.kind: {type(spec).__name__}.build must return a list of torch optimizers; "
            f"got {shown(optimizers)}"
        )
    for optimizer in optimizers:
        _check_steps_alone(spec, optimizer)
        for group in optimizer.param_groups:
            group.setdefault("peak_lr", group["lr"])
    return list(optimizers)


def _check_steps_alone(spec: Any, optimizer: Optimizer) -> None:
    """Raise ConfigError if an optimizer computes the loss itself, in a closure, as L-BFGS does."""
    try:
        inspect.signature(optimizer.step).bind()
    except TypeError:
        raise ConfigError(
            f"train.optimizer.kind: {type(spec).__name__}.build returns {type(optimizer).__name__}, whose step() needs "
            "a closure; choose one that steps by the gradients alone"
        ) from None


class _AdamSpec(Spec):
    """m / (sqrt(v) + eps) with moving averages m of the gradient and v of its square, both with bias correction."""

    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.0


class Adam(_AdamSpec):
    """Adam (Kingma and Ba 2015); its weight decay is added to the gradient."""

    kind: Literal["adam"] = "adam"

    def build(self, model: nn.Module, lr: float, dtype: torch.dtype = torch.float32) -> list[Optimizer]:
        groups = decay_groups(model.parameters(), lr, self.weight_decay)
        return [FusedAdam(groups, self.betas, self.eps)]


class AdamW(_AdamSpec):
    """Adam with decoupled weight decay, not part of the gradient (Loshchilov and Hutter 2019)."""

    kind: Literal["adamw"] = "adamw"
    weight_decay: NonNegativeFloat = 0.1

    def build(self, model: nn.Module, lr: float, dtype: torch.dtype = torch.float32) -> list[Optimizer]:
        groups = decay_groups(model.parameters(), lr, self.weight_decay)
        return [FusedAdam(groups, self.betas, self.eps, decoupled=True)]


class Muon(Spec):
    """Muon for the blocks' matrices (Jordan et al. 2024), AdamW for embeddings, head, norms and biases.

    `train.lr` is the learning rate of the matrices and `adam_lr` that of the rest; the schedule scales both.

    Attributes:
        momentum: The decay of the moving average that is made orthogonal (Nesterov's form).
        weight_decay: The decoupled weight decay of the matrices; the rest has none.
        iterations: Newton-Schulz iterations in each step (`orthogonalize`). After three the singular values are between
            about 0 and 1.9 (of a 128 x 128 matrix of normal numbers 1.13 in the mean of squares), after five up to 1.1:
            another number is another rate, too.
        cautious: Whether steps leave out the entries that differ from the gradient in sign (`agreeing`).
    """

    kind: Literal["muon"] = "muon"
    momentum: Beta = 0.95
    weight_decay: NonNegativeFloat = 0.0
    iterations: PositiveInt = 3
    cautious: bool = False
    adam_lr: PositiveFloat = 3e-3
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    eps: PositiveFloat = 1e-10

    def build(self, model: nn.Module, lr: float, dtype: torch.dtype = torch.float32) -> list[Optimizer]:
        named = list(model.named_parameters())
        matrices = [p for name, p in named if is_block_matrix(name, p)]
        rest = [p for name, p in named if not is_block_matrix(name, p)]
        group = {"params": rest, "lr": self.adam_lr, "peak_lr": self.adam_lr}
        adamw = FusedAdam([group], self.betas, self.eps, decoupled=True)
        if not matrices:
            return [adamw]
        muon = MuonOptimizer(
            matrices, lr, self.momentum, self.weight_decay, self.iterations, dtype, self.cautious
        )
        return [muon, adamw]


OptimizerSpec = Annotated[Adam | AdamW | Muon, Field(discriminator="kind")]


def decay_groups(parameters: Iterable[nn.Parameter], lr: float, weight_decay: float) -> list[dict[str, Any]]:
    """Return two parameter groups: matrices, which decay, and vectors (biases, norms), which do not."""
    parameters = list(parameters)
    groups = [
        ([p for p in parameters if p.dim() >= 2], weight_decay),
        ([p for p in parameters if p.dim() < 2], 0.0),
    ]
    return [
        {"params": members, "lr": lr, "peak_lr": lr, "weight_decay": decay}
        for members, decay in groups
        if members
    ]


def is_block_matrix(name: str, parameter: nn.Parameter) -> bool:
    """Whether a parameter is a matrix inside a block, which Muon trains."""
    return "blocks." in name and parameter.dim() == 2
