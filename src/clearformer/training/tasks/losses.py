"""The losses of training: cross-entropies in nats, averaged or summed over the targets that count."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from clearformer.data.text.batches import IGNORED
from clearformer.model import Transformer

CHUNK_LOGITS = 1_280_000  # logits in one chunk of `ChunkedLoss`: 5 MB in float32
FEWEST_ROWS = 256
"""In a chunk: each adds its gradient to all [V D] weights, which takes over half the time of 64 rows."""


def next_token_loss(
    logits: Float[Tensor, "B T V"], targets: Int[Tensor, "B T"], label_smoothing: float = 0.0
) -> Float[Tensor, ""]:
    """Return -log p(target), averaged over all positions, in nats (lecture 000, section 3.3).

    With label smoothing the target has probability 1 - s + s/V and every other token s/V (Szegedy et al. 2016;
    Vaswani et al. 2017, 5.4). Held-out losses are never smoothed.
    """
    return F.cross_entropy(logits.flatten(0, -2).float(), targets.flatten(), label_smoothing=label_smoothing)


def summed_loss(
    logits: Float[Tensor, "*B V"], targets: Int[Tensor, "*B"], label_smoothing: float = 0.0
) -> Float[Tensor, ""]:
    """Return the cross-entropy summed over the targets that count, whose number differs between parts of a batch."""
    return F.cross_entropy(
        logits.flatten(0, -2).float(),
        targets.flatten(),
        label_smoothing=label_smoothing,
        ignore_index=IGNORED,
        reduction="sum",
    )


def summed_loss_of_hidden(
    model: Transformer,
    hidden: Float[Tensor, "*B D"],
    targets: Int[Tensor, "*B"],
    label_smoothing: float = 0.0,
) -> Float[Tensor, ""]:
    """Return `summed_loss` from hidden vectors, unembedding only those whose targets count."""
    counts = targets != IGNORED
    return summed_loss_of_counted(model, hidden[counts], targets[counts], label_smoothing)


def summed_loss_of_counted(
    model: Transformer, hidden: Float[Tensor, "N D"], targets: Int[Tensor, " N"], label_smoothing: float = 0.0
) -> Float[Tensor, ""]:
    """Return `summed_loss_of_hidden` where all targets count; in chunks if that is faster."""
    if not in_chunks_is_faster(model, hidden):
        return summed_loss(model.unembed(hidden), targets, label_smoothing)
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else hidden.dtype
    return ChunkedLoss.apply(hidden.to(dtype), model.embed.weight.to(dtype), targets, label_smoothing)  # type: ignore[return-value]


def summed_loss_of_any(
    model: Transformer,
    hidden: Float[Tensor, "B T D"],
    targets: Int[Tensor, "B T"],
    n_targets: int,
    label_smoothing: float,
    at_once: bool,
) -> Float[Tensor, ""]:
    """Return `summed_loss_of_counted` of any `n_targets` targets: for measuring memory, where no values are known.

    Args:
        model: The model whose head unembeds the vectors.
        hidden: The hidden vectors of all positions.
        targets: Their targets.
        n_targets: How many count.
        label_smoothing: As in `next_token_loss`.
        at_once: Whether all logits are formed at once, as on a GPU.
    """
    rows, columns = torch.zeros(2, n_targets, dtype=torch.long)
    targets = targets[rows, columns]
    hidden = hidden[rows, columns]
    if at_once:
        return summed_loss(model.unembed(hidden), targets, label_smoothing)
    return summed_loss_of_counted(model, hidden, targets, label_smoothing)


def in_chunks_is_faster(model: Transformer, hidden: Float[Tensor, "N D"]) -> bool:
    """Whether `ChunkedLoss` is faster: on a CPU, with a large vocabulary and the embeddings as the plain, tied head."""
    config, is_plain = model.config, model.head is None and model.head_bias is None
    is_plain = is_plain and not config.scale_logits and config.logit_soft_cap is None
    return is_plain and hidden.device.type == "cpu" and model.embed.num_embeddings >= 2048


class ChunkedLoss(torch.autograd.Function):
    """`summed_loss` of logits h W^T, some rows at a time, so that the [N V] logits never exist.

    With up to 5,000 tokens in the vocabulary a chunk of logits stays in the processor's cache while its loss and
    gradient, softmax(logits) - target, are computed. Only the gradients of h [N D] and W [V D] are kept. The part of
    label smoothing that is the same for every token (s/V) is subtracted once at the end.
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor, targets: Tensor, smoothing: float) -> Tensor:  # type: ignore[override]
        dtype = torch.promote_types(h.dtype, torch.float32)  # of the softmax and of all sums
        d_h, d_weight = torch.empty_like(h), torch.zeros_like(weight, dtype=dtype)
        total = torch.zeros((), dtype=torch.float64, device=h.device)
        rows = max(FEWEST_ROWS, CHUNK_LOGITS // len(weight))
        for h_c, d_h_c, target in zip(h.split(rows), d_h.split(rows), targets.split(rows), strict=True):
            logits = h_c @ weight.T  # [C V]
            gradient = logits.softmax(1, dtype=dtype)
            log_sum = logits.amax(1).to(dtype) - gradient.amax(1).log()  # max(p) = exp(max(logits) - log_sum)
            own = logits.gather(1, target[:, None])
            total += (log_sum - (1 - smoothing) * own[:, 0].to(dtype)).sum(dtype=torch.float64)
            gradient.scatter_add_(1, target[:, None], torch.full_like(own, smoothing - 1, dtype=dtype))
            gradient = gradient.to(h.dtype)
            torch.mm(gradient, weight, out=d_h_c)
            d_weight += gradient.T @ h_c
        each = smoothing / len(weight)
        sum_h, sum_weight = h.sum(0, dtype=torch.float64), weight.sum(0, dtype=torch.float64)
        total -= each * (sum_h @ sum_weight)
        d_h -= (each * sum_weight).to(h.dtype)
        d_weight -= (each * sum_h).to(dtype)
        ctx.save_for_backward(d_h, d_weight)
        return total.to(dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:  # type: ignore[override]
        d_h, d_weight = ctx.saved_tensors
        return d_h * grad, d_weight * grad, None, None
