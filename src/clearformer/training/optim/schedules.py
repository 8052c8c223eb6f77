"""Learning rate schedules: constant, inverse square root, cosine, warm-up-stable-decay.

Each schedule returns the factor by which `train.lr` is multiplied. All begin with `train.warmup_steps` steps of
linear warm-up. `progress` is the fraction of the run after the warm-up that is done, from 0 to 1, by the nearest of the
run's limits in steps or seconds. So a run of fixed time decays like a run of a fixed number of steps.
"""

import math
from typing import Annotated, Any, Literal

from pydantic import Field

from clearformer.config import Spec
from clearformer.errors import ConfigError, shown


class Constant(Spec):
    """The same rate from the warm-up to the end (lecture 000, section 4: Adam at 3e-4)."""

    kind: Literal["constant"] = "constant"

    def after_warmup(self, step: int, warmup_steps: int, progress: float) -> float:
        return 1.0


class InverseSqrt(Spec):
    """sqrt(warmup / step) after the warm-up (Vaswani et al. 2017, 5.3; lecture 004, section 4.8).

    With train.lr = (d_model * warmup_steps)^-0.5 this is the paper's schedule exactly.
    """

    kind: Literal["inverse_sqrt"] = "inverse_sqrt"

    def after_warmup(self, step: int, warmup_steps: int, progress: float) -> float:
        return math.sqrt(max(warmup_steps, 1) / (step + 1))


class Cosine(Spec):
    """Half a cosine from 1 down to `final` (Loshchilov and Hutter 2017; lecture 004, section 4.8)."""

    kind: Literal["cosine"] = "cosine"
    final: float = Field(default=0.1, ge=0, le=1)

    def after_warmup(self, step: int, warmup_steps: int, progress: float) -> float:
        return self.final + (1 - self.final) * 0.5 * (1 + math.cos(math.pi * progress))


class WarmupStableDecay(Spec):
    """1 until the last fraction `decay` of the run, then a straight line down to `final` (Hu et al. 2024)."""

    kind: Literal["wsd"] = "wsd"
    decay: float = Field(default=0.4, gt=0, le=1)
    final: float = Field(default=0.0, ge=0, le=1)

    def after_warmup(self, step: int, warmup_steps: int, progress: float) -> float:
        remaining = min(1.0, (1 - progress) / self.decay)
        return self.final + (1 - self.final) * remaining


Schedule = Annotated[Constant | InverseSqrt | Cosine | WarmupStableDecay, Field(discriminator="kind")]


def lr_factor(schedule: Schedule, step: int, warmup_steps: int, progress: float) -> float:
    """Return the factor of the learning rate for step `step`, counted from 0.

    Raises:
        ConfigError: a user's `after_warmup` returns anything but a finite number.
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    factor = schedule.after_warmup(step, warmup_steps, progress)
    if not _is_finite(factor):
        raise ConfigError(
            f"train.schedule.kind: {type(schedule).__name__}.after_warmup must return a finite number; "
            f"got {shown(factor)} for step {step + 1}"
        )
    return factor


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except (TypeError, ValueError, OverflowError):
        return False
