"""How order enters the model: none, sinusoidal, learned, RoPE, ALiBi.

Each kind overrides at most one of three methods: `embed` (vectors added to the token embeddings), `rotate` (queries and
keys turned by their positions) or `bias` (numbers added to the attention scores).

Shapes: B batch, T query positions, S key positions, D d_model, H heads, Dh head size.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field, PositiveFloat
from torch import Tensor, nn

from clearformer.config import Spec
from clearformer.errors import ConfigError
from clearformer.model.shapes import Bias, KeyPositions, Queries, QueryPositions


@dataclass(frozen=True)
class Sizes:
    """The sizes of the stack that positions are built for, and whether it is causal."""

    d_model: int
    n_heads: int
    d_head: int
    max_seq_len: int
    causal: bool = True


class Positions(nn.Module):
    """Positions that have no effect; the base of the other kinds."""

    def embed(self, pos: Int[Tensor, "*B T"]) -> Float[Tensor, "*B T D"] | None:
        """Return vectors to add to the token embeddings, or None."""
        return None

    def rotate(self, x: Queries, pos: QueryPositions) -> Queries:
        """Return queries or keys turned by their positions."""
        return x

    def bias(self, q_pos: QueryPositions, k_pos: KeyPositions) -> Bias | None:
        """Return numbers to add to the attention scores, or None."""
        return None


SAID_BY = {"embeds": "embed", "rotates": "rotate", "adds_bias": "bias"}
"""The flag of a kind that says which method its module overrides."""


def build_positions(kind: "PositionBase", sizes: Sizes) -> Positions:
    """Return a kind's module.

    Raises:
        ConfigError: a flag of the kind is not true of it, so that its effect would be left out where it is asked for.
    """
    positions = kind.build(sizes)
    if not isinstance(positions, Positions):
        raise ConfigError(
            f"model.position: {type(kind).__name__}.build returns a {type(positions).__name__}; derive that from "
            "clearformer.model.positions.Positions"
        )
    for flag, method in SAID_BY.items():
        overrides = getattr(type(positions), method) is not getattr(Positions, method)
        if overrides != getattr(kind, flag):
            raise ConfigError(
                f"model.position: {type(positions).__name__} has {'' if overrides else 'no '}{method} of its own: "
                f"set {flag}: ClassVar[bool] = {overrides} in {type(kind).__name__}"
            )
    return positions


class ConstantTables(Positions, ABC):
    """Positions read from constant tables, which are never saved and stay float32 when the model is cast.

    Angles and distances rounded to bfloat16 would merge neighbouring positions, so a cast computes the tables again
    (on the CPU, because not every device has the float64 in which some are computed).
    """

    def __init__(self, spec: Any, sizes: Sizes) -> None:
        super().__init__()
        self.spec, self.sizes = spec, sizes
        for name, table in self.tables().items():
            self.register_buffer(name, table, persistent=False)

    @abstractmethod
    def tables(self) -> dict[str, Tensor]:
        """Return the constants by name."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "ConstantTables":
        super()._apply(fn, recurse)
        for name, table in self.tables().items():
            setattr(self, name, table.to(getattr(self, name).device))
        return self


class PositionBase(Spec, ABC):
    """Base of the kinds of positions."""

    embeds: ClassVar[bool] = False  # whether it adds vectors to the token embeddings
    rotates: ClassVar[bool] = False  # whether it turns queries and keys
    adds_bias: ClassVar[bool] = False  # whether it adds numbers to the attention scores

    @abstractmethod
    def build(self, sizes: Sizes) -> Positions:
        """Return the module."""

    def check_heads(self, d_head: int) -> None:
        """Raise ConfigError where heads of this size do not fit."""


class NoPositions(PositionBase):
    """No positions: attention does not know the order of the tokens that it reads (lecture 000, section 6.2)."""

    kind: Literal["none"] = "none"

    def build(self, sizes: Sizes) -> Positions:
        return Positions()


class Sinusoidal(PositionBase):
    """PE(t, 2i) = sin(t / 10000^(2i/d)), PE(t, 2i+1) = cos(t / 10000^(2i/d)) (Vaswani et al. 2017, 3.5).

    PE(t+k) is a linear function of PE(t): each pair of dimensions turns by a fixed angle (lectures 002, 4.3; 004, 4.2).

    Attributes:
        interleaved: Whether each sine is next to its cosine, as in the formula; else all sines come first (Marian).
    """

    kind: Literal["sinusoidal"] = "sinusoidal"
    embeds: ClassVar[bool] = True
    interleaved: bool = True

    def build(self, sizes: Sizes) -> Positions:
        return SinusoidalPositions(self, sizes)


class SinusoidalPositions(ConstantTables):
    table: Tensor

    def tables(self) -> dict[str, Tensor]:
        return {"table": sinusoidal_table(self.sizes.d_model, self.sizes.max_seq_len, self.spec.interleaved)}

    def embed(self, pos: Int[Tensor, "*B T"]) -> Float[Tensor, "*B T D"]:
        return self.table[pos]


