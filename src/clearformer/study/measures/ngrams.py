"""Learned next-token distributions beside those counted in the training text (lecture 000, section 4.1)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from clearformer.lens import quiet
from clearformer.run import Run
from clearformer.study.measures.held_out import text_split
from clearformer.study.study import Values

TOP = 10


def next_distributions(run: Run, contexts: Sequence[str]) -> Values:
    """p(next | context) as counted in the training text and as the model has it, for some short contexts.

    Returns:
        counted, learned: For each context the ten likeliest by the counts: rows of token and probability.
        largest_error: The largest difference of the two over all contexts and tokens.
        total_variation: The mean over contexts of half the sum of the differences.
    """
    tokens = training_tokens(run)
    counted, learned, errors = {}, {}, []
    for context in contexts:
        ids = np.array(run.tokenizer.encode(context))
        data, model = counted_next(tokens, ids, run.tokenizer.vocab_size), learned_next(run, ids)
        likeliest = np.argsort(-data)[:TOP]
        counted[context] = labelled(run, likeliest, data)
        learned[context] = labelled(run, likeliest, model)
        errors.append(np.abs(data - model[: len(data)]))
    return {
        "counted": counted,
        "learned": learned,
        "largest_error": float(np.max(errors)),
        "total_variation": float(np.sum(errors, axis=1).mean() / 2),
    }


def contexts_that_end_alike(run: Run, one: str, other: str) -> Values:
    """How far p(next | one) and p(next | other) are apart, in the training text and in the model.

    Two distributions differ by their total variation: half the sum of the differences. A bigram model has one
    prediction for two contexts that end alike (lecture 000, figure 4.2).

    Returns:
        data_difference, model_difference: The total variation of each.
    """
    tokens, ids = training_tokens(run), [np.array(run.tokenizer.encode(text)) for text in (one, other)]
    data = [counted_next(tokens, each, run.tokenizer.vocab_size) for each in ids]
    model = [learned_next(run, each) for each in ids]
    return {
        "data_difference": total_variation(*data),
        "model_difference": total_variation(*model),
    }


def training_tokens(run: Run) -> Int[np.ndarray, " N"]:
    """The tokens that a run was trained on."""
    text = text_split(run, "train")
    return text.read(0, len(text))


def counted_next(
    tokens: Int[np.ndarray, " N"], context: Int[np.ndarray, " T"], vocab_size: int
) -> Float[np.ndarray, " V"]:
    """The distribution of what follows a context in a text."""
    n_places = len(tokens) - len(context)
    fits = np.ones(n_places, bool)
    for i, token in enumerate(context):
        fits &= tokens[i : i + n_places] == token
    counts = np.bincount(tokens[len(context) :][fits], minlength=vocab_size)
    return counts / max(1, counts.sum())


@torch.no_grad()
def learned_next(run: Run, context: Int[np.ndarray, " T"]) -> Float[np.ndarray, " V"]:
    """The distribution that a model has for what follows a context."""
    device = next(run.model.parameters()).device
    with quiet(run.model):
        logits = run.model(torch.tensor(context, device=device)[None])[0, -1]
    return logits.double().softmax(-1).cpu().numpy()


def total_variation(one: Float[np.ndarray, " V"], other: Float[np.ndarray, " V"]) -> float:
    """Half the sum of the differences of two distributions: 0 where they are alike, 1 where they share nothing."""
    return float(np.abs(one - other).sum() / 2)


def labelled(run: Run, ids: Int[np.ndarray, " K"], p: Float[np.ndarray, " V"]) -> list[list[Any]]:
    """Rows of token and probability."""
    return [[run.tokenizer.token_label(int(token)), float(p[token])] for token in ids]
