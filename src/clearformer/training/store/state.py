"""The state of training, and the named tensors by which checkpoints hold it."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from clearformer.model import Transformer, build
from clearformer.training.config import RunConfig
from clearformer.training.store.checkpoint import Checkpoint, Progress

RAW = ".weight_now"  # marks the trained weights, where the checkpoint's model is their moving average


@dataclass(frozen=True)
class TrainState:
    """The tensors that change from step to step.

    Attributes:
        model: The model that is trained.
        average: The moving average of its weights, where the run keeps one.
        optimizers: Those of its parameters.
    """

    model: Transformer
    average: Transformer | None
    optimizers: list[Optimizer]

    @classmethod
    def build(cls, config: RunConfig, device: torch.device) -> Self:
        """The state that a new run starts with: the first weights are drawn from the seed."""
        torch.manual_seed(config.seed)
        model = build(config.model).to(device)
        average = copy.deepcopy(model).eval() if config.train.ema else None
        train = config.train
        optimizers = train.optimizer.build(model, train.lr, train.matrix_dtype)
        for group in (group for optimizer in optimizers for group in optimizer.param_groups):
            group.setdefault("peak_lr", group["lr"])  # torch's own optimizers do not have it
        return cls(model, average, optimizers)

    @property
    def weights_to_use(self) -> Transformer:
        """The model that is evaluated and kept: the moving average, where there is one."""
        return self.model if self.average is None else self.average

    def restart_average(self) -> None:
        """Set the average to the model's weights."""
        if self.average is not None:
            self.average.load_state_dict(self.model.state_dict())

    def checkpoint(self, progress: Progress) -> Checkpoint:
        """Copies on the CPU of all that a run needs to go on from here."""
        weights = weights_of(self.weights_to_use, copy=True)
        raw = {} if self.average is None else raw_weights_of(self.model)
        return Checkpoint(progress, weights, optimizer_tensors(self.model, self.optimizers) | raw)

    def load(self, checkpoint: Checkpoint) -> None:
        """Set the state from a checkpoint.

        Raises:
            KeyError, RuntimeError: it is of another model.
        """
        self.weights_to_use.load_state_dict(checkpoint.model)
        if self.average is not None:
            load_raw_weights(self.model, checkpoint.optimizer)
        load_optimizer_tensors(self.model, self.optimizers, checkpoint.optimizer)


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
        RuntimeError: the state of another optimiser.
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
    for optimizer in optimizers:
        check_state_keys(optimizer)


def check_state_keys(optimizer: Optimizer) -> None:
    """Raise RuntimeError where an optimiser that says what it keeps of a parameter holds something else."""
    expected = getattr(optimizer, "state_keys", None)
    for state in optimizer.state.values():
        if expected is not None and state and set(state) != expected:
            wanted, found = (", ".join(sorted(keys)) for keys in (expected, state))
            raise RuntimeError(f"train.optimizer keeps {wanted} of a parameter, and it has {found}")


def _on_cpu(tensor: Tensor, copy: bool) -> Tensor:
    return tensor.to("cpu", copy=copy).contiguous()


@torch.no_grad()
def move_average(average: nn.Module, model: nn.Module, decay: float) -> None:
    """average = decay * average + (1 - decay) * weights, parameter by parameter."""
    for mean, weight in zip(average.parameters(), model.parameters(), strict=True):
        mean.lerp_(weight, 1 - decay)
