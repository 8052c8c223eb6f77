"""Attention heads, scored by what they do."""

from clearformer.lens.heads.scores import (
    HeadHistory,
    HeadScore,
    HeadScores,
    head_scores,
    head_scores_by_checkpoint,
)

__all__ = ["HeadHistory", "HeadScore", "HeadScores", "head_scores", "head_scores_by_checkpoint"]
