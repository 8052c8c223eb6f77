"""Equivalent forms of a model, with other settings and other weights.

If an architecture lacks a setting of ours, its effect can often be folded into the weights: a factor before a matrix,
or the order of the residual stream's dimensions. Results are equal up to rounding.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from clearformer.model import ModelConfig
from clearformer.model.attention import MultiHead
from clearformer.model.norms import NoNorm, RMSNorm
from clearformer.model.positions import Sinusoidal

Weights = Mapping[str, Tensor]
Change = Callable[[Weights], dict[str, Tensor]]


@dataclass(frozen=True)
class Form:
    """An equivalent form of a model: its settings, and the changes that make its weights from ours, in order."""

    config: ModelConfig
    changes: tuple[Change, ...] = ()

    def weights(self, ours: Weights) -> dict[str, Tensor]:
        """Convert our weights to those for these settings."""
        weights = dict(ours)
        for change in self.changes:
            weights = change(weights)
        return weights


def forms(config: ModelConfig) -> list[Form]:
    """Return a model as it is and in all equivalent forms, those with the fewest changes first."""
    found = [Form(config)]
    for rewriting in (sines_first, factor_in_embeddings, factor_in_last_norm, factor_in_queries):
        for form in list(found):
            other = rewriting(form.config)
            if other is not None:
                found.append(Form(other[0], (*form.changes, other[1])))
    return sorted(found, key=lambda form: len(form.changes))


# --- the order of the dimensions --------------------------------------------------------------------------

READ_IT = (
    "embed",
    "head",
    "W_Q",
    "W_K",
    "W_V",
    "W_in",
    "W_gate",
)  # modules whose columns are the residual stream's dimensions
WRITE_TO_IT = ("W_O", "W_out", "ln1", "ln2", "ln_cross", "ln_embed", "ln_final")  # modules whose rows are


def sines_first(config: ModelConfig) -> tuple[ModelConfig, Change] | None:
    """Put all sines before all cosines in an encoder-decoder with sinusoidal positions, as in Marian.

    In the paper each sine is next to its cosine. Only the order of the stream's dimensions differs, and every matrix
    can be permuted to read and write another order.
    """
    if config.family != "encoder-decoder" or config.position != Sinusoidal(interleaved=True):
        return None
    return config.replace(position=Sinusoidal(interleaved=False)), _reordered


def _reordered(weights: Weights) -> dict[str, Tensor]:
    dims = torch.arange(weights["embed.weight"].shape[1])
    order = torch.cat([dims[0::2], dims[1::2]])
    return {name: _in_order(name, tensor, order) for name, tensor in weights.items()}


def _in_order(name: str, tensor: Tensor, order: Tensor) -> Tensor:
    module = name.split(".")[-2] if "." in name else name
    module = module.removeprefix("encoder_").removeprefix("decoder_")
    if module in WRITE_TO_IT:
        return tensor[order]
    if module in READ_IT and name.endswith(".weight"):
        return tensor[:, order]
    return tensor


# --- factors ----------------------------------------------------------------------------------------------


def factor_in_embeddings(config: ModelConfig) -> tuple[ModelConfig, Change] | None:
    """Fold the sqrt(D) of scaled embeddings into them; a tied head then divides by it, as in T5."""
    if not config.scale_embeddings or (config.tie_embeddings and config.scale_logits):
        return None
    factor = config.d_model**0.5
    scale_logits = config.tie_embeddings or config.scale_logits
    other = config.replace(scale_embeddings=False, scale_logits=scale_logits)
    return other, lambda weights: {**weights, "embed.weight": weights["embed.weight"] * factor}


def factor_in_last_norm(config: ModelConfig) -> tuple[ModelConfig, Change] | None:
    """Fold a sqrt(D) into the decoder's last norm, which T5's division of the logits by sqrt(D) takes away."""
    unscaled_head = config.tie_embeddings and not config.scale_logits and not config.scale_embeddings
    if config.family != "encoder-decoder" or not unscaled_head:
        return None
    if not (config.final_norm and isinstance(config.norm, RMSNorm)):
        return None
    name, ones = "decoder_ln_final.weight", torch.ones(config.d_model)
    other = config.replace(scale_logits=True)
    return other, lambda weights: {**weights, name: weights.get(name, ones) * config.d_model**0.5}


def factor_in_queries(config: ModelConfig) -> tuple[ModelConfig, Change] | None:
    """Fold the 1/sqrt(d_head) of attention scores into the norm of the queries, or else into W_Q."""
    attention = config.attention
    if not isinstance(attention, MultiHead) or not attention.scale:
        return None
    factor = attention.head_size(config.d_model) ** -0.5
    norm = attention.qk_norm
    if isinstance(norm, RMSNorm) and not norm.learned:
        norm = norm.replace(learned=True)
    other = config.replace(attention=attention.replace(scale=False, qk_norm=norm))
    if isinstance(norm, NoNorm):
        return other, lambda weights: _times(weights, "W_Q", factor)
    d_head = attention.head_size(config.d_model)
    return other, lambda weights: _times(_with_query_norms(weights, d_head), "q_norm", factor)


def _with_query_norms(weights: Weights, d_head: int) -> dict[str, Tensor]:
    """Add weights of ones for norms of queries and keys that have none."""
    layers = [name.removesuffix("W_Q.weight") for name in weights if name.endswith(".W_Q.weight")]
    norms = [f"{layer}{norm}.weight" for layer in layers for norm in ("q_norm", "k_norm")]
    return {**{name: torch.ones(d_head) for name in norms}, **weights}


def _times(weights: Weights, module: str, factor: float) -> dict[str, Tensor]:
    """Multiply the weights and biases of a module by a factor in every layer."""
    return {name: tensor * factor if f".{module}." in name else tensor for name, tensor in weights.items()}
