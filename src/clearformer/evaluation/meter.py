"""Running sums of losses and right predictions, batch by batch."""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from clearformer.data.text.batches import IGNORED


class TokenLossMeter:
    """Sums of losses and of right predictions over the targets that count."""

    def __init__(self) -> None:
        self.loss, self.n_right, self.n = 0.0, 0, 0

    def add(
        self,
        unembed: Callable[[torch.Tensor], torch.Tensor],
        hidden: torch.Tensor,
        targets: torch.Tensor,
        at_once: int = 1024,
    ) -> None:
        """Add the targets [B T] of hidden vectors [B T D], except those that are `IGNORED`."""
        counts = targets != IGNORED
        for h, target in zip(hidden[counts].split(at_once), targets[counts].split(at_once), strict=True):
            logits = unembed(h).float()
            self.loss += F.cross_entropy(logits, target, reduction="none").cpu().double().sum().item()
            self.n_right += int((logits.argmax(-1) == target).sum())
            self.n += len(target)
