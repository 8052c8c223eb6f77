"""Weights and optimiser state as named tensors, which is what checkpoints hold."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

RAW = ".weight_now"  # marks the trained weights, where the checkpoint's model is their moving average


def weights_of(model: nn.Module, copy: bool = False) -> dict[str, Tensor]:
    """A model's weights on the CPU, by name; copies, which stay as they are when the model goes on to change."""
    return {name: _on_cpu(value.detach(), copy) for name, value in model.state_dict().items()}


def raw_weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Copies of the same, under names that mark them as the trained weights beside an average."""
    return {name + RAW: value for name, value in weights_of(model, copy=True).items()}


def load_raw_weights(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Set a model's weights from what `raw_weights_of` made."""
    model.load_state_dict({n.removesuffix(RAW): t for n, t in tensors.items() if n.endswith(RAW)})


def optimizer_tensors(model: nn.Module, optimizers: Sequence[Optimizer]) -> dict[str, Tensor]:
    """Copies of the optimisers' state: `PARAMETER.KEY`, such as `blocks.0.attn.W_Q.weight.exp_avg`."""
    parameters = dict(model.named_parameters())
    return {
        f"{name}.{key}": _on_cpu(value, copy=True)
        for optimizer in optimizers
        for name, parameter in parameters.items()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer_tensors(
    model: nn.Module, optimizers: Sequence[Optimizer], tensors: Mapping[str, Tensor]
) -> None:
    """Set the optimisers' state from what `optimizer_tensors` made.

    Raises:
        KeyError: a tensor of a parameter that the model does not have.
    """
    parameters = dict(model.named_parameters())
    owners = {p: o for o in optimizers for group in o.param_groups for p in group["params"]}
    for full_name, tensor in tensors.items():
        if full_name.endswith(RAW):
            continue
        name, _, key = full_name.rpartition(".")
        parameter = parameters[name]
        owners[parameter].state[parameter][key] = tensor.to(
            parameter.device, copy=True
        )  # not the file's pages


def _on_cpu(tensor: Tensor, copy: bool) -> Tensor:
    return tensor.to("cpu", copy=copy).contiguous()


@torch.no_grad()
def move_average(average: nn.Module, model: nn.Module, decay: float) -> None:
    """average = decay * average + (1 - decay) * weights, parameter by parameter."""
    for mean, weight in zip(average.parameters(), model.parameters(), strict=True):
        mean.lerp_(weight, 1 - decay)
