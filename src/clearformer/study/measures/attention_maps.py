"""Measure of whether attention weights tell what a prediction depends on (lecture 004, section 4.10).

Shapes: T positions, L layers, H heads, V vocabulary.
"""

import statistics
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearformer.hooks import Hook
from clearformer.lens import quiet
from clearformer.lens.learning.agreement import rank_correlation
from clearformer.model import Transformer
from clearformer.run import Run
from clearformer.study.measures.held_out import text_split
from clearformer.study.measures.stream import rows_of, windows_of
from clearformer.study.study import Values

SCORES, PATTERN = "blocks.{}.attn.hook_attn_scores", "blocks.{}.attn.hook_pattern"


@torch.no_grad()
def weights_against_effects(run: Run, n_windows: int = 32, n_tokens: int = 48) -> Values:
    """Compare how much the last position reads each earlier one with how much its prediction changes without it.

    The effect of a position is the total variation between the next-token probabilities and those without it: no head
    of the last position may read it (attention knockout, Geva et al. 2023). Other positions read it as before.

    Returns:
        rank_correlation: Spearman's correlation of weights, averaged over layers and heads, and effects of removal in
            all layers; the mean over windows.
        by_layer: Rows of the layer and the same for its own weights and removal in it alone.
        same: The share of windows in which the position that is read most has the largest effect.
        other: The share of windows in which another one has.
    """
    windows = windows_of(text_split(run), n_windows, n_tokens).to(next(run.model.parameters()).device)
    layers = range(run.model.config.n_layers)
    of_all, by_layer, same = [], [[] for _ in layers], []
    with quiet(run.model):
        for tokens in windows:
            weights = last_weights(run.model, tokens)
            effects = effects_without_each(run.model, tokens, layers)
            of_all.append(rank_correlation(weights.mean(0), effects))
            same.append(float(weights.mean(0).argmax() == effects.argmax()))
            for layer in layers:
                alone = effects_without_each(run.model, tokens, [layer])
                by_layer[layer].append(rank_correlation(weights[layer], alone))
    return {
        "rank_correlation": statistics.fmean(of_all),
        "by_layer": rows_of([statistics.fmean(each) for each in by_layer]),
        "same": statistics.fmean(same),
        "other": 1 - statistics.fmean(same),
    }


def last_weights(model: Transformer, tokens: Int[Tensor, " T"]) -> Float[np.ndarray, "L T-1"]:
    """Return the weights of the last position on each earlier one, averaged over heads, by layer."""
    _, cache = model.run_with_cache(tokens[None], names=[PATTERN.format("*")])
    return np.stack([pattern[0, :, -1, :-1].mean(0).cpu().numpy() for pattern in cache.values()])


def effects_without_each(
    model: Transformer, tokens: Int[Tensor, " T"], layers: Sequence[int]
) -> Float[np.ndarray, " T-1"]:
    """Return the change of the last prediction when it may not read one earlier position in some layers, for each."""
    n = len(tokens) - 1
    rows = torch.arange(n, device=tokens.device)

    def removed(scores: Tensor, _: Hook) -> Tensor:
        scores = scores.clone()
        scores[rows, :, -1, rows] = -torch.inf  # row i may not read position i
        return scores

    whole = model(tokens[None])[0, -1].double().softmax(-1)
    with model.hooked({SCORES.format(layer): removed for layer in layers}):
        without = model(tokens.expand(n, -1))[:, -1].double().softmax(-1)
    return ((without - whole).abs().sum(-1) / 2).cpu().numpy()
