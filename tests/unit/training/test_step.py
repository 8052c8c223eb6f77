"""One step of training."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from clearformer.training import step as step_module
from clearformer.training.config import RunConfig
from clearformer.training.nonfinite import NonFiniteValueError
from clearformer.training.processes.distributed import Processes
from clearformer.training.reporting.report import Reporter
from clearformer.training.setup import open_task
from clearformer.training.step import TrainStep, compiled_folder
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


class ProductTypes(TorchDispatchMode):
    """The types of the matrix products' results."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[torch.dtype] = set()

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        result = function(*arguments, **(options or {}))
        if any(name in function.name() for name in ("::mm", "::addmm", "::bmm", "::baddbmm")):
            self.seen.add(result.dtype)
        return result


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_step_multiplies_in_the_type_of_the_run_alone(
    made: Callable[..., TrainStep], optimizer: str, dtype: torch.dtype
) -> None:
    """The optimizer's products as well: a processor may lack one of the two types."""
    step = made(f"train.optimizer={optimizer}", f"train.dtype={str(dtype).removeprefix('torch.')}")
    with ProductTypes() as products:
        step.take(Progress())
    assert products.seen == {dtype}


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_loss_and_norms_are_fetched_together(
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

    assert [tensor.shape for tensor in fetched] == [(2 + len(step.parameters),)]
    assert transfers.scalars == 0
    assert [result.loss, result.grad_norm, *result.parameter_norms.values()] == tolist(fetched[0])


def test_the_norm_is_torchs_and_that_of_the_parameters_norms(made: Callable[..., TrainStep]) -> None:
    """To the bit: the whole norm decides how far gradients are clipped."""
    step, other = made("model.dropout=0.1"), made("model.dropout=0.1")
    other.gradients(0)
    parameters = dict(other.model.named_parameters())

    result = step.take(Progress())

    assert result.parameter_norms.keys() == parameters.keys()
    for name, norm in result.parameter_norms.items():
        gradient = parameters[name].grad
        assert gradient is not None
        assert norm == pytest.approx(gradient.double().norm().item(), rel=1e-6)
    assert result.grad_norm == torch.nn.utils.get_total_norm([p.grad for p in parameters.values()]).item()  # type: ignore[misc]


def test_the_rates_of_a_step_may_be_given(made: Callable[..., TrainStep]) -> None:
    step = made("train.optimizer=muon", "train.lr=0.25", "train.max_seconds=9")
    step.lr_factor = lambda progress: 0.5 + progress.step

    result = step.take(Progress(seconds=8.9))

    assert (result.lr_factor, result.lr) == (0.5, 0.125)
    muon, adamw = step.state.optimizers
    assert (muon.param_groups[0]["lr"], adamw.param_groups[0]["lr"]) == (0.125, 0.5 * 3e-3)


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
    norm = float(torch.linalg.vector_norm(free.parameter_norms()[1]))
    near = made(f"train.grad_clip_norm={norm * (1 + 1e-7):.12f}")
    for step in (free, clipped, near):
        step.state.model.zero_grad()
        step.take(Progress())

    for name, value in free.state.model.state_dict().items():
        assert torch.equal(clipped.state.model.state_dict()[name], value)
        assert torch.equal(near.state.model.state_dict()[name], value)


def test_compiled_steps_are_kept_for_the_processor_that_they_were_compiled_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A folder may be shared by machines, and torch's keys are the same on all of them."""
    monkeypatch.setenv("CLEARFORMER_CACHE", str(tmp_path))
    here = compiled_folder()
    assert here == compiled_folder()
    assert here.is_relative_to(tmp_path)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "another")
    assert compiled_folder() != here


def test_a_step_is_compiled_into_that_folder(
    made: Callable[..., TrainStep], monkeypatch: pytest.MonkeyPatch
) -> None:
    folders: list[Path] = []
    monkeypatch.setattr("clearformer.training.step.compile_step", lambda function, **_: function)
    monkeypatch.setattr(
        "clearformer.training.step.kernels_together",
        lambda folder, ended: (folders.append(folder), nullcontext())[1],
    )
    made().compile(Reporter())
    assert folders == [compiled_folder()]


def test_the_trial_of_a_compiled_step_changes_no_buffer(
    made: Callable[..., TrainStep], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = made()
    model: Any = step.model
    model.register_buffer("n_read", torch.zeros(()))
    model.register_buffer("in_place", torch.zeros(()))
    alias = model.in_place

    def counting(loss: Callable[..., Tensor], **_: Any) -> Callable[..., Tensor]:
        def counted(*batch: Tensor) -> Tensor:
            model.n_read = model.n_read + 1
            alias.add_(1)
            return loss(*batch)

        return counted

    monkeypatch.setattr(step_module, "compile_step", counting)
    monkeypatch.setattr(step_module, "kernels_together", lambda *_: nullcontext())
    step.compile(Reporter())
    assert model.n_read == model.in_place == alias == 0
    step.gradients(0)
    assert model.n_read == model.in_place == alias == 1
