"""Measures of a trained run, and probes: functions that return named values."""
