"""Attention patterns: of a text that reads itself, and of one that reads another."""

from clearformer.lens.patterns.alignment import Alignment, alignment
from clearformer.lens.patterns.attention import AttentionPatterns, attention

__all__ = ["Alignment", "AttentionPatterns", "alignment", "attention"]
