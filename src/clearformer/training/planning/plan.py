"""The cost of a run before it is made: parameters, FLOPs, memory and time."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from clearformer.cost import (
    analytic_flops,
    analytic_matrices,
    analytic_parameters,
    if_known,
    measured_flops,
    measured_parameters,
)
from clearformer.cost.rates import Rate
from clearformer.errors import ConfigError
from clearformer.model.build import build_on_meta
from clearformer.model.config import ModelConfig
from clearformer.results import Result, short
from clearformer.training.config import TrainConfig
from clearformer.training.planning import duration
from clearformer.training.planning.memory import MemoryBytes, part_size, training_memory

Counted = TypeVar("Counted", bound="ParameterCounts | TokenFlops | MemoryBytes")

MOST_BYTES_EACH = 16
"""An upper bound of the bytes for an element of a tensor, temporaries included."""

MOST_BUILT_LAYERS = 12
"""Layers of a stack that are built; a deeper one is extrapolated from two, as all further layers are alike."""


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

    Of pairs, those of one token of the source and one of the target. With R-Drop, those of both passes.

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
    flops = for_every_layer(lambda each: count_flops(each, train.n_passes), model)
    memory = for_every_layer(lambda each: training_memory(each, train, device_type), model)
    tokens_per_step = train.objective.tokens_per_step(train.batch_size, model.max_seq_len)
    seconds_per_step = None if rate is None else duration.seconds_per_step(model, train, rate)
    steps, seconds = duration.steps_and_seconds(train, seconds_per_step)
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


def count_flops(config: ModelConfig, n_passes: int = 1) -> TokenFlops:
    """A model's FLOPs a token that it reads so many times, by count and by formula."""
    seq_len = config.max_seq_len
    counted = measured_flops(build_on_meta(config), seq_len)
    formula = if_known(analytic_flops, config, seq_len)
    return TokenFlops(
        forward=n_passes * sum(counted.forward.values()) / seq_len,
        backward=n_passes * sum(counted.backward.values()) / seq_len,
        by_formula=None if formula is None else n_passes * formula.total / seq_len,
        by_component={component: n_passes * flops / seq_len for component, flops in counted.forward.items()},
    )
