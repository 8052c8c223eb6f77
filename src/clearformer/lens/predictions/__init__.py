"""Predictions: of the model, and of each of its layers."""
