"""Causes: what a model does when one of its activations or weights is changed."""

from clearformer.lens.causal.hook_gradients import Gradient, gradients_at
from clearformer.lens.causal.interventions import (
    Edit,
    Intervention,
    add,
    change,
    hooks_of,
    intervene,
    mean,
    patch,
    replace,
    resample,
    zero,
)
from clearformer.lens.causal.metrics import LogitDifference, MeanLoss, next_token_loss
from clearformer.lens.causal.patching import Effect, PatchEffects, patch_every
from clearformer.lens.causal.paths import PathEffect, patch_paths
from clearformer.lens.causal.sites import Site, heads_of, networks_of
from clearformer.lens.causal.weights import copy_without_heads, edited_copy
from clearformer.lens.causal.with_edits import Predicted, WithEdits, with_edits

__all__ = [
    "Edit",
    "Effect",
    "Gradient",
    "Intervention",
    "LogitDifference",
    "MeanLoss",
    "PatchEffects",
    "PathEffect",
    "Predicted",
    "Site",
    "WithEdits",
    "add",
    "change",
    "copy_without_heads",
    "edited_copy",
    "gradients_at",
    "heads_of",
    "hooks_of",
    "intervene",
    "mean",
    "networks_of",
    "next_token_loss",
    "patch",
    "patch_every",
    "patch_paths",
    "replace",
    "resample",
    "with_edits",
    "zero",
]
