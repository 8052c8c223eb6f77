"""Evaluation of models: held-out loss and what follows from it, and information measures."""

from clearformer.evaluation.language_model import Evaluation, evaluate_split

__all__ = ["Evaluation", "evaluate_split"]
