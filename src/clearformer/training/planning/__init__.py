"""Estimates of what a run will cost."""
