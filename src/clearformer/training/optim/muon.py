"""Muon: momentum, made nearly orthogonal before each update."""

from collections.abc import Callable, Iterable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Optimizer

from clearformer.training.optim.startup import leave_compiler_out


class MuonOptimizer(Optimizer):
    """Momentum whose matrix is moved towards the nearest orthogonal one before the update (Jordan et al. 2024)."""

    state_keys = frozenset(("momentum",))

    def __init__(
        self,
        parameters: list[nn.Parameter],
        lr: float,
        momentum: float,
        weight_decay: float,
        iterations: int,
        dtype: torch.dtype = torch.float32,
        cautious: bool = False,
    ) -> None:
        leave_compiler_out()
        super().__init__(parameters, {"lr": lr, "peak_lr": lr})
        self.momentum, self.weight_decay = momentum, weight_decay
        self.iterations, self.dtype = iterations, dtype
        self.cautious = cautious

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for members in group_by_shape(group["params"]):
                self._step_together(members, group["lr"])

    def _step_together(self, parameters: list[nn.Parameter], lr: float) -> None:
        """Update all matrices of one shape together: batched products are faster than many single ones."""
        directions = torch.stack([self._nesterov_direction(p) for p in parameters])
        # The update's singular values are around 1; this factor makes tall matrices move as far as wide ones.
        scale = max(1.0, parameters[0].shape[0] / parameters[0].shape[1]) ** 0.5
        updates = orthogonalize(directions, self.iterations, self.dtype)
        if self.cautious:
            updates = agreeing(updates, torch.stack([p.grad for p in parameters if p.grad is not None]))
        for parameter, update in zip(parameters, updates, strict=True):
            parameter.mul_(1 - lr * self.weight_decay)
            parameter.add_(update, alpha=-lr * scale)

    def _nesterov_direction(self, parameter: nn.Parameter) -> Tensor:
        """Update the moving average m; return the gradient moved towards it: (1 - momentum) g + momentum m."""
        assert parameter.grad is not None
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        average = state["momentum"].lerp_(parameter.grad, 1 - self.momentum)
        return torch.lerp(parameter.grad, average, self.momentum)


def group_by_shape(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Group the parameters that have a gradient by shape."""
    groups: dict[torch.Size, list[nn.Parameter]] = {}
    for p in parameters:
        if p.grad is not None:
            groups.setdefault(p.shape, []).append(p)
    return list(groups.values())


def agreeing(updates: Float[Tensor, "N R C"], gradients: Float[Tensor, "N R C"]) -> Float[Tensor, "N R C"]:
    """Set the entries of each update to 0 that differ from the gradient in sign, and divide the rest by their share.

    Such an entry would increase the loss of the present batch (Liang et al. 2024, Cautious Optimizers).
    """
    agrees = (updates * gradients > 0).to(updates.dtype)
    share = agrees.mean(dim=(-2, -1), keepdim=True)
    return updates * agrees / share.clamp_min(1 / agrees[0].numel())


def orthogonalize(
    matrices: Float[Tensor, "N R C"], iterations: int, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "N R C"]:
    """Approximate U V^T of each matrix U S V^T by Newton-Schulz: X <- a X + (b G + c G G) X with G = X X^T.

    Each iteration has its own coefficients, the best ones after the iterations before it for singular values between
    0.001 and 1 (Amsel et al. 2025, The Polar Express). bfloat16 is accurate enough for this. Sums are taken inside the
    products' kernels (`baddbmm`), which is faster than separate additions (docs/log.md).
    """
    x = matrices.to(dtype)
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


# The paper's coefficients, by its algorithm for singular values of 0.001 or more; the last is used from then on.
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
