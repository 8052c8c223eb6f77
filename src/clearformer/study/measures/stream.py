"""Measures of the residual stream: its variance by depth, the effect of deleting a layer, and the parts of logits.

Shapes: N windows, T positions, D d_model.
"""

import statistics
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import nn

from clearformer.data import Split, TextData, prepare
from clearformer.evaluation import evaluate_split
from clearformer.lens import Edit, hooks_of, ledger, zero
from clearformer.model import Decoder, ModelConfig, build
from clearformer.model.init import GPT2, OUTPUTS, Gaussian, InitBase, Xavier
from clearformer.run import Run
from clearformer.study.measures.held_out import text_split
from clearformer.study.study import Values
from clearformer.text import CharTokenizerSpec

INITS: dict[str, InitBase] = {
    "gaussian": Gaussian(),
    "xavier": Xavier(),
    "gpt2": GPT2(),
    "gpt2 scaled": GPT2(),
    "zero outputs": Gaussian(zero_outputs=True),
}
"""Initialisations by name; for `gpt2`, `stream_variance` undoes the factor 1/sqrt(2N) of the outputs."""


def stream_variance(
    seed: int, init: str, n_layers: int, d_model: int, data: Mapping[str, str], n_windows: int = 8
) -> Values:
    """Measure the variance of the residual stream after every block of an untrained pre-norm GPT, on text (002, 9).

    Args:
        seed: The seed of the weights.
        init: One of `INITS`.
        n_layers: N.
        d_model: D.
        data: The settings of the text, such as {"name": "shakespeare"}.
        n_windows: The number of windows, evenly spaced over the training split.

    Returns:
        variance: Rows of the number of blocks passed, from 0, and the variance over all positions and dimensions.
        first, last: The first and the last variance.
        growth: last / first.
        written: (last - first) / N, the mean variance that a block adds.
    """
    prepared = prepare(TextData(**data), CharTokenizerSpec())
    config = ModelConfig(
        n_layers=n_layers,
        d_model=d_model,
        vocab_size=prepared.tokenizer.vocab_size,
        init=INITS[init],
        tie_embeddings=False,
    )
    torch.manual_seed(seed)
    model: Decoder = build(config)
    if init == "gpt2":
        scale_outputs(model, (2 * n_layers) ** 0.5)
    tokens = windows_of(prepared.splits["train"], n_windows, config.max_seq_len)
    names = ["blocks.0.hook_resid_pre", "blocks.*.hook_resid_post"]
    _, cache = model.run_with_cache(tokens, names=names)
    variance = [activation.var().item() for activation in cache.values()]
    return {
        "variance": rows_of(variance),
        "first": variance[0],
        "last": variance[-1],
        "growth": variance[-1] / variance[0],
        "written": (variance[-1] - variance[0]) / n_layers,
    }


def rows_of(values: Sequence[float]) -> list[list[float]]:
    """Return values as rows of index, from 0, and value."""
    return [[float(number), value] for number, value in enumerate(values)]


@torch.no_grad()
def scale_outputs(model: nn.Module, factor: float) -> None:
    """Multiply the matrices that write to the residual stream by a factor."""
    for path, module in model.named_modules():
        if isinstance(module, nn.Linear) and path.rpartition(".")[2] in OUTPUTS:
            module.weight.mul_(factor)


def windows_of(split: Split, n: int, length: int) -> torch.Tensor:
    """Return n windows, evenly spaced over a split, [N T]; fewer if it is too short for n."""
    starts = np.unique(np.linspace(0, len(split) - length, n).astype(np.int64))
    return torch.from_numpy(split.windows(starts, length).astype(np.int64))


# --- of a trained run -----------------------------------------------------------------------------------------


def without_layer(layer: int) -> list[Edit]:
    """Return edits that make a block add nothing to the residual stream (002, 12)."""
    return [zero(f"blocks.{layer}.hook_attn_out"), zero(f"blocks.{layer}.hook_mlp_out")]


def deleted_layers(run: Run, n_windows: int = 64) -> Values:
    """Measure the held-out loss without each layer in turn (002, 12), in nats a token, on evenly spaced windows.

    Returns:
        loss_whole: The loss of the whole model.
        loss_without: Rows of the layer and the loss without it.
        increase_layer_N: The increase of the loss without layer N, from 0.
        least_increase, largest_increase: The least and the largest increase of any layer.
        uniform_loss: ln V, the loss of equal probabilities.
    """
    model, split = run.model, text_split(run)
    assert isinstance(model, Decoder)

    def loss(edits: Sequence[Edit]) -> float:
        with model.hooked(hooks_of(edits)):
            return evaluate_split(model, split, n_windows=n_windows, dtype=run.dtype).loss

    whole = loss([])
    without = [loss(without_layer(layer)) for layer in range(run.config.model.n_layers)]
    increases = [each - whole for each in without]
    return {
        "loss_whole": whole,
        "loss_without": rows_of(without),
        **{f"increase_layer_{layer}": increase for layer, increase in enumerate(increases)},
        "least_increase": min(increases),
        "largest_increase": max(increases),
        "uniform_loss": float(np.log(run.model.embed.num_embeddings)),
    }


def logit_parts(run: Run, n_texts: int = 48) -> Values:
    """Measure each head's and network's mean part of the right token's logit, by `lens.ledger` (002, 12).

    The logit is that of the last prediction in evenly spaced held-out windows, before any soft cap.

    Returns:
        parts: By place in the model, the mean part over texts.
        by_layer: For `heads` and `network`, rows of the layer and the sum of their parts in it.
        logit: The mean logit of the right token, which is the sum of all parts.
        heads, networks, embeddings: The sums over all heads, all feed-forward networks, and the rest.
        ledger_error: The largest difference of a ledger's sum from the model's own logit.
    """
    windows = windows_of(text_split(run), n_texts, run.config.model.max_seq_len + 1)
    ledgers = [ledger(run, window[:-1], target=int(window[-1])) for window in windows]
    parts = {
        part.label: statistics.fmean(found.parts[i].value for found in ledgers)
        for i, part in enumerate(ledgers[0].parts)
    }
    layers = [(part.layer, "heads" if "attn" in part.name else "network") for part in ledgers[0].parts]
    by_layer = {
        name: rows_of([sum_where(parts, layers, (layer, name)) for layer in range(run.config.model.n_layers)])
        for name in ("heads", "network")
    }
    heads = sum(value for label, value in parts.items() if "attn" in label)
    networks = sum(value for label, value in parts.items() if "mlp" in label)
    logit = statistics.fmean(found.logit for found in ledgers)
    return {
        "parts": parts,
        "by_layer": by_layer,
        "logit": logit,
        "heads": heads,
        "networks": networks,
        "embeddings": sum(parts.values()) - heads - networks,
        "ledger_error": max(found.error for found in ledgers),
    }


def sum_where(
    parts: Mapping[str, float], places: Sequence[tuple[int | None, str]], place: tuple[int, str]
) -> float:
    """Return the sum of the parts at a place."""
    return sum(value for value, own in zip(parts.values(), places, strict=True) if own == place)
