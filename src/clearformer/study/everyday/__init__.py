"""Everyday questions: sweeps over settings, comparisons of runs, plots of their curves."""
