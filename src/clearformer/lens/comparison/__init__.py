"""Comparing two runs: their heads, their weights, activations and losses, and a head moved from one to the other."""
