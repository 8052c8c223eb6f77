"""Measures of attention patterns: the weight of each position on itself, and one head's whole pattern."""

import numpy as np

from clearformer import lens
from clearformer.run import Run
from clearformer.study.measures.held_out import text_split
from clearformer.study.study import Values
from clearformer.training.store.state import TrainState

LENGTH = 128  # tokens of held-out text


def self_weight(run: Run) -> Values:
    """Measure the attention weight of each position on itself, before and after training (lecture 000, section 4.3).

    With equal weights, it would be the mean of 1/t over the positions t.

    Returns:
        self_weight_first, self_weight: The mean over positions, layers and heads, before and after training.
        largest_weight: The mean over positions of the largest weight, after training.
        equal_self_weight: The self-weight of equal weights.
    """
    tokens = held_out_tokens(run, min(LENGTH, run.model.config.max_seq_len))
    before, after = patterns(with_first_weights(run), tokens), patterns(run, tokens)
    return {
        "self_weight_first": float(np.mean(diagonal(before))),
        "self_weight": float(np.mean(diagonal(after))),
        "largest_weight": float(after.max(-1).mean()),
        "equal_self_weight": float(np.mean(1 / np.arange(1, len(tokens) + 1))),
    }


def pattern_of(run: Run, text: str, layer: int = 0, head: int = 0) -> Values:
    """Return the attention weights of one head on a text; row t has the weights of query t (lecture 000, figure 4.5).

    Returns:
        pattern: The weights [T T], with `tokens` as labels.
        above_diagonal: The largest weight of a query on a later position; 0 under a causal mask.
        row_sum_error: The largest distance of a row's sum from 1.
    """
    found = lens.attention(run, text, layer=layer, head=head)
    ((weights,),) = found.patterns.values()
    weights = np.asarray(weights, np.float64)
    return {
        "pattern": np.round(weights, 4),
        "tokens": found.tokens,
        "above_diagonal": float(np.triu(weights, 1).max()),
        "row_sum_error": float(np.abs(weights.sum(-1) - 1).max()),
    }


def with_first_weights(run: Run) -> Run:
    """Return the run with the weights at the start of its training."""
    device = next(run.model.parameters()).device
    return Run(TrainState.build(run.config, device).model.eval(), run.tokenizer, run.config)


def patterns(run: Run, tokens: list[int]) -> np.ndarray:
    """Return the patterns of all heads on a text, [N T T]."""
    return np.concatenate([np.asarray(each) for each in lens.attention(run, tokens).patterns.values()])


def diagonal(weights: np.ndarray) -> np.ndarray:
    """Return the weight of each position on itself, [N T]."""
    return np.diagonal(weights, axis1=1, axis2=2)


def held_out_tokens(run: Run, n: int) -> list[int]:
    """Return the first n tokens of a run's held-out text."""
    text = text_split(run)
    return text.read(0, min(n, len(text))).tolist()
