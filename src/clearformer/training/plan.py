"""The cost of a run before it is made: parameters, FLOPs, memory and time."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from clearformer.cost import (
    Flops,
    LiveBytes,
    NoFormulaError,
    analytic_flops,
    analytic_matrices,
    analytic_parameters,
    measured_flops,
    measured_parameters,
)
from clearformer.cost.parameters import head_matrix
from clearformer.cost.rates import Rate, measured_rate
from clearformer.device import autocast
from clearformer.errors import ConfigError
from clearformer.model.attention import Attention
from clearformer.model.build import build_on_meta, build_undrawn
from clearformer.model.config import ModelConfig
from clearformer.results import Result, short
from clearformer.training.config import TrainConfig
from clearformer.training.tasks import task_type
from clearformer.training.tasks.task import FullBatch

Known = TypeVar("Known")
Counted = TypeVar("Counted", bound="ParameterCounts | TokenFlops | MemoryBytes")

# What compiling a small model's step took on two CPU cores, and the part of a step's time that it saved there
# (benchmarks/RESULTS.md).
COMPILE_SECONDS = 25.0
COMPILE_SAVES = 0.25

MOST_BYTES_EACH = 16
"""An upper bound of the bytes for an element of a tensor, temporaries included."""

MOST_BUILT_LAYERS = 12
"""Layers of a stack that are built; a deeper one is extrapolated from two, as all further layers are alike."""

# --- memory -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MemoryBytes:
    """Bytes that one process trains with.

    Attributes:
        weights: Kept for the whole run, like the optimiser's.
        gradients: Of all weights, complete at the end of the backward pass.
        optimizer: All its state, and the moving average of the weights where there is one.
        activations: What the forward pass leaves for the backward pass, the loss's log-probabilities included.
        peak: The most that is alive at once, passing results included. Not the sum of the others: gradients come
            as activations go (but stay where a batch is accumulated in parts), and the backward pass begins with
            gradients of the logits.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    peak: int


def training_memory(model_config: ModelConfig, train: TrainConfig, device_type: str = "cpu") -> MemoryBytes:
    """The memory of training, measured on two steps of the model itself, whose tensors are given none.

    Every text is as long as the model reads: of shorter ones, and of the last batch of an epoch, it is less.

    The kernels are those of torch on a CPU, uncompiled; a compiled step keeps less. What an allocator rounds up
    and what a GPU's context and libraries take comes on top.

    Raises:
        ConfigError: the vocabulary's size is not set.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode  # takes half a second to import

    with FakeTensorMode(), LiveBytes() as live:
        model = build_undrawn(model_config)
        if device_type == "cuda":
            _skip_attention_dropout(model)
        averages = [torch.empty_like(p) for p in model.parameters()] if train.ema else []
        optimizers = train.optimizer.build(model, train.lr)
        micro_batch = _MicroBatch(model, train, device_type)
        activations = micro_batch.run(live)
        gradients = _n_bytes(p.grad for p in model.parameters() if p.grad is not None)
        _update(optimizers)
        live.peak = live.now  # the first step makes the optimisers' state; a later one finds it there
        for _ in range(min(train.grad_accum_steps, 2)):  # and a second part finds the gradients of the first
            micro_batch.run(live)
        _update(optimizers)
        states = [state for optimizer in optimizers for state in optimizer.state.values()]
        return MemoryBytes(
            weights=_n_bytes(model.parameters()),
            gradients=gradients,
            optimizer=_n_bytes(value for state in states for value in state.values()) + _n_bytes(averages),
            activations=activations,
            peak=live.peak,
        )


def _skip_attention_dropout(model: nn.Module) -> None:
    """Leave out attention's dropout: a CPU's kernels keep the pattern for it, and a GPU's fused kernel does not."""
    for module in model.modules():
        if isinstance(module, Attention):
            module.dropout = 0.0


class _MicroBatch:
    """A micro-batch of the largest size that there is, and the loss of it that the run's task has."""

    def __init__(self, model: Any, train: TrainConfig, device_type: str) -> None:
        self.model, self.task = model, task_type(train.objective)
        tensors = self.task.full_batch(*part_size(model.config, train))
        self.batch = FullBatch(tensors, train, on_gpu=device_type == "cuda")

    def run(self, live: LiveBytes) -> int:
        """Forward and backward; returns the bytes that the forward pass keeps for the backward pass."""
        before = live.now
        with autocast(self.batch.tensors[0].device, self.batch.train.dtype):
            loss = self.task.full_loss(self.model, self.batch)
        activations = live.now - before
        loss.backward()
        return activations


def part_size(model: ModelConfig, train: TrainConfig) -> tuple[int, int]:
    """The texts in one part of a batch, and the tokens in each, where all are as long as the model reads."""
    seq_len = model.max_seq_len
    return train.objective.texts_per_part(train.batch_size, train.grad_accum_steps, seq_len), seq_len


def _update(optimizers: list[Optimizer]) -> None:
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def _n_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


