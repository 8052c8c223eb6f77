"""Optimisers, which turn gradients into steps: Adam, AdamW, Muon.

A spec builds a list of torch optimisers that are stepped together; each parameter group carries `peak_lr`, its
learning rate at the schedule's factor 1.
"""

from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Float
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.optim import Optimizer

from clearformer.config import Spec

Beta = Annotated[float, Field(ge=0, lt=1)]


class _AdamSpec(Spec):
    """Moving averages of the gradient and of its square: m / (sqrt(v) + eps), both corrected for their start."""

    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.0


class Adam(_AdamSpec):
    """Adam (Kingma and Ba 2015); its weight decay is added to the gradient."""

    kind: Literal["adam"] = "adam"

    def build(self, model: nn.Module, lr: float) -> list[Optimizer]:
        groups = decay_groups(model.parameters(), lr, self.weight_decay)
        return [FusedAdam(groups, self.betas, self.eps)]


class AdamW(_AdamSpec):
    """Adam with weight decay apart from the gradient (Loshchilov and Hutter 2019)."""

    kind: Literal["adamw"] = "adamw"
    weight_decay: NonNegativeFloat = 0.1

    def build(self, model: nn.Module, lr: float) -> list[Optimizer]:
        groups = decay_groups(model.parameters(), lr, self.weight_decay)
        return [FusedAdam(groups, self.betas, self.eps, decoupled=True)]


class Muon(Spec):
    """Muon for the blocks' matrices (Jordan et al. 2024), AdamW for embeddings, head, norms and biases.

    `train.lr` is the matrices' rate and `adam_lr` that of the rest; the schedule moves both.

    Attributes:
        momentum: Of the moving average that is made orthogonal (Nesterov's form).
        weight_decay: Of the matrices, apart from the gradient; the rest has none.
        iterations: Newton-Schulz iterations for each step (`orthogonalize`).
    """

    kind: Literal["muon"] = "muon"
    momentum: Beta = 0.95
    weight_decay: NonNegativeFloat = 0.0
    iterations: PositiveInt = 3
    adam_lr: PositiveFloat = 3e-3
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    eps: PositiveFloat = 1e-10

    def build(self, model: nn.Module, lr: float) -> list[Optimizer]:
        named = list(model.named_parameters())
        matrices = [p for name, p in named if is_block_matrix(name, p)]
        rest = [p for name, p in named if not is_block_matrix(name, p)]
        group = {"params": rest, "lr": self.adam_lr, "peak_lr": self.adam_lr}
        adamw = FusedAdam([group], self.betas, self.eps, decoupled=True)
        if not matrices:
            return [adamw]
        muon = MuonOptimizer(matrices, lr, self.momentum, self.weight_decay, self.iterations)
        return [muon, adamw]


OptimizerSpec = Annotated[Adam | AdamW | Muon, Field(discriminator="kind")]


def decay_groups(parameters: Iterable[nn.Parameter], lr: float, weight_decay: float) -> list[dict[str, Any]]:
    """Two parameter groups: matrices, which decay, and vectors (biases, norms), which do not."""
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


