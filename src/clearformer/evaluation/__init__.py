"""Evaluating models: held-out loss and the figures derived from it, and information measures."""

from clearformer.evaluation.language_model import Evaluation, evaluate_split, evaluate_whole_and_part

__all__ = ["Evaluation", "evaluate_split", "evaluate_whole_and_part"]
