"""Gradients of a new model by layer, and whether a trained one has learnt to use the context."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from clearformer.config import sections_of
from clearformer.model.build import build_undrawn, initialise
from clearformer.resolving import resolve_settings
from clearformer.run import Run
from clearformer.study.measures.held_out import text_split
from clearformer.study.study import Measure, Values

VOCABULARY, BATCH = 65, 16


def gradients_at_start(seed: int, preset: str, settings: Mapping[str, Any]) -> Values:
    """Measure the norms of a new model's gradients by layer, as Xiong et al. (2020) do.

    The gradient is that of the loss on random tokens with respect to the second matrix of each block's feed-forward
    network; the norm is the square root of the sum of its squares.

    Args:
        seed: The seed of weights and tokens.
        preset: The preset of the model.
        settings: Settings applied on top of it.

    Returns:
        gradient_by_layer: Rows of layer, counted from 1, and norm.
        last_over_first: The last layer's norm over the first's.
        largest_over_smallest: The largest norm over the smallest.
    """
    config = resolve_settings(preset, [sections_of(dict(settings))]).model.replace(vocab_size=VOCABULARY)
    model = build_undrawn(config)
    initialise(model, seed)
    numbers = torch.Generator().manual_seed(seed)
    tokens = torch.randint(VOCABULARY, (BATCH, config.max_seq_len + 1), generator=numbers)
    F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
    found = [float(block.mlp.W_out.weight.grad.norm()) for block in model.blocks]
    return {
        "gradient_by_layer": [[layer, size] for layer, size in enumerate(found, 1)],
        "last_over_first": found[-1] / found[0],
        "largest_over_smallest": max(found) / min(found),
    }


def gain_over_unigrams(run: Run) -> Values:
    """Measure by how much a language model beats token frequencies; about 0 if it learnt nothing from contexts.

    Returns:
        unigram_loss: The held-out loss of the token frequencies of the training split, in nats a token.
        gain_over_unigrams: That minus the model's held-out loss.
    """
    n = run.tokenizer.vocab_size
    splits = [text_split(run, name) for name in ("train", "val")]
    train, val = (np.bincount(split.read(0, len(split)), minlength=n) for split in splits)
    counts = train + 1  # tokens missing from the training split get a probability, too
    share = counts / counts.sum()
    unigram_loss = float(-(val * np.log(share)).sum() / val.sum())
    return {
        "unigram_loss": unigram_loss,
        "gain_over_unigrams": None if run.val_loss is None else unigram_loss - run.val_loss,
    }


GAIN_OVER_UNIGRAMS = Measure(gain_over_unigrams)