class FusedAdam(Optimizer):
    """Adam by torch's fused kernel; `decoupled` weight decay makes it AdamW.

    Calls the kernel itself, as the way through torch's optimiser is a noticeable part of a small model's step. A run
    that compiles nothing need not wait for the compiler: see `leave_compiler_out`.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        betas: tuple[float, float],
        eps: float,
        decoupled: bool = False,
    ) -> None:
        leave_compiler_out()
        super().__init__(groups, {"betas": betas, "eps": eps, "weight_decay": 0.0})
        # The public optimisers' own kernels, which torch's stubs do not export.
        self.kernel: Any = torch._fused_adamw_ if decoupled else torch._fused_adam_  # type: ignore[attr-defined]

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters:
                self._step_together(parameters, group)

    def _step_together(self, parameters: list[nn.Parameter], group: dict[str, Any]) -> None:
        states = [self.state[p] or self._begin(p) for p in parameters]
        steps = [state["step"] for state in states]
        torch._foreach_add_(steps, 1)  # type: ignore[attr-defined]
        self.kernel(
            parameters,
            [p.grad for p in parameters],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            steps,
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )

    def _begin(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Both averages at 0; the number of steps is a tensor because the kernel wants one."""
        self.state[parameter] = {
            "step": torch.zeros((), device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
        return self.state[parameter]


def leave_compiler_out() -> None:
    """Let torch's optimisers work without importing its compiler, which takes over a second.

    Some of their methods stand in a wrapper that imports it when first called, to have itself left out of what it
    compiles; given its answer beforehand, the wrapper does not ask. No optimiser is compiled here. Where torch's
    wrappers are made otherwise nothing happens.
    """
    for method in vars(Optimizer).values():
        inner = getattr(method, "__wrapped__", None)
        if inner is not None:
            inner.__dict__.setdefault("__dynamo_disable", inner)


def is_block_matrix(name: str, parameter: nn.Parameter) -> bool:
    """Whether a parameter is a matrix inside a block, and so Muon's to train."""
    return "blocks." in name and parameter.dim() == 2


class MuonOptimizer(Optimizer):
    """Momentum whose matrix is replaced by the nearest orthogonal one before the step (Jordan et al. 2024)."""

    def __init__(
        self,
        parameters: list[nn.Parameter],
        lr: float,
        momentum: float,
        weight_decay: float,
        iterations: int,
    ) -> None:
        leave_compiler_out()
        super().__init__(parameters, {"lr": lr, "peak_lr": lr})
        self.momentum, self.weight_decay, self.iterations = momentum, weight_decay, iterations

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for members in group_by_shape(group["params"]):
                self._step_together(members, group["lr"])

    def _step_together(self, parameters: list[nn.Parameter], lr: float) -> None:
        """One step of all matrices of one shape: one batched product for many is faster than many alone."""
        directions = torch.stack([self._nesterov_direction(p) for p in parameters])
        # A step of unit spectral norm is scaled so that tall matrices move as far as wide ones do.
        scale = max(1.0, parameters[0].shape[0] / parameters[0].shape[1]) ** 0.5
        for parameter, update in zip(parameters, orthogonalize(directions, self.iterations), strict=True):
            parameter.mul_(1 - lr * self.weight_decay)
            parameter.add_(update, alpha=-lr * scale)

    def _nesterov_direction(self, parameter: nn.Parameter) -> Tensor:
        """The gradient, a good part of the way towards its moving average, which it is added to."""
        assert parameter.grad is not None
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        average = state["momentum"].lerp_(parameter.grad, 1 - self.momentum)
        return torch.lerp(parameter.grad, average, self.momentum)


def group_by_shape(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Parameters that have a gradient, grouped by shape."""
    groups: dict[torch.Size, list[nn.Parameter]] = {}
    for p in parameters:
        if p.grad is not None:
            groups.setdefault(p.shape, []).append(p)
    return list(groups.values())


def orthogonalize(matrices: Float[Tensor, "N R C"], iterations: int) -> Float[Tensor, "N R C"]:
    """U V^T of each matrix's U S V^T, nearly: Newton-Schulz iterations X <- a X + (b G + c G G) X with G = X X^T.

    Each iteration has the coefficients that are best after those before it, singular values being between 0.001 and 1
    (Amsel et al. 2025, The Polar Express). In bfloat16, which is accurate enough for that. Sums are taken by
    the products' own kernels (`baddbmm`), which is faster than adding by others (docs/log.md).
    """
    x = matrices.bfloat16()
    wide = x.shape[-2] <= x.shape[-1]
    x = x if wide else x.mT.contiguous()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) * SAFETY + 1e-7)
    for i in range(iterations):
        a, b, c = POLAR_EXPRESS[min(i, len(POLAR_EXPRESS) - 1)]
        a, b, c = a / SAFETY, b / SAFETY**3, c / SAFETY**5
        gram = torch.bmm(x, x.mT)
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x if wide else x.mT


# The paper's coefficients, from its algorithm for singular values from 0.001 on; the last is for all that follow.
POLAR_EXPRESS = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
    (1.875, -1.25, 0.375),
)
SAFETY = 1.01  # a singular value that bfloat16 rounds to more than 1 must not grow
