"""Predictions: of the model, and of each of its layers."""

from clearformer.lens.predictions.classes import ClassChance, Classes, classes
from clearformer.lens.predictions.logit_lens import Guess, Layer, LogitLens, logit_lens
from clearformer.lens.predictions.next_tokens import NextTokens, next_tokens
from clearformer.lens.predictions.tuned_lens import TunedLens, tune

__all__ = [
    "ClassChance",
    "Classes",
    "Guess",
    "Layer",
    "LogitLens",
    "NextTokens",
    "TunedLens",
    "classes",
    "logit_lens",
    "next_tokens",
    "tune",
]
