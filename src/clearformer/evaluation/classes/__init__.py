"""Evaluating classifiers, and a baseline to compare them with."""
