"""Measures of order: what a model without positions cannot tell, what a missing mask does, and a shift of positions.

Shapes: B batch, T positions, S places, D d_model.
"""

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
N_GENERATED = 256  # held-out beginnings whose next token is predicted
SAMPLE_TOKENS = 120


def pooled_distance(
    seed: int, position: str, causal: bool = False, n_layers: int = 2, d_model: int = 64
) -> Values:
    """How far the pooled outputs of "dog bites man" and "man bites dog" are apart (004, 4.10).

    The mean of an untrained model's final vectors; in float64, so that what should be equal is equal.

    Args:
        seed: Of the weights.
        position: A kind of positions.
        causal: Whether each word reads only those before it.
        n_layers: Of the model.
        d_model: Of the model.

    Returns:
        distance: |a - b| / |a| of the two pooled outputs a and b.
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
    return {"distance": ((one - other).norm() / one.norm()).item()}


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
    """Loss and samples of a language model whose causal mask is there, or was forgotten (004, 4.10).

    An encoder's stack without a mask, trained to predict the next token, is a decoder whose mask was forgotten: each
    position reads the token that it is to predict. Both sides begin with the same weights and read the same batches.

    Args:
        seed: Of the weights, the batches and the sample.
        masked: Whether the mask is there.
        data: The text's section of settings.
        steps: Of training.
        model: Settings of the model.
        batch_size: Texts in a step.
        lr: AdamW's learning rate.

    Returns:
        losses_by_step: Rows of the step and the mean training loss of ten steps, in nats a token.
        train_loss: The mean over the last twentieth of the steps.
        val_loss: Of held-out windows read as in training.
        generation_loss: Of the token behind held-out windows, as it is predicted where there is no future to read.
        copied: The share of training-like predictions whose likeliest token is the right one.
        sample: Text that the model writes after a held-out beginning, at temperature 0.8.
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
    """Train a model on next tokens, whatever its mask; the loss of every step."""
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
    """A continuation of a prompt, read anew for every token: without a mask there is nothing to cache."""
    tokens, sampling, stream = list(prompt), Sampling(temperature=0.8), random_stream(seed, 0)
    for _ in range(SAMPLE_TOKENS):
        logits = net(torch.tensor([tokens[-length:]]))[:, -1]
        tokens.append(int(draw(sampling.adjust(logits, [tokens]), [stream])))
    return tokenizer.decode(tokens[len(prompt) :])


# --- a shift of positions ---------------------------------------------------------------------------------------


def shift_map(seed: int, kind: str, d_model: int, n_positions: int, shift: int) -> Values:
    """The linear map M with PE(p + k) = M PE(p) for all p, found by least squares (002, 4.3; 004, 4.2).

    Of sinusoidal positions it is known besides: each pair of dimensions (sin, cos) of frequency w turns by k w.

    Args:
        seed: Of random vectors.
        kind: `sinusoidal`, or `random`: vectors from N(0, 1), as learned positions begin, which have no such map.
        d_model: D.
        n_positions: How many p there are; more than D, or any vectors would have a map.
        shift: k.

    Returns:
        residual: The largest |PE(p + k) - M PE(p)| in any dimension.
        rotation_residual: That of the known rotation; of sinusoidal positions alone.
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
    """Sinusoidal encodings [S D] of positions, turned into those `shift` further on."""
    d_model = encodings.shape[1]
    angles = shift / 10_000 ** (torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    sines, cosines = encodings[:, 0::2], encodings[:, 1::2]
    pairs = (
        sines * angles.cos() + cosines * angles.sin(),
        cosines * angles.cos() - sines * angles.sin(),
    )
    return torch.stack(pairs, dim=-1).flatten(1)
