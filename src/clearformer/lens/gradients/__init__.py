"""Gradients of a prediction or a loss, traced to the input, to each matrix, and to the training between checkpoints."""

from clearformer.lens.gradients.input_attribution import (
    InputAttribution,
    gradient_x_input,
    integrated_gradients,
    occlusion,
)
from clearformer.lens.gradients.loss_change import LossChanges, loss_changes, loss_changes_since
from clearformer.lens.gradients.matrices import MatrixGradient, WeightGradients, weight_gradients

__all__ = [
    "InputAttribution",
    "LossChanges",
    "MatrixGradient",
    "WeightGradients",
    "gradient_x_input",
    "integrated_gradients",
    "loss_changes",
    "loss_changes_since",
    "occlusion",
    "weight_gradients",
]