# --- the plan ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ParameterCounts:
    """Parameters.

    Attributes:
        total: Counted in the built model.
        by_formula: The same, by the configuration's arithmetic alone; None where a kind has no formula.
        matrices: The formula's without biases and norms, as the lectures count.
        by_component: The parts of `total`.
    """

    total: int
    by_formula: int | None
    matrices: int | None
    by_component: dict[str, int]


@dataclass(frozen=True)
class TokenFlops:
    """FLOPs of a token in a text as long as the model reads; see `cost` for what counts.

    Of pairs, those of one token of the source and one of the target.

    Attributes:
        forward: Counted in the built model.
        backward: Likewise.
        by_formula: Both together, by the configuration's arithmetic alone; None where a kind has no formula.
        by_component: The parts of `forward`.
    """

    forward: float
    backward: float
    by_formula: float | None
    by_component: dict[str, float]


@dataclass(frozen=True, repr=False, eq=False)
class Plan(Result):
    """The cost of a run; its fields are those of `clearformer plan --json`.

    Attributes:
        tokens_per_step: Of the whole batch, where it is full; of pairs, those of either side.
        steps: `train.max_steps`, or those expected within `train.max_seconds` where that limit comes first.
        seconds: Of training, an estimate.
        seconds_per_step: FLOPs of a step's tokens / (rate * utilisation); those of the optimiser are left out, and
            those of logits that the loss does not need.
        rate: What the estimates assume. Without one, no time is estimated.
    """

    parameters: ParameterCounts
    flops_per_token: TokenFlops
    memory_bytes: MemoryBytes
    tokens_per_step: int
    steps: int | None
    seconds: float | None
    seconds_per_step: float | None
    rate: Rate | None

    def __repr__(self) -> str:
        values = {
            "parameters": self.parameters.total,
            "flops_per_token": self.flops_per_token.forward + self.flops_per_token.backward,
            "peak_bytes": self.memory_bytes.peak,
            "steps": self.steps,
            "seconds": self.seconds,
        }
        return f"Plan({', '.join(f'{name}={short(value)}' for name, value in values.items())})"


def plan(model: ModelConfig, train: TrainConfig, rate: Rate | None = None, device_type: str = "cpu") -> Plan:
    """The cost of training `model` as `train` says.

    Args:
        model: With its vocabulary's size.
        train: With its dtype decided (not `auto`).
        rate: Of the device, in that dtype.
        device_type: What kind of device that is, in torch's words.

    Raises:
        ConfigError: the vocabulary's size is not set, or a size is so large that nothing can be counted.
    """
    check_countable(model, train)
    parameters = for_every_layer(count_parameters, model)
    flops = for_every_layer(count_flops, model)
    memory = for_every_layer(lambda each: training_memory(each, train, device_type), model)
    tokens_per_step = train.objective.tokens_per_step(train.batch_size, model.max_seq_len)
    seconds_per_step = None if rate is None else _seconds_per_step(model, train, rate)
    steps, seconds = _course(train, seconds_per_step)
    return Plan(
        parameters=parameters,
        flops_per_token=flops,
        memory_bytes=memory,
        tokens_per_step=tokens_per_step,
        steps=steps,
        seconds=seconds,
        seconds_per_step=seconds_per_step,
        rate=rate,
    )


def for_every_layer(count: Callable[[ModelConfig], Counted], model: ModelConfig) -> Counted:
    """The counts of a model with many layers: of the first some of them, and so much for each further one.

    What grows by the same with every layer is so counted exactly. The peak of memory does, once the layers and not what
    is around them decide when it is reached.
    """
    depths = {"n_layers": model.n_layers}
    if model.family == "encoder-decoder":
        depths["n_decoder_layers"] = model.decoder_layers
    built = model.replace(**{key: min(depth, MOST_BUILT_LAYERS) for key, depth in depths.items()})
    counted = count(built)
    whole = _numbers(counted)
    for key, depth in depths.items():
        if depth > MOST_BUILT_LAYERS:
            one_less = count(built.replace(**{key: MOST_BUILT_LAYERS - 1}))
            further = depth - MOST_BUILT_LAYERS
            of_one = zip(_numbers(counted), _numbers(one_less), strict=True)
            whole = [
                None if sum_ is None else sum_ + further * (more - less)
                for sum_, (more, less) in zip(whole, of_one, strict=True)
            ]
    return _with_numbers(counted, iter(whole))


def _numbers(counted: Any) -> list[Any]:
    """The numbers of a dataclass, and of the mappings in it."""
    values = [getattr(counted, field.name) for field in fields(counted)]
    return [number for value in values for number in (value.values() if isinstance(value, dict) else [value])]


def _with_numbers(counted: Counted, numbers: Iterator[Any]) -> Counted:
    """The same dataclass with other numbers, in the order of `_numbers`."""
    values = {field.name: getattr(counted, field.name) for field in fields(counted)}
    return replace(
        counted,
        **{
            name: {key: next(numbers) for key in value} if isinstance(value, dict) else next(numbers)
            for name, value in values.items()
        },
    )


