"""The training behind a prediction: the windows that favour it, and the run trained without them."""

from clearformer.lens.learning.agreement import Agreement, Compared, check_tracin
from clearformer.lens.learning.counterfactual import Counterfactual, counterfactual
from clearformer.lens.learning.tracin import Learned, TrainingWindow, tracin

__all__ = [
    "Agreement",
    "Compared",
    "Counterfactual",
    "Learned",
    "TrainingWindow",
    "check_tracin",
    "counterfactual",
    "tracin",
]
