"""Measures of a trained run, and probes: functions that give values by their names."""
