"""Locating a model's training examples in the files that they were read from."""
