"""Adam and AdamW by torch's fused kernels."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.adam import adam
from torch.optim.adamw import adamw

from clearformer.training.optim.startup import leave_compiler_out


class FusedAdam(Optimizer):
    """Adam by torch's functional form, or AdamW with `decoupled` weight decay.

    Equal to `torch.optim.Adam` and `AdamW` with `fused=True`, whose own `step` imports torch's compiler.
    """

    state_keys = frozenset(("step", "exp_avg", "exp_avg_sq"))

    def __init__(
        self,
        groups: list[dict[str, Any]],
        betas: tuple[float, float],
        eps: float,
        decoupled: bool = False,
    ) -> None:
        leave_compiler_out()
        super().__init__(groups, {"betas": betas, "eps": eps, "weight_decay": 0.0})
        self.update = adamw if decoupled else adam

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters:
                self._step_together(parameters, group)

    def _step_together(self, parameters: list[nn.Parameter], group: dict[str, Any]) -> None:
        states = [self.state[p] or self._first_state(p) for p in parameters]
        self.update(
            parameters,  # type: ignore[arg-type]
            [p.grad for p in parameters],  # type: ignore[misc]
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=True,
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )

    def _first_state(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Set both averages to 0; the fused kernel takes the number of steps as a tensor, CUDA's one in float32."""
        self.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
        return self.state[parameter]
