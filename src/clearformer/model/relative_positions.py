"""Relative positions: a learned number for each head and distance, added to the attention scores (T5).

Shapes: B batch, T query positions, S key positions, H heads.
"""

import math
from typing import ClassVar, Literal

import torch
from jaxtyping import Int
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor, nn

from clearformer.model.positions import PositionBase, Positions, Sizes
from clearformer.model.shapes import Bias, KeyPositions, QueryPositions


class Relative(PositionBase):
    """A learned number for each head and bucket of distances, added to the scores (Raffel et al. 2020).

    All blocks of a stack share the numbers. Half of the buckets hold one short distance each; the others hold longer
    ones on a log scale up to `max_distance`. In a stack that is not causal, each direction has half of the buckets.
    """

    kind: Literal["relative"] = "relative"
    adds_bias: ClassVar[bool] = True
    n_buckets: int = Field(default=32, ge=4, multiple_of=4)
    max_distance: PositiveInt = 128

    @model_validator(mode="after")
    def _far_is_beyond_near(self) -> "Relative":
        if self.max_distance <= self.n_buckets // 2:
            raise ValueError(
                f"max_distance={self.max_distance} must be more than half of n_buckets={self.n_buckets}"
            )
        return self

    def build(self, sizes: Sizes) -> Positions:
        return RelativeBiases(self.n_buckets, self.max_distance, sizes.n_heads, sizes.causal)


class RelativeBiases(Positions):
    def __init__(self, n_buckets: int, max_distance: int, n_heads: int, causal: bool) -> None:
        super().__init__()
        self.n_buckets, self.max_distance, self.causal = n_buckets, max_distance, causal
        self.weight = nn.Parameter(torch.empty(n_buckets, n_heads))

    def bias(self, q_pos: QueryPositions, k_pos: KeyPositions) -> Bias:
        distance = q_pos.unsqueeze(-1) - k_pos.unsqueeze(-2)  # [*B T S]
        return self.weight[self.bucket(distance)].movedim(-1, -3)

    def bucket(self, distance: Int[Tensor, "*B T S"]) -> Int[Tensor, "*B T S"]:
        """Return each distance's bucket; unless causal, keys ahead have the second half of the buckets."""
        if self.causal:
            return distance_bucket(distance.clamp_min(0), self.n_buckets, self.max_distance)
        half = self.n_buckets // 2
        return distance_bucket(distance.abs(), half, self.max_distance) + half * (distance < 0)


def distance_bucket(distance: Int[Tensor, "*B"], n_buckets: int, max_distance: int) -> Int[Tensor, "*B"]:
    """Return the buckets of distances of 0 or more: near ones have their own, far ones share on a log scale."""
    n_near = n_buckets // 2
    octaves = torch.log(distance.clamp_min(1).float() / n_near) / math.log(max_distance / n_near)
    far = n_near + (octaves * (n_buckets - n_near)).long()
    return torch.where(distance < n_near, distance, far.clamp_max(n_buckets - 1))
