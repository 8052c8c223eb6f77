"""Attention heads, scored by what they do."""
