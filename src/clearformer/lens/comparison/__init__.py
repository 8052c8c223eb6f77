"""Comparing two runs: their heads, their weights, activations and losses, and a head moved from one to the other."""

from clearformer.lens.comparison.changes import Difference, beside, difference
from clearformer.lens.comparison.differences import Differences, Distance, TokenLoss, differences
from clearformer.lens.comparison.heads import HeadMatch, HeadMatches, match_heads
from clearformer.lens.comparison.transplant import Transplant, transplant

__all__ = [
    "Difference",
    "Differences",
    "Distance",
    "HeadMatch",
    "HeadMatches",
    "TokenLoss",
    "Transplant",
    "beside",
    "difference",
    "differences",
    "match_heads",
    "transplant",
]
