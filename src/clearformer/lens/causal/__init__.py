"""Causes: what a model does when one of its activations or weights is changed."""
