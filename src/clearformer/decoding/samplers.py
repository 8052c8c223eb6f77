"""How the next token is chosen: adjustments of the logits, in order, and then a draw.

Each adjustment is a function from logits to logits; a token that it rules out gets -inf. Their order and edge cases
are those of the logits processors of Hugging Face's transformers, so that the same settings mean the same:

    repetition penalty -> temperature -> top-k -> top-p -> min-p -> softmax -> draw

Shapes: B batch, V vocabulary.
"""

import math
from collections.abc import Collection, Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from pydantic import Field, PositiveFloat, PositiveInt, field_validator
from torch import Tensor

from clearformer.config import Spec, resolve
from clearformer.decoding.arguments import check_whole
from clearformer.errors import ConfigError

LOWEST_TEMPERATURE = 1e-6  # logits divided by less may overflow float32; 0 itself is greedy
LARGEST_PENALTY = 1e6  # the lowest is 1 / 1e6: logits times or divided by more may overflow too


class Sampling(Spec):
    """How tokens are chosen; the default draws from the model's own distribution.

    Attributes:
        temperature: The divisor of the logits; 0 chooses the likeliest token (greedy, lecture 003).
        top_k: Keep this many of the likeliest tokens.
        top_p: Keep the likeliest tokens that together have this probability.
        min_p: Keep tokens at least this many times as likely as the likeliest.
        repetition_penalty: Makes tokens that have occurred less likely (more than 1) or likelier (less than 1).
    """

    temperature: float = Field(default=1.0, ge=0)
    top_k: PositiveInt | None = None
    top_p: float | None = Field(default=None, gt=0, le=1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    repetition_penalty: PositiveFloat = 1.0

    @field_validator("temperature")
    @classmethod
    def _can_divide(cls, temperature: float) -> float:
        if 0 < temperature < LOWEST_TEMPERATURE:
            raise ConfigError(
                f"temperature takes 0 (greedy) or a number of at least {LOWEST_TEMPERATURE:g}; got "
                f"{temperature:g}"
            )
        return temperature

    @field_validator("repetition_penalty")
    @classmethod
    def _overflows_nothing(cls, penalty: float) -> float:
        if not 1 / LARGEST_PENALTY <= penalty <= LARGEST_PENALTY:
            raise ConfigError(
                f"repetition_penalty takes a number from {1 / LARGEST_PENALTY:g} to {LARGEST_PENALTY:g}; "
                f"got {penalty:g}"
            )
        return penalty

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is chosen and nothing is drawn."""
        return self.temperature == 0

    @property
    def takes_likeliest(self) -> bool:
        """Whether the model's likeliest token is chosen, without any adjustment."""
        return self.greedy and self.repetition_penalty == 1.0

    def adjust(
        self, logits: Float[Tensor, "B V"], previous_tokens: Sequence[Collection[int]]
    ) -> Float[Tensor, "B V"]:
        """Return the logits after all adjustments.

        Args:
            logits: The model's logits, in float32 or float64.
            previous_tokens: The tokens of each row so far, its prompt included; each of them once is enough.
        """
        adjusted = logits
        for _, adjusted in self.stages(logits, previous_tokens):  # noqa: B007
            pass
        return adjusted

    def stages(
        self, logits: Float[Tensor, "B V"], previous_tokens: Sequence[Collection[int]]
    ) -> Iterator[tuple[str, Float[Tensor, "B V"]]]:
        """Yield (setting, logits) after each adjustment that applies, in order; see `adjust`."""
        if self.repetition_penalty != 1.0:
            logits = penalize_repetition(logits, previous_tokens, self.repetition_penalty)
            yield "repetition_penalty", logits
        if self.greedy:  # nothing below changes the likeliest token
            return
        logits = apply_temperature(logits, self.temperature)
        yield "temperature", logits
        if self.top_k is not None:
            logits = keep_top_k(logits, self.top_k)
            yield "top_k", logits
        if self.top_p is not None:
            logits = keep_top_p(logits, self.top_p)
            yield "top_p", logits
        if self.min_p is not None:
            logits = keep_min_p(logits, self.min_p)
            yield "min_p", logits


def sampling_of(
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
) -> Sampling:
    """Return a `Sampling` of the given settings.

    Raises:
        ConfigError: a setting is out of range.
    """
    settings = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
    }
    return resolve(Sampling, settings)


