"""Faster forms of the step for one new token."""
