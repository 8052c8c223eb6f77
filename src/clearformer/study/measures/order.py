"""Measures of order: models without positions, a missing causal mask, and the linear map of a shift of positions.

Shapes: B batch, T positions, S positions of a table, D d_model.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from clearformer.data import Batches, TextData, prepare
from clearformer.decoding import Sampling, evaluating, random_stream
from clearformer.decoding.samplers import draw
from clearformer.model import ModelConfig, build
from clearformer.model.init import generator_of
from clearformer.model.positions import sinusoidal_table
from clearformer.study.measures.stream import windows_of
from clearformer.study.study import Values
from clearformer.text import CharTokenizerSpec, Tokenizer
from clearformer.training.optim.optimizers import AdamW
from clearformer.training.tasks.losses import next_token_loss

DOG, MAN = [0, 1, 2], [2, 1, 0]  # "dog bites man" and "man bites dog", a token a word
N_GENERATED = 256  # held-out windows
SAMPLE_TOKENS = 120


def pooled_distance(
    seed: int, position: str, causal: bool = False, n_layers: int = 2, d_model: int = 64
) -> Values:
    """Measure the distance of the pooled outputs of "dog bites man" and "man bites dog" (004, 4.10).

    A pooled output is the mean of an untrained model's final vectors, in float64, so that equal results come out equal.

    Args:
        seed: The seed of the weights.
        position: The kind of positions.
        causal: Whether the model has a causal mask.
        n_layers: The number of layers.
        d_model: The width of the model.

    Returns:
        distance: |a - b| / |a| of the two pooled outputs a and b.
        log10_distance: Its decimal logarithm; distances that are rounding alone differ by many orders of magnitude from
            others, and are never below 0, so that their differences are no measure.
    """
    torch.manual_seed(seed)
    config = ModelConfig(
        family="decoder" if causal else "encoder",
        vocab_size=3,
        n_layers=n_layers,
        d_model=d_model,
        position=position,  # type: ignore[arg-type]
        init="gaussian",  # type: ignore[arg-type]
    )
    model = build(config).double().eval()
    read: Callable[[Tensor], Tensor] = model.hidden
    with torch.no_grad():
        one, other = (read(torch.tensor([words])).mean(1) for words in (DOG, MAN))
    distance = ((one - other).norm() / one.norm()).item()
    return {
        "distance": distance,
        "log10_distance": math.log10(max(distance, torch.finfo(torch.float64).tiny)),
    }


# --- a missing mask -------------------------------------------------------------------------------------------


def trained_with_mask(
    seed: int,
    masked: bool,
    data: Mapping[str, str],
    steps: int,
    model: Mapping[str, Any],
    batch_size: int,
    lr: float,
) -> Values:
    """Train a language model with or without its causal mask; measure its losses and a sample (004, 4.10).

    An encoder without a mask, trained to predict the next token, is a decoder whose mask was forgotten: each position
    can read the token that it has to predict. Both sides start from the same weights and read the same batches.

    Args:
        seed: The seed of the weights, the batches and the sample.
        masked: Whether the model has a causal mask.
        data: The settings of the text.
        steps: The number of training steps.
        model: The settings of the model.
        batch_size: The number of sequences in a step.
        lr: AdamW's learning rate.

    Returns:
        losses_by_step: Rows of the step and the mean training loss of ten steps, in nats a token.
        train_loss: The mean over the last twentieth of the steps.
        val_loss: The loss at all positions of held-out windows, as in training.
        generation_loss: The loss at the last position of held-out windows, which has no later token to read.
        copied: The share of all predictions in held-out windows whose likeliest token is the right one.
        sample: A continuation of a held-out prompt, at temperature 0.8.
    """
    prepared = prepare(TextData(**data), CharTokenizerSpec())
    tokenizer, length = prepared.tokenizer, int(model["max_seq_len"])
    config = ModelConfig(**model, family="decoder" if masked else "encoder", vocab_size=tokenizer.vocab_size)
    torch.manual_seed(seed)
    net = build(config)
    batches = Batches(prepared.splits["train"], "random", batch_size, length, seed)
    losses = train(net, batches, steps, lr)
    with evaluating(net), torch.inference_mode():
        windows = windows_of(prepared.splits["val"], N_GENERATED, length + 1)
        logits, targets = net(windows[:, :-1]), windows[:, 1:]
        return {
            "losses_by_step": [[i, float(np.mean(losses[i - 10 : i]))] for i in range(10, steps + 1, 10)],
            "train_loss": float(np.mean(losses[-max(1, steps // 20) :])),
            "val_loss": next_token_loss(logits, targets).item(),
            "generation_loss": next_token_loss(logits[:, -1:], targets[:, -1:]).item(),
            "copied": (logits.argmax(-1) == targets).double().mean().item(),
            "sample": written(net, tokenizer, windows[0, : length // 2].tolist(), length, seed),
        }


def train(net: nn.Module, batches: Batches, steps: int, lr: float) -> list[float]:
    """Train a model on next tokens, whatever its mask; returns the loss of every step."""
    [optimizer] = AdamW().build(net, lr)
    losses = []
    net.train()
    for step in range(steps):
        inputs, targets = (torch.from_numpy(each.astype(np.int64)) for each in batches.batch(step))
        loss = next_token_loss(net(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def written(net: nn.Module, tokenizer: Tokenizer, prompt: list[int], length: int, seed: int) -> str:
    """Generate a continuation without a cache: without a causal mask, new tokens change all earlier positions."""
    tokens, sampling, stream = list(prompt), Sampling(temperature=0.8), random_stream(seed, 0)
    for _ in range(SAMPLE_TOKENS):
        logits = net(torch.tensor([tokens[-length:]]))[:, -1]
        tokens.append(int(draw(sampling.adjust(logits, [tokens]), [stream])))
    return tokenizer.decode(tokens[len(prompt) :])


# --- a shift of positions ---------------------------------------------------------------------------------------


def shift_map(seed: int, kind: str, d_model: int, n_positions: int, shift: int) -> Values:
    """Fit the linear map M with PE(p + k) = M PE(p) for all p by least squares (002, 4.3; 004, 4.2).

    For sinusoidal positions the map is known: it rotates each pair of dimensions (sin, cos) of frequency w by k w.

    Args:
        seed: The seed of random vectors.
        kind: `sinusoidal`, or `random`: vectors from N(0, 1), like untrained learned positions, which have no such map.
        d_model: D.
        n_positions: The number of p; must be more than D, because fewer vectors always have a map.
        shift: k.

    Returns:
        residual: The largest |PE(p + k) - M PE(p)| in any dimension.
        rotation_residual: The same for the known rotation; for sinusoidal positions only.
    """
    n = n_positions + shift
    if kind == "random":
        table = torch.randn(n, d_model, generator=generator_of(seed, "positions")).double()
    else:
        table = sinusoidal_table(d_model, n).double()
    before, behind = table[:n_positions], table[shift:]
    found = torch.linalg.lstsq(before, behind, driver="gelsd").solution
    values = {"residual": (behind - before @ found).abs().max().item()}
    if kind == "sinusoidal":
        values["rotation_residual"] = (behind - turned(before, shift)).abs().max().item()
    return values


def turned(encodings: Tensor, shift: int) -> Tensor:
    """Rotate the sinusoidal encodings [S D] of positions to those of positions `shift` later."""
    d_model = encodings.shape[1]
    angles = shift / 10_000 ** (torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    sines, cosines = encodings[:, 0::2], encodings[:, 1::2]
    pairs = (
        sines * angles.cos() + cosines * angles.sin(),
        cosines * angles.cos() - sines * angles.sin(),
    )
    return torch.stack(pairs, dim=-1).flatten(1)