def sinusoidal_table(d_model: int, max_seq_len: int, interleaved: bool = True) -> Float[Tensor, "S D"]:
    """Return the encodings of all positions: sines in even dimensions and cosines in odd ones, or all sines first."""
    pos = torch.arange(max_seq_len, dtype=torch.float64)[:, None]
    even = torch.arange(0, d_model, 2, dtype=torch.float64)
    angles = pos / 10_000 ** (even / d_model)
    if not interleaved:
        return torch.cat([angles.sin(), angles.cos()], dim=1)[:, :d_model].float()
    pairs = torch.stack([angles.sin(), angles.cos()], dim=-1)  # [S D/2 2]
    return pairs.flatten(1)[:, :d_model].float()


class Learned(PositionBase):
    """One trained vector per position (GPT-2, BERT; lecture 004, section 4.2)."""

    kind: Literal["learned"] = "learned"
    embeds: ClassVar[bool] = True

    def build(self, sizes: Sizes) -> Positions:
        return LearnedPositions(sizes.d_model, sizes.max_seq_len)


class LearnedPositions(Positions):
    def __init__(self, d_model: int, max_seq_len: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(max_seq_len, d_model))

    def embed(self, pos: Int[Tensor, "*B T"]) -> Float[Tensor, "*B T D"]:
        return self.weight[pos]


class RoPE(PositionBase):
    """Queries and keys turned by position-proportional angles (Su et al. 2021; lectures 002, 4.3; 004, 4.2).

    The score of a query at t and a key at s then depends on t - s alone. Dimension i is paired with i + n/2 (as
    in Llama), not with its neighbour (as in the paper): the same rotation up to a fixed order of the dimensions.

    Attributes:
        theta: The base of the frequencies, theta^(-2i/n) radians per position.
        fraction: The fraction of each head's dimensions that is turned, the first n of them (GPT-NeoX turns 0.25).
    """

    kind: Literal["rope"] = "rope"
    rotates: ClassVar[bool] = True
    theta: PositiveFloat = 10_000.0
    fraction: float = Field(default=1.0, gt=0, le=1)

    def rotated_dims(self, d_head: int) -> int:
        return int(d_head * self.fraction)

    def check_heads(self, d_head: int) -> None:
        n_rotated = self.rotated_dims(d_head)
        if n_rotated < 2 or n_rotated % 2:
            raise ConfigError(
                f"model.position.fraction: rope rotates pairs of dimensions, but {self.fraction:g} of heads of "
                f"{d_head} is {n_rotated}; choose a fraction or a head size that gives an even number"
            )

    def build(self, sizes: Sizes) -> Positions:
        return RotaryPositions(self, sizes)


class RotaryPositions(ConstantTables):
    cos: Tensor
    sin: Tensor

    def tables(self) -> dict[str, Tensor]:
        n_rotated = self.spec.rotated_dims(self.sizes.d_head)
        return rotary_tables(n_rotated, self.spec.theta, self.sizes.max_seq_len)

    def rotate(self, x: Queries, pos: QueryPositions) -> Queries:
        cos, sin = (table[pos].unsqueeze(-2).to(x.dtype) for table in (self.cos, self.sin))  # [*B T 1 n/2]
        half = cos.shape[-1]
        first, second, rest = x.split([half, half, x.shape[-1] - 2 * half], dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)


def rotary_tables(n_rotated: int, theta: float, max_seq_len: int) -> dict[str, Tensor]:
    """Return the cosines and sines of every position's angles, [S n/2].

    All in float32, as in other implementations: more exact angles would differ from theirs at late positions.
    """
    exponents = torch.arange(0, n_rotated, 2, dtype=torch.float32) / n_rotated
    angles = torch.outer(torch.arange(max_seq_len, dtype=torch.float32), 1.0 / theta**exponents)
    return {"cos": angles.cos(), "sin": angles.sin()}


class ALiBi(PositionBase):
    """A penalty on the scores that grows with distance, with its own slope for each head (Press et al. 2022).

    Lecture 004, section 4.2.
    """

    kind: Literal["alibi"] = "alibi"
    adds_bias: ClassVar[bool] = True

    def build(self, sizes: Sizes) -> Positions:
        return LinearBiases(self, sizes)


class LinearBiases(ConstantTables):
    slopes: Tensor  # [H]

    def tables(self) -> dict[str, Tensor]:
        return {"slopes": torch.tensor(alibi_slopes(self.sizes.n_heads))}

    def bias(self, q_pos: QueryPositions, k_pos: KeyPositions) -> Bias:
        distance = (q_pos.unsqueeze(-1) - k_pos.unsqueeze(-2)).abs()  # [*B T S]
        return -self.slopes[:, None, None] * distance.unsqueeze(-3)


def alibi_slopes(n_heads: int) -> list[float]:
    """Return the slopes of ALiBi's n heads: 2^(-8/n), 2^(-16/n), ... where n is a power of two.

    For other n the paper's own code takes the slopes of the next lower power of two, and then every other slope of
    the next higher one.
    """
    lower = 2 ** math.floor(math.log2(n_heads))
    slopes = [2 ** (-8 * (i + 1) / lower) for i in range(lower)]
    return slopes + [2 ** (-4 * (i + 1) / lower) for i in range(0, 2 * (n_heads - lower), 2)]
