"""The estimated cost of a run: parameters, FLOPs, memory and time."""

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
from clearformer.results import Result
from clearformer.training.config import TrainConfig
from clearformer.training.planning import duration
from clearformer.training.planning.memory import MemoryBytes, part_size, training_memory

Counted = TypeVar("Counted", bound="ParameterCounts | TokenFlops | MemoryBytes")

MOST_BYTES_EACH = 16
"""An upper bound of the bytes for an element of a tensor, temporaries included."""

MOST_BUILT_LAYERS = 12
"""The most layers to build; a deeper stack is extrapolated from two shallower ones, as further layers are alike."""


@dataclass(frozen=True)
class ParameterCounts:
    """The number of a model's parameters.

    Attributes:
        total: Counted in the built model.
        by_formula: The same number by formula, from the configuration alone; None if a kind has no formula.
        matrices: By formula without biases and norms, as the lectures count.
        by_component: The parts of `total`.
    """

    total: int
    by_formula: int | None
    matrices: int | None
    by_component: dict[str, int]


@dataclass(frozen=True)
class TokenFlops:
    """FLOPs per token in a sequence of the model's maximum length; see `cost` for what counts.

    For pairs, they are of one source token and one target token. With R-Drop, they are of both passes.

    Attributes:
        forward: Counted in the built model.
        backward: Likewise.
        by_formula: Both together by formula, from the configuration alone; None if a kind has no formula.
        by_component: The parts of `forward`.
    """

    forward: float
    backward: float
    by_formula: float | None
    by_component: dict[str, float]


@dataclass(frozen=True, repr=False, eq=False)
class Plan(Result):
    """The estimated cost of a run; its fields are those of `clearformer plan --json`.

    Attributes:
        tokens_per_step: The tokens of a full batch; for pairs, those of either side.
        steps: `train.max_steps`, or the steps expected within the run's time limits if these come first.
        seconds: The estimated seconds of training.
        seconds_per_step: FLOPs of a step's tokens / (rate * utilisation), without those of the optimizer and of logits
            that the loss does not need.
        rate: The rate that the estimates assume. Without one, no time is estimated.
    """

    parameters: ParameterCounts
    flops_per_token: TokenFlops
    memory_bytes: MemoryBytes
    tokens_per_step: int
    steps: int | None
    seconds: float | None
    seconds_per_step: float | None
    rate: Rate | None

    def _values(self) -> dict[str, Any]:
        return {
            "parameters": self.parameters.total,
            "flops_per_token": self.flops_per_token.forward + self.flops_per_token.backward,
            "peak_bytes": self.memory_bytes.peak,
            "steps": self.steps,
            "seconds": self.seconds,
        }


def plan(model: ModelConfig, train: TrainConfig, rate: Rate | None = None, device_type: str = "cpu") -> Plan:
    """Estimate the cost of training `model` with the settings `train`.

    Args:
        model: The model's settings, with the size of its vocabulary.
        train: The training settings, with `dtype` decided (not `auto`).
        rate: The FLOPs per second of the device in that dtype.
        device_type: The type of the device, as torch names it.

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
    """Count a deep model by building a shallower one and adding the same amount for each further layer.

    This is exact for counts that grow equally with every layer. Peak memory does so once the layers, and not the parts
    around them, decide when the peak is reached.
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
    """Return the numbers of a dataclass, including those in its mappings."""
    values = [getattr(counted, field.name) for field in fields(counted)]
    return [number for value in values for number in (value.values() if isinstance(value, dict) else [value])]


def _with_numbers(counted: Counted, numbers: Iterator[Any]) -> Counted:
    """Return the dataclass with other numbers, in the order of `_numbers`."""
    values = {field.name: getattr(counted, field.name) for field in fields(counted)}
    return replace(
        counted,
        **{
            name: {key: next(numbers) for key in value} if isinstance(value, dict) else next(numbers)
            for name, value in values.items()
        },
    )


def check_countable(model: ModelConfig, train: TrainConfig) -> None:
    """Refuse sizes with which a tensor would have more bytes than torch can count; torch's own error is unreadable.

    Raises:
        ConfigError: a tensor would be too large; the message names the largest size.
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
    raise ConfigError(f"{key}: {sizes[key]:,} is too large: the byte count of a tensor would overflow")


def count_parameters(config: ModelConfig) -> ParameterCounts:
    """Return a model's parameters, by count and by formula."""
    counted = measured_parameters(build_on_meta(config))
    formula, matrices = if_known(analytic_parameters, config), if_known(analytic_matrices, config)
    return ParameterCounts(
        total=sum(counted.values()),
        by_formula=None if formula is None else sum(formula.values()),
        matrices=None if matrices is None else sum(matrices.values()),
        by_component=counted,
    )


def count_flops(config: ModelConfig, n_passes: int = 1) -> TokenFlops:
    """Return a model's FLOPs per token over `n_passes` passes, by count and by formula."""
    seq_len = config.max_seq_len
    counted = measured_flops(build_on_meta(config), seq_len)
    formula = if_known(analytic_flops, config, seq_len)
    return TokenFlops(
        forward=n_passes * sum(counted.forward.values()) / seq_len,
        backward=n_passes * sum(counted.backward.values()) / seq_len,
        by_formula=None if formula is None else n_passes * formula.total / seq_len,
        by_component={component: n_passes * flops / seq_len for component, flops in counted.forward.items()},
    )