def check_countable(model: ModelConfig, train: TrainConfig) -> None:
    """Refuse sizes of which a tensor would have more bytes than torch counts, which torch does not say in one line.

    Raises:
        ConfigError: names the largest size.
    """
    n_texts, length = part_size(model, train)
    one_layer = {"n_layers": 1} | ({"n_decoder_layers": 1} if model.family == "encoder-decoder" else {})
    shallow = model.replace(**one_layer)
    by_formula = if_known(analytic_parameters, shallow)
    parameters = sum((by_formula or measured_parameters(build_on_meta(shallow))).values())
    n_heads, _ = model.attention.heads(model.d_model)
    widest = parameters // model.d_model + model.d_model
    if MOST_BYTES_EACH * max(parameters, n_texts * length * max(widest, n_heads * length)) < 2**63:
        return
    sizes = {
        f"model.{name}": size
        for name, size in model.model_dump().items()
        if isinstance(size, int) and name not in ("n_layers", "n_decoder_layers")
    }
    sizes |= {"model.ffn.d_ff": getattr(model.ffn, "d_ff", None) or 0, "train.batch_size": train.batch_size}
    sizes |= {
        f"train.objective.{name}": size
        for name, size in train.objective.model_dump().items()
        if isinstance(size, int)
    }
    key = max(sizes, key=lambda key: sizes[key])
    raise ConfigError(
        f"{key}: {sizes[key]:,} is too large: a tensor would have more bytes than can be counted"
    )


def if_known(formula: Callable[..., Known], *arguments: Any) -> Known | None:
    """The result of a formula; None where a kind of one's own has none."""
    try:
        return formula(*arguments)
    except NoFormulaError:
        return None


def total_flops(flops: Flops) -> int:
    """Of all components, forward and backward."""
    return sum(flops.forward.values()) + sum(flops.backward.values())


def count_parameters(config: ModelConfig) -> ParameterCounts:
    """A model's parameters, by count and by formula."""
    counted = measured_parameters(build_on_meta(config))
    formula, matrices = if_known(analytic_parameters, config), if_known(analytic_matrices, config)
    return ParameterCounts(
        total=sum(counted.values()),
        by_formula=None if formula is None else sum(formula.values()),
        matrices=None if matrices is None else sum(matrices.values()),
        by_component=counted,
    )


def count_flops(config: ModelConfig) -> TokenFlops:
    """A model's FLOPs a token, by count and by formula."""
    seq_len = config.max_seq_len
    counted = measured_flops(build_on_meta(config), seq_len)
    formula = if_known(analytic_flops, config, seq_len)
    return TokenFlops(
        forward=sum(counted.forward.values()) / seq_len,
        backward=sum(counted.backward.values()) / seq_len,
        by_formula=None if formula is None else total_flops(formula) / seq_len,
        by_component={component: flops / seq_len for component, flops in counted.forward.items()},
    )


def compile_pays(model: ModelConfig, train: TrainConfig, dtype: str, device: torch.device) -> bool:
    """Whether compiling the step is likely to gain more than it costs.

    A run of so many steps gains the part of its time that compiling saves. A run of so many seconds gains steps,
    which are worth waiting for where the run is at least twice as long as compiling.
    """
    rate = measured_rate(dtype, device, seconds=0.2)
    seconds_per_step = _seconds_per_step(model, train, rate)
    by_steps = math.inf if train.max_steps is None else train.max_steps * seconds_per_step
    if train.max_seconds is not None and train.max_seconds < by_steps:
        return train.max_seconds >= 2 * COMPILE_SECONDS
    return by_steps * COMPILE_SAVES >= COMPILE_SECONDS


def _seconds_per_step(model: ModelConfig, train: TrainConfig, rate: Rate) -> float:
    seq_len = model.max_seq_len
    flops = if_known(analytic_flops, model, seq_len) or measured_flops(build_on_meta(model), seq_len)
    flops_per_token = total_flops(flops) / seq_len
    without_logits = 1 - train.objective.logits_fraction
    if without_logits:
        flops_per_token -= without_logits * 6 * head_matrix(model).size
    tokens_per_step = train.objective.tokens_per_step(train.batch_size, model.max_seq_len)
    return flops_per_token * tokens_per_step / (rate.flops_per_second * rate.utilisation)


def _course(train: TrainConfig, seconds_per_step: float | None) -> tuple[int | None, float | None]:
    """Steps and seconds of a run that ends at the nearer of its limits."""
    if seconds_per_step is None:
        return train.max_steps, None
    by_steps = math.inf if train.max_steps is None else train.max_steps * seconds_per_step
    by_seconds = math.inf if train.max_seconds is None else train.max_seconds
    if by_steps <= by_seconds:
        return train.max_steps, by_steps
    steps = by_seconds / seconds_per_step
    return (math.ceil(steps) if math.isfinite(steps) else None), by_seconds