# --- from logits to logits --------------------------------------------------------------------------------


def penalize_repetition(
    logits: Float[Tensor, "B V"], previous_tokens: Sequence[Collection[int]], penalty: float
) -> Float[Tensor, "B V"]:
    """Replace the score s of every token that has occurred by s / penalty if s > 0 and s * penalty if s < 0.

    This happens once per token, however often it occurs. Keskar et al. 2019 (CTRL), section 4.1, divide all scores;
    here negative ones are multiplied, because division would raise them.
    """
    seen = torch.zeros_like(logits, dtype=torch.bool)
    for row, tokens in zip(seen, previous_tokens, strict=True):
        row[torch.tensor(list(tokens), dtype=torch.long, device=row.device)] = True
    penalized = torch.where(logits < 0, logits * penalty, logits / penalty)
    return torch.where(seen, penalized, logits)


def apply_temperature(logits: Float[Tensor, "B V"], temperature: float) -> Float[Tensor, "B V"]:
    """s / temperature: sharper below 1, flatter above 1 (lecture 000, section 5.7)."""
    return logits / temperature


def keep_top_k(logits: Float[Tensor, "B V"], k: int) -> Float[Tensor, "B V"]:
    """Keep the k highest scores, and those equal to the lowest of them (Fan et al. 2018; lecture 003)."""
    lowest = logits.topk(min(k, logits.shape[-1])).values[..., -1:]
    return logits.masked_fill(logits < lowest, -math.inf)


def keep_top_p(logits: Float[Tensor, "B V"], p: float) -> Float[Tensor, "B V"]:
    """Nucleus sampling: keep the fewest likeliest tokens that have at least p (Holtzman et al. 2020; lecture 003).

    The least likely tokens are dropped as long as their total is 1 - p or less; the likeliest always stays.
    """
    ascending, tokens = logits.sort(dim=-1)
    too_unlikely = ascending.softmax(-1).cumsum(-1) <= 1 - p
    too_unlikely[..., -1] = False
    return logits.masked_fill(too_unlikely.scatter(-1, tokens, too_unlikely), -math.inf)


def keep_min_p(logits: Float[Tensor, "B V"], p: float) -> Float[Tensor, "B V"]:
    """Keep tokens whose probability is at least p times that of the likeliest (Nguyen et al. 2024)."""
    probabilities = logits.softmax(-1)
    least = p * probabilities.amax(-1, keepdim=True)
    return logits.masked_fill(probabilities < least, -math.inf)


# --- from logits to tokens --------------------------------------------------------------------------------


def random_stream(seed: int, row: int) -> np.random.Generator:
    """Return the random numbers of one row, which depend on the seed and the row alone.

    Raises:
        UserError: the seed is negative or not a whole number.
    """
    check_whole("seed", seed, least=0)
    return np.random.default_rng([seed, row])


def draw(logits: Float[Tensor, "B V"], streams: Sequence[np.random.Generator]) -> Int[Tensor, " B"]:
    """Draw a token for each row with probability softmax(logits), using one number of the row's own stream.

    The token is the first whose cumulative probability exceeds u, uniform on [0, 1). The sums are in float64 on the
    CPU: equal probabilities give equal tokens on every device, and rare tokens keep their share in a large vocabulary.
    """
    cumulative = logits.softmax(-1).cpu().double().cumsum(-1)
    u = cumulative.new_tensor([stream.random() for stream in streams]).unsqueeze(1)
    # u is at most 1 - 2^-53, so its product with the total is below the total even after rounding.
    return torch.searchsorted(cumulative, u * cumulative[:, -1:], right=True).squeeze(1)
