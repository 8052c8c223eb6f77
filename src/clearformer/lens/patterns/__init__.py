"""Attention patterns: of a text that reads itself, and of one that reads another."""
