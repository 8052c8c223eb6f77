"""R-Drop: every row goes through the model twice with different dropout, and the two predictions are drawn together.

With P and Q the two passes' probabilities of the next token (Wu et al. 2021, equations 2 to 4, halved so that the loss
is as large as without R-Drop):

    loss = mean of both cross-entropies + alpha / 2 * (KL(P || Q) + KL(Q || P)) / 2

Halving changes the size of the gradient, but not the weight of alpha in it.

Shapes: N targets, V vocabulary, D d_model. The first half of the rows is one pass, the second half the other.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from clearformer.data.text.batches import IGNORED
from clearformer.model import Transformer
from clearformer.training.tasks.losses import CHUNK_LOGITS, FEWEST_ROWS, in_chunks_is_faster

PASSES = 2


def twice(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return a batch with its rows repeated: the second half equals the first."""
    return tuple(torch.cat([tensor, tensor]) for tensor in tensors)


def summed_r_drop(
    logits: Float[Tensor, "*B V"], targets: Int[Tensor, "*N"], alpha: float, label_smoothing: float = 0.0
) -> Float[Tensor, ""]:
    """Return the loss of both passes, summed over the targets that count.

    Args:
        logits: The logits of both passes.
        targets: The targets of one pass.
        alpha: The weight of the divergence.
        label_smoothing: Applied to the cross-entropies; the divergence takes the model's own probabilities.
    """
    scores, flat = logits.flatten(0, -2).float(), targets.flatten()
    cross_entropy = F.cross_entropy(
        scores,
        flat.repeat(PASSES),
        label_smoothing=label_smoothing,
        ignore_index=IGNORED,
        reduction="sum",
    )
    one, other = scores.log_softmax(-1).chunk(PASSES)  # [N V]
    divergence = ((one.exp() - other.exp()) * (one - other)).sum(-1) / 2  # the mean of both directions [N]
    return cross_entropy / PASSES + alpha / 2 * (divergence * (flat != IGNORED)).sum()


def summed_r_drop_of_hidden(
    model: Transformer,
    hidden: Float[Tensor, "*B D"],
    targets: Int[Tensor, "*N"],
    alpha: float,
    label_smoothing: float = 0.0,
) -> Float[Tensor, ""]:
    """Return `summed_r_drop` from hidden vectors, unembedding only those whose targets count."""
    counts = (targets != IGNORED).flatten()
    both = hidden.flatten(0, -2).unflatten(0, (PASSES, -1))[:, counts]  # [2 N D]
    return summed_r_drop_of_counted(model, both, targets.flatten()[counts], alpha, label_smoothing)


def summed_r_drop_of_counted(
    model: Transformer,
    hidden: Float[Tensor, "2 N D"],
    targets: Int[Tensor, " N"],
    alpha: float,
    label_smoothing: float = 0.0,
    at_once: bool = False,
) -> Float[Tensor, ""]:
    """Return `summed_r_drop_of_hidden` where all targets count; in chunks if that is faster, unless `at_once`."""
    if at_once or not in_chunks_is_faster(model, hidden):
        return summed_r_drop(model.unembed(hidden), targets, alpha, label_smoothing)
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else hidden.dtype
    return ChunkedRDrop.apply(  # type: ignore[return-value]
        hidden.to(dtype), model.embed.weight.to(dtype), targets, alpha, label_smoothing
    )


class ChunkedRDrop(torch.autograd.Function):
    """`summed_r_drop` of logits h W^T, some targets at a time, so that the [2 N V] logits never exist.

    As in `ChunkedLoss`, a chunk of logits stays in the processor's cache while its loss and gradient are computed.
    With r = log P - log Q the gradient of (KL(P || Q) + KL(Q || P)) / 2 by the logits of P is
    (P (r - sum P r) + P - Q) / 2, and by those of Q it is -(Q (r - sum Q r) + P - Q) / 2.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, h: Tensor, weight: Tensor, targets: Tensor, alpha: float, smoothing: float
    ) -> Tensor:
        dtype = torch.promote_types(h.dtype, torch.float32)  # of the softmax and of all sums
        d_h, d_weight = torch.empty_like(h), torch.zeros_like(weight, dtype=dtype)
        total = torch.zeros((), dtype=torch.float64, device=h.device)
        # Intermediate results need room as well as the logits, so half as many logits at once are fastest.
        rows = max(FEWEST_ROWS // PASSES, CHUNK_LOGITS // (2 * PASSES * len(weight)))
        each = smoothing / len(weight)
        for h_c, d_h_c, target in zip(h.split(rows, 1), d_h.split(rows, 1), targets.split(rows), strict=True):
            logprobs = (h_c @ weight.T).log_softmax(-1, dtype=dtype)  # [2 C V]
            places = target.expand(PASSES, -1).unsqueeze(2)
            own = logprobs.gather(2, places)
            total -= (1 - smoothing) / PASSES * own.sum(dtype=torch.float64)
            total -= each / PASSES * logprobs.sum(dtype=torch.float64)
            ratio = logprobs[0] - logprobs[1]  # [C V]
            p = logprobs.exp_()
            gradient = p * ratio  # [2 C V]
            means = gradient.sum(2, keepdim=True)
            total += alpha / 4 * (means[0] - means[1]).sum(dtype=torch.float64)
            gradient.addcmul_(p, means, value=-1).add_(p[0] - p[1])
            gradient[1].neg_()
            gradient.mul_(alpha / 4).add_(p, alpha=1 / PASSES).sub_(each / PASSES)
            gradient.scatter_add_(2, places, torch.full_like(own, (smoothing - 1) / PASSES, dtype=dtype))
            gradient = gradient.to(h.dtype)
            d_h_c.copy_(gradient @ weight)
            d_weight += gradient.flatten(0, 1).T @ h_c.flatten(0, 1)
        ctx.save_for_backward(d_h, d_weight)
        return total.to(dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None, None]:  # type: ignore[override]
        d_h, d_weight = ctx.saved_tensors
        return d_h * grad, d_weight * grad, None, None, None
