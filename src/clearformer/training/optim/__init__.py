"""Optimizers and the schedules of their learning rates."""
