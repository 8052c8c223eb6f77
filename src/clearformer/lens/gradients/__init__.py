"""Gradients of a prediction or a loss, traced to the input, to each matrix, and to the training between checkpoints."""
