"""The state of training: a checkpoint of it is a copy, and sets another state to the bit."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from clearformer.errors import ConfigError
from clearformer.training.config import RunConfig
from clearformer.training.store.checkpoint import Progress
from clearformer.training.store.state import (
    TrainState,
    load_optimizer_tensors,
    move_average,
    optimizer_tensors,
    weights_of,
)

OPTIMIZERS = ("adam", "adamw", "muon")


def state_of(config: RunConfig) -> TrainState:
    config = config.replace(model=config.model.replace(vocab_size=17))
    return TrainState.build(config, torch.device("cpu"))


def step(state: TrainState, seed: int = 0) -> None:
    """One step on random tokens, and the average after it."""
    tokens = torch.randint(17, (3, 5), generator=torch.Generator().manual_seed(seed))
    for optimizer in state.optimizers:
        optimizer.zero_grad()
    state.model(tokens).square().mean().backward()
    for optimizer in state.optimizers:
        optimizer.step()
    if state.average is not None:
        move_average(state.average, state.model, 0.9)


@pytest.fixture(params=OPTIMIZERS)
def config(request: pytest.FixtureRequest, configure: Callable[..., RunConfig]) -> RunConfig:
    return configure(f"train.optimizer={request.param}", "train.ema=0.9")


def test_a_checkpoint_stays_as_it_is_while_training_goes_on(config: RunConfig) -> None:
    """It is written by a thread beside the training."""
    state = state_of(config)
    step(state)
    checkpoint = state.checkpoint(Progress(step=1))
    before = {name: tensor.clone() for name, tensor in (checkpoint.model | checkpoint.optimizer).items()}

    step(state, seed=1)

    now = checkpoint.model | checkpoint.optimizer
    assert all(torch.equal(now[name], tensor) for name, tensor in before.items())
    later = state.checkpoint(Progress(step=2))
    assert not any(torch.equal(later.model[name], tensor) for name, tensor in checkpoint.model.items())


def test_a_state_that_is_set_from_a_checkpoint_goes_on_to_the_bit(config: RunConfig) -> None:
    state, other = state_of(config), state_of(config.replace(seed=2))
    step(state)
    other.load(state.checkpoint(Progress(step=1)))

    for each in (state, other):
        step(each, seed=1)

    one, two = (each.checkpoint(Progress(step=2)) for each in (state, other))
    assert one.model.keys() == two.model.keys()
    assert one.optimizer.keys() == two.optimizer.keys()
    for mine, theirs in ((one.model, two.model), (one.optimizer, two.optimizer)):
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_the_average_is_what_is_used_and_the_weights_lie_beside_it(config: RunConfig) -> None:
    state = state_of(config)
    step(state)
    checkpoint = state.checkpoint(Progress(step=1))

    assert state.weights_to_use is state.average
    for name, weight in state.model.state_dict().items():
        assert torch.equal(checkpoint.optimizer[f"{name}.weight_now"], weight)
    assert state.average is not None
    for name, weight in state.average.state_dict().items():
        assert torch.equal(checkpoint.model[name], weight)

    state.restart_average()
    for name, weight in state.average.state_dict().items():
        assert torch.equal(weight, state.model.state_dict()[name])


def test_without_an_average_the_weights_are_used(configure: Callable[..., RunConfig]) -> None:
    state = state_of(configure())

    assert state.average is None
    assert state.weights_to_use is state.model
    assert not any("weight_now" in name for name in state.checkpoint(Progress()).optimizer)


def test_an_average_moves_by_one_minus_its_decay() -> None:
    average, model = torch.nn.Linear(2, 1, bias=False), torch.nn.Linear(2, 1, bias=False)
    average.weight.data, model.weight.data = torch.tensor([[1.0, 2.0]]), torch.tensor([[2.0, -2.0]])

    move_average(average, model, decay=0.75)

    torch.testing.assert_close(average.weight.data, torch.tensor([[1.25, 1.0]]))


def test_the_state_of_another_optimizer_is_refused(configure: Callable[..., RunConfig]) -> None:
    adam, muon = (state_of(configure(f"train.optimizer={name}")) for name in ("adamw", "muon"))
    for each in (adam, muon):
        step(each)
    kept = optimizer_tensors(muon.model, muon.optimizers)

    with pytest.raises(RuntimeError, match=r"train\.optimizer keeps .* for a parameter, but it has "):
        load_optimizer_tensors(adam.model, adam.optimizers, kept)


def test_a_tensor_of_a_parameter_that_is_not_there_is_refused(configure: Callable[..., RunConfig]) -> None:
    state = state_of(configure())

    with pytest.raises(KeyError, match=r"blocks\.9\.x"):
        load_optimizer_tensors(state.model, state.optimizers, {"blocks.9.x.exp_avg": torch.zeros(1)})


class Counting(torch.optim.SGD):
    """Steps by the number of those before, which it counts in its group, as schedule-free optimizers do."""

    __module__ = "elsewhere"

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["k"] = group.get("k", 0) + 1
            group["lr"] = 0.1 / group["k"]
        return super().step(closure)


def test_what_an_optimizer_counts_in_its_groups_comes_back() -> None:
    one, other = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    ours, fresh = Counting(one.parameters(), lr=0.1), Counting(other.parameters(), lr=0.1)
    for _ in range(3):
        ours.step()

    load_optimizer_tensors(other, [fresh], optimizer_tensors(one, [ours]))

    assert fresh.param_groups[0]["k"] == 3
    assert fresh.param_groups[0]["lr"] == 0.1  # of the schedule


def test_numbers_of_an_optimizer_come_back_as_they_were_and_anything_else_is_refused() -> None:
    model = torch.nn.Linear(2, 1, bias=False)
    one, other = (torch.optim.SGD(model.parameters(), 0.1) for _ in range(2))
    numbers = {"step": 3, "rate": 0.1, "is_warm": True}
    one.state[model.weight] |= numbers
    load_optimizer_tensors(model, [other], optimizer_tensors(model, [one]))
    assert repr(other.state[model.weight]) == repr(numbers)

    one.state[model.weight]["history"] = [1.0]
    with pytest.raises(ConfigError, match=r"keeps tensors and numbers .*; weight\.history is \[1\.0\]$"):
        optimizer_tensors(model, [one])


def test_the_average_has_the_buffers_of_now() -> None:
    model: Any = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    average: Any = copy.deepcopy(model)
    with torch.no_grad():
        model(torch.randn(8, 3))
    move_average(average, model, 0.9)
    assert model[1].running_mean.any()
    assert torch.equal(average[1].running_mean, model[1].running_mean)
    model[1].running_mean = torch.ones(7)  # a table that has grown
    move_average(average, model, 0.9)
    assert average[1].running_mean.tolist() == [1.0] * 7


def test_a_weight_with_two_names_is_saved_under_both(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    model[1].weight = model[0].weight
    save_file(weights_of(model), tmp_path / "weights.safetensors")
    saved = load_file(tmp_path / "weights.safetensors")
    assert torch.equal(saved["0.weight"], saved["1.weight"])
