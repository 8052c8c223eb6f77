"""Attention patterns: of a text that reads itself, and of one that reads another."""

from clearformer.lens.patterns.alignment import Alignment, alignment
from clearformer.lens.patterns.attention import AttentionPatterns, attention
from clearformer.lens.patterns.head_pattern import HeadPattern, head_pattern
from clearformer.lens.patterns.overview import AttentionOverview, attention_overview

__all__ = [
    "Alignment",
    "AttentionOverview",
    "AttentionPatterns",
    "HeadPattern",
    "alignment",
    "attention",
    "attention_overview",
    "head_pattern",
]
