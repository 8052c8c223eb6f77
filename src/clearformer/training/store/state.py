"""The state of training, and its conversion to and from the named tensors of checkpoints."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from clearformer.config import is_packaged
from clearformer.device import RANDOM_NUMBERS
from clearformer.errors import ConfigError, shown
from clearformer.model import Transformer, build
from clearformer.training.config import RunConfig
from clearformer.training.optim.optimizers import build_optimizers
from clearformer.training.store.checkpoint import Checkpoint, Progress

RAW = ".weight_now"  # marks the trained weights if the checkpoint's model is their moving average
NUMBER = ".number"  # marks a number of Python's in an optimizer's state, which is no tensor there
GROUPS = "optimizer_groups."  # begins the name of a value in a group of an optimizer's parameters
RATES = ("lr", "peak_lr")  # of a group; set before each step


@dataclass(frozen=True)
class TrainState:
    """The tensors that change from step to step.

    Attributes:
        model: The model that is trained.
        average: A model with the moving average of its weights, if the run keeps one.
        optimizers: The optimizers of its parameters.
    """

    model: Transformer
    average: Transformer | None
    optimizers: list[Optimizer]

    @classmethod
    def build(cls, config: RunConfig, device: torch.device) -> Self:
        """Return the first state of a new run; its weights are drawn from the seed."""
        with RANDOM_NUMBERS:
            torch.manual_seed(config.seed)
            model = build(config.model).to(device)
        average = copy.deepcopy(model).eval() if config.train.ema else None
        train = config.train
        optimizers = build_optimizers(train.optimizer, model, train.lr, train.matrix_dtype)
        return cls(model, average, optimizers)

    @property
    def weights_to_use(self) -> Transformer:
        """The model that is evaluated and saved: the moving average, where there is one."""
        return self.model if self.average is None else self.average

    def all_weights(self) -> Iterator[Tensor]:
        """Yield the model's parameters and buffers, and those of the average where there is one."""
        for model in (self.model, self.average):
            if model is not None:
                yield from model.parameters()
                yield from model.buffers()

    def restart_average(self) -> None:
        """Set the average to the model's weights."""
        if self.average is not None:
            self.average.load_state_dict(self.model.state_dict())

    def checkpoint(self, progress: Progress) -> Checkpoint:
        """Return copies on the CPU of everything that is needed to resume from here."""
        weights = weights_of(self.weights_to_use, copy=True)
        raw = {} if self.average is None else raw_weights_of(self.model)
        return Checkpoint(progress, weights, optimizer_tensors(self.model, self.optimizers) | raw)

    def load(self, checkpoint: Checkpoint) -> None:
        """Load the state of a checkpoint.

        Raises:
            KeyError, RuntimeError: it is of another model.
        """
        self.weights_to_use.load_state_dict(checkpoint.model)
        if self.average is not None:
            load_raw_weights(self.model, checkpoint.optimizer)
        load_optimizer_tensors(self.model, self.optimizers, checkpoint.optimizer)


def weights_of(model: nn.Module, copy: bool = False) -> dict[str, Tensor]:
    """Return a model's weights on the CPU, by name; with `copy`, later changes of the model do not affect them.

    No two share memory, which files of weights cannot express: a weight with two names is copied for the second.
    """
    weights: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, value in model.state_dict(keep_vars=True).items():
        weights[name] = _on_cpu(value.detach(), copy or id(value) in seen)
        seen.add(id(value))
    return weights


def are_equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Whether two models' weights are equal to the bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def raw_weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of a model's weights, under names that mark them as the trained weights, not the average."""
    return {name + RAW: value for name, value in weights_of(model, copy=True).items()}


def load_raw_weights(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load the weights that `raw_weights_of` returned into a model."""
    model.load_state_dict({n.removesuffix(RAW): t for n, t in tensors.items() if n.endswith(RAW)})


