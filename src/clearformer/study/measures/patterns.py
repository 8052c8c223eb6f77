"""Measures of who reads whom: the weight that stays with a token itself, and one whole pattern."""

import numpy as np

from clearformer import lens
from clearformer.run import Run
from clearformer.study.measures.held_out import text_split
from clearformer.study.study import Values
from clearformer.training.store.state import TrainState

LENGTH = 128  # tokens of held-out text that are read


def self_weight(run: Run) -> Values:
    """The part of its attention that a token gives to itself, before training and after (lecture 000, section 4.3).

    Equal weights would give the mean of 1/t over the positions t.

    Returns:
        self_weight_first, self_weight: The mean over positions, layers and heads, with the first and the last weights.
        largest_weight: The mean of the largest weight of each position, with the last weights.
        equal_self_weight: What equal weights would give.
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
    """The weights of one head over a text, row t what position t reads (lecture 000, figure 4.5).

    Returns:
        pattern: [T T], and `tokens` its labels.
        above_diagonal: The largest weight that a position gives to a later one; 0 under a causal mask.
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
    """The run as its training began."""
    device = next(run.model.parameters()).device
    return Run(TrainState.build(run.config, device).model.eval(), run.tokenizer, run.config)


def patterns(run: Run, tokens: list[int]) -> np.ndarray:
    """All patterns of a text, [N T T]."""
    return np.concatenate([np.asarray(each) for each in lens.attention(run, tokens).patterns.values()])


def diagonal(weights: np.ndarray) -> np.ndarray:
    """The weight that each position gives to itself, [N T]."""
    return np.diagonal(weights, axis1=1, axis2=2)


def held_out_tokens(run: Run, n: int) -> list[int]:
    """The first tokens of a run's held-out text."""
    text = text_split(run)
    return text.read(0, min(n, len(text))).tolist()
