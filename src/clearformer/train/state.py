"""Weights and optimiser state as named tensors, which is what checkpoints hold."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

RAW = ".weight_now"  # marks the trained weights, where the checkpoint's model is their moving average


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """A model's weights on the CPU, by name."""
    return {name: value.detach().contiguous().cpu() for name, value in model.state_dict().items()}


def raw_weights_of(model: nn.Module) -> dict[str, Tensor]:
    """The same, under names that mark them as the trained weights beside an average."""
    return {name + RAW: value for name, value in weights_of(model).items()}


def load_raw_weights(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Set a model's weights from what `raw_weights_of` made."""
    model.load_state_dict({n.removesuffix(RAW): t for n, t in tensors.items() if n.endswith(RAW)})


def optimizer_tensors(model: nn.Module, optimizers: Sequence[Optimizer]) -> dict[str, Tensor]:
    """The optimisers' state: `PARAMETER.KEY`, such as `blocks.0.attn.W_Q.weight.exp_avg`."""
    parameters = dict(model.named_parameters())
    return {
        f"{name}.{key}": value.contiguous().cpu()
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


@torch.no_grad()
def move_average(average: nn.Module, model: nn.Module, decay: float) -> None:
    """average = decay * average + (1 - decay) * weights, parameter by parameter."""
    for mean, weight in zip(average.parameters(), model.parameters(), strict=True):
        mean.lerp_(weight, 1 - decay)
