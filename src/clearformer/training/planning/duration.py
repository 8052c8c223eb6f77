"""The time of a run, estimated from its FLOPs, and whether compiling its step is worth the wait."""

import math

import torch

from clearformer.cost import analytic_flops, if_known, measured_flops
from clearformer.cost.parameters import head_matrix
from clearformer.cost.rates import Rate, measured_rate
from clearformer.model.build import build_on_meta
from clearformer.model.config import ModelConfig
from clearformer.training.config import TrainConfig

# The time to compile a small model's step on two CPU cores, and the fraction of the step's time that this saved
# (benchmarks/RESULTS.md).
COMPILE_SECONDS = 15.0
COMPILE_SAVES = 0.25
USUAL_START = 0.2
"""The part of a run's time that may go by before its first step without being counted: starting takes some seconds."""


def compile_pays(
    model: ModelConfig, train: TrainConfig, dtype: str, device: torch.device, gone: float = 0.0
) -> bool:
    """Whether compiling the step is likely to gain more than it costs.

    A run that is limited by steps or by the clock must save more time than compiling takes. A run that is limited by
    seconds of training gains steps instead; these are worth the wait if it lasts at least twice as long as compiling.
    `gone` are the seconds of wall-clock time since the command began: where a large text has taken much of the time to
    prepare, what is left decides.
    """
    rate = measured_rate(dtype, device, seconds=0.2)
    each = seconds_per_step(model, train, rate)
    by_steps = math.inf if train.max_steps is None else train.max_steps * each
    by_clock = math.inf if train.max_wall_seconds is None else train.max_wall_seconds
    by_clock -= gone if gone > USUAL_START * by_clock else 0.0
    if train.max_seconds is not None and train.max_seconds < min(by_steps, by_clock):
        return train.max_seconds >= 2 * COMPILE_SECONDS
    return pays_within(min(by_steps, by_clock))


def pays_within(seconds: float) -> bool:
    """Whether compiling saves more of this time than it takes."""
    return seconds * COMPILE_SAVES >= COMPILE_SECONDS


def seconds_per_step(model: ModelConfig, train: TrainConfig, rate: Rate) -> float:
    """Estimate the seconds of a step from the FLOPs of its tokens, without logits that the loss does not need."""
    seq_len = model.max_seq_len
    flops = if_known(analytic_flops, model, seq_len) or measured_flops(build_on_meta(model), seq_len)
    flops_per_token = flops.total / seq_len
    without_logits = 1 - train.objective.logits_fraction
    if without_logits:
        flops_per_token -= without_logits * 6 * head_matrix(model).size
    tokens_per_step = train.objective.tokens_per_step(train.batch_size, model.max_seq_len)
    return train.n_passes * flops_per_token * tokens_per_step / (rate.flops_per_second * rate.utilisation)


def steps_and_seconds(train: TrainConfig, each: float | None) -> tuple[int | None, float | None]:
    """Return the steps and seconds of a run that ends at the nearest of its limits, given the seconds per step."""
    if each is None:
        return train.max_steps, None
    by_steps = math.inf if train.max_steps is None else train.max_steps * each
    by_seconds = min(train.max_seconds or math.inf, train.max_wall_seconds or math.inf)
    if by_steps <= by_seconds:
        return train.max_steps, by_steps
    steps = by_seconds / each
    return (math.ceil(steps) if math.isfinite(steps) else None), by_seconds
