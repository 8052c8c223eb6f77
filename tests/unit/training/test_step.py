"""One step of training."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from clearformer.training.config import RunConfig
from clearformer.training.nonfinite import NonFiniteValueError
from clearformer.training.processes.distributed import Processes
from clearformer.training.setup import open_task
from clearformer.training.step import TrainStep
from clearformer.training.store.checkpoint import Progress
from clearformer.training.store.state import TrainState

CPU = torch.device("cpu")


@pytest.fixture
def made(configure: Callable[..., RunConfig]) -> Callable[..., TrainStep]:
    """The steps of a tiny run with some settings."""

    def made(*settings: str) -> TrainStep:
        task, config = open_task(configure(*settings), CPU, Processes())
        return TrainStep(config, task, TrainState.build(config, CPU), CPU, Processes())

    return made


class Transfers(TorchDispatchMode):
    """Counts the values that are fetched from the device one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.scalars = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        self.scalars += function is torch.ops.aten._local_scalar_dense.default
        return function(*arguments, **(options or {}))


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_loss_and_norm_are_fetched_together(
    made: Callable[..., TrainStep], monkeypatch: pytest.MonkeyPatch, optimizer: str
) -> None:
    """In one transfer a step, and no other value with it: each would hold a GPU up."""
    step = made(f"train.optimizer={optimizer}", "train.grad_clip_norm=0.01", "train.grad_accum_steps=2")
    fetched: list[Tensor] = []
    tolist = torch.Tensor.tolist

    def counting(tensor: Tensor) -> Any:
        fetched.append(tensor)
        return tolist(tensor)

    monkeypatch.setattr(torch.Tensor, "tolist", counting)

    with Transfers() as transfers:
        result = step.take(Progress())

    assert [tensor.shape for tensor in fetched] == [(2,)]
    assert transfers.scalars == 0
    assert (result.loss, result.grad_norm) == tuple(tolist(fetched[0]))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("what", ["loss", "gradient"])
@pytest.mark.parametrize("clip", ["none", "1.0"])
def test_a_step_that_is_not_finite_is_never_applied(
    made: Callable[..., TrainStep], bad: float, what: str, clip: str
) -> None:
    step = made(f"train.grad_clip_norm={clip}", "train.ema=0.5")
    model = step.state.model
    if what == "loss":
        spoilt = step.loss_of_batch
        step.compute_loss = lambda *batch: spoilt(*batch) + bad
    else:
        model.get_parameter("blocks.0.mlp.W_out.weight").register_hook(lambda gradient: gradient + bad)
    before = {name: value.clone() for name, value in model.state_dict().items()}

    with pytest.raises(NonFiniteValueError, match=what):
        step.take(Progress())

    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert step.state.average is not None
    for name, value in step.state.average.state_dict().items():
        assert torch.equal(value, before[name])
    assert not any(optimizer.state for optimizer in step.state.optimizers)


def test_a_norm_within_the_limit_leaves_the_gradients_as_they_are(made: Callable[..., TrainStep]) -> None:
    """To the bit: also a norm just below it, where the general formula would scale."""
    free, clipped = made("train.grad_clip_norm=none"), made("train.grad_clip_norm=1000.0")
    free.gradients(0)
    norm = float(free.gradient_norm())
    near = made(f"train.grad_clip_norm={norm * (1 + 1e-7):.12f}")
    for step in (free, clipped, near):
        step.state.model.zero_grad()
        step.take(Progress())

    for name, value in free.state.model.state_dict().items():
        assert torch.equal(clipped.state.model.state_dict()[name], value)
        assert torch.equal(near.state.model.state_dict()[name], value)