def optimizer_tensors(model: nn.Module, optimizers: Sequence[Optimizer]) -> dict[str, Tensor]:
    """Return copies of the optimizers' state as `PARAMETER.KEY`, such as `blocks.0.attn.W_Q.weight.exp_avg`.

    Raises:
        ConfigError: a value is neither a tensor nor a number.
    """
    parameters = dict(model.named_parameters())
    of_parameters = (
        _kept(f"{name}.{key}", value)
        for optimizer in optimizers
        for name, parameter in parameters.items()
        for key, value in optimizer.state.get(parameter, {}).items()
    )
    of_groups = (_kept(GROUPS + place, group[key]) for place, group, key in _in_groups(optimizers))
    return dict(of_parameters) | dict(of_groups)


def _in_groups(optimizers: Sequence[Optimizer]) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield what a user's optimizers may count in their groups, such as steps: its place, its group and its key."""
    for n, optimizer in enumerate(optimizers):
        if is_packaged(type(optimizer)) or type(optimizer).__module__.startswith("torch."):
            continue  # which keep settings alone there
        for i, group in enumerate(optimizer.param_groups):
            for key, value in group.items():
                if isinstance(value, int | float | Tensor) and key not in RATES:
                    yield f"{n}.{i}.{key}", group, key


def _kept(name: str, value: object) -> tuple[str, Tensor]:
    """Return the name and the tensor under which a checkpoint keeps a value of an optimizer's state."""
    if isinstance(value, Tensor):
        return name, _on_cpu(value, copy=True)
    if isinstance(value, int | float):  # a number of steps, say; True and False are ints too
        return name + NUMBER, torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)
    raise ConfigError(
        f"train.optimizer: a checkpoint keeps tensors and numbers of an optimizer's state; {name} is {shown(value)}"
    )


def load_optimizer_tensors(
    model: nn.Module, optimizers: Sequence[Optimizer], tensors: Mapping[str, Tensor]
) -> None:
    """Load the state that `optimizer_tensors` returned into the optimizers.

    Raises:
        KeyError: a tensor is of a parameter that the model does not have.
        RuntimeError: the state is of another optimizer.
    """
    parameters = dict(model.named_parameters())
    owners = {p: o for o in optimizers for group in o.param_groups for p in group["params"]}
    for full_name, tensor in tensors.items():
        if full_name.endswith(RAW):
            continue
        own_name = full_name.removesuffix(NUMBER)
        if own_name.startswith(GROUPS):
            n, i, key = own_name.removeprefix(GROUPS).split(".", 2)
            values, device = optimizers[int(n)].param_groups[int(i)], torch.device("cpu")
        else:
            name, _, key = own_name.rpartition(".")
            parameter = parameters[name]
            values, device = owners[parameter].state[parameter], parameter.device
        # A copy, not memory mapped from the file.
        values[key] = tensor.item() if full_name.endswith(NUMBER) else tensor.to(device, copy=True)
    for optimizer in optimizers:
        check_state_keys(optimizer)


def check_state_keys(optimizer: Optimizer) -> None:
    """Raise RuntimeError if an optimizer with `state_keys` holds other state for a parameter."""
    expected = getattr(optimizer, "state_keys", None)
    for state in optimizer.state.values():
        if expected is not None and state and set(state) != expected:
            wanted, found = (", ".join(sorted(keys)) for keys in (expected, state))
            raise RuntimeError(f"train.optimizer keeps {wanted} for a parameter, but it has {found}")


def _on_cpu(tensor: Tensor, copy: bool) -> Tensor:
    return tensor.to("cpu", copy=copy).contiguous()


@torch.no_grad()
def move_average(average: nn.Module, model: nn.Module, decay: float) -> None:
    """Set average = decay * average + (1 - decay) * weights, parameter by parameter; buffers are those of now."""
    for mean, weight in zip(average.parameters(), model.parameters(), strict=True):
        mean.lerp_(weight, 1 - decay)
    copies = dict(average.named_buffers())
    for name, buffer in model.named_buffers():
        if name in copies and copies[name].shape == buffer.shape:
            copies[name].copy_(buffer)
        else:  # it has grown, or is new
            module, _, last = name.rpartition(".")
            setattr(average.get_submodule(module), last, buffer.clone())
