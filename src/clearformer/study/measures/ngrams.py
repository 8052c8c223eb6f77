"""Next-token distributions as learned and as counted in the training text (lecture 000, section 4.1)."""

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
    """Compare p(next | context) as counted in the training text and as learned by the model, for some short contexts.

    Returns:
        counted, learned: For each context, rows of token and probability, for the ten likeliest tokens by count.
        largest_error: The largest absolute difference over all contexts and tokens.
        total_variation: The mean over contexts of half the sum of the absolute differences.
    """
    both = [counted_and_learned(run, context) for context in contexts]
    errors = [np.abs(data - model[: len(data)]) for data, model in both]
    counted, learned = rows_of(run, contexts, both)
    return {
        "counted": counted,
        "learned": learned,
        "largest_error": float(np.max(errors)),
        "total_variation": float(np.sum(errors, axis=1).mean() / 2),
    }


def after_pairs(run: Run, pairs: Sequence[str]) -> Values:
    """Compare p(next | two characters) as counted in the training text and as learned (lecture 000, figure 4.2).

    Returns:
        counted_after, learned_after: For each pair, rows of token and probability, as in `next_distributions`.
        first_after_PAIR: The counted probability of the likeliest token after a pair.
    """
    both = [counted_and_learned(run, pair) for pair in pairs]
    counted, learned = rows_of(run, pairs, both)
    return {
        "counted_after": counted,
        "learned_after": learned,
        **{f"first_after_{pair}": float(data.max()) for pair, (data, _) in zip(pairs, both, strict=True)},
    }


def counted_and_learned(run: Run, context: str) -> tuple[Float[np.ndarray, " V"], Float[np.ndarray, " V"]]:
    """Return p(next | context) as counted in the training text, and as learned."""
    ids = np.array(run.tokenizer.encode(context))
    return counted_next(training_tokens(run), ids, run.tokenizer.vocab_size), learned_next(run, ids)


def rows_of(
    run: Run, contexts: Sequence[str], both: Sequence[tuple[np.ndarray, np.ndarray]]
) -> tuple[dict[str, list[list[Any]]], dict[str, list[list[Any]]]]:
    """Return the counted and the learned probabilities by context, of the ten likeliest tokens by count."""
    counted, learned = {}, {}
    for context, (data, model) in zip(contexts, both, strict=True):
        likeliest = np.argsort(-data)[:TOP]
        counted[context], learned[context] = labelled(run, likeliest, data), labelled(run, likeliest, model)
    return counted, learned


def contexts_that_end_alike(run: Run, one: str, other: str) -> Values:
    """Measure the difference of p(next | one) and p(next | other), in the training text and in the model.

    The difference is the total variation: half the sum of the absolute differences. A bigram model predicts the same
    for two contexts that end in the same token (lecture 000, figure 4.2).

    Returns:
        data_difference, model_difference: The total variation in the text and in the model.
    """
    tokens, ids = training_tokens(run), [np.array(run.tokenizer.encode(text)) for text in (one, other)]
    data = [counted_next(tokens, each, run.tokenizer.vocab_size) for each in ids]
    model = [learned_next(run, each) for each in ids]
    return {
        "data_difference": total_variation(*data),
        "model_difference": total_variation(*model),
    }


def training_tokens(run: Run) -> Int[np.ndarray, " N"]:
    """Return the tokens that a run was trained on."""
    text = text_split(run, "train")
    return text.read(0, len(text))


def counted_next(
    tokens: Int[np.ndarray, " N"], context: Int[np.ndarray, " T"], vocab_size: int
) -> Float[np.ndarray, " V"]:
    """Return the distribution of the token after a context, as counted in a sequence of tokens."""
    n_places = len(tokens) - len(context)
    fits = np.ones(n_places, bool)
    for i, token in enumerate(context):
        fits &= tokens[i : i + n_places] == token
    counts = np.bincount(tokens[len(context) :][fits], minlength=vocab_size)
    return counts / max(1, counts.sum())


@torch.no_grad()
def learned_next(run: Run, context: Int[np.ndarray, " T"]) -> Float[np.ndarray, " V"]:
    """Return a model's distribution of the token after a context."""
    device = next(run.model.parameters()).device
    with quiet(run.model):
        logits = run.model(torch.tensor(context, device=device)[None])[0, -1]
    return logits.double().softmax(-1).cpu().numpy()


def total_variation(one: Float[np.ndarray, " V"], other: Float[np.ndarray, " V"]) -> float:
    """Return half the sum of the absolute differences of two distributions: 0 if equal, 1 if disjoint."""
    return float(np.abs(one - other).sum() / 2)


def labelled(run: Run, ids: Int[np.ndarray, " K"], p: Float[np.ndarray, " V"]) -> list[list[Any]]:
    """Return rows of token and probability."""
    return [[run.tokenizer.token_label(int(token)), float(p[token])] for token in ids]
