"""What training makes small."""

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor


def next_token_loss(
    logits: Float[Tensor, "B T V"], targets: Int[Tensor, "B T"], label_smoothing: float = 0.0
) -> Float[Tensor, ""]:
    """-log p(target), averaged over all positions, in nats (lecture 000, section 3.3).

    With label smoothing the target has probability 1 - s + s/V and every other token s/V (Szegedy et al. 2016;
    Vaswani et al. 2017, 5.4); what is reported of held-out text is never smoothed.
    """
    return F.cross_entropy(logits.flatten(0, -2).float(), targets.flatten(), label_smoothing=label_smoothing)
