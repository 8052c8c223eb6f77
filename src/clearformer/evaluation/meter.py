"""Running sums of losses and right predictions, and of rows that are done, batch by batch."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import torch
import torch.nn.functional as F

from clearformer.data.text.batches import IGNORED
from clearformer.decoding.arguments import OnStep

Batch = TypeVar("Batch")


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


def counted(
    batches: Iterable[Batch], n_rows: Callable[[Batch], int], total: int, on_step: OnStep
) -> Iterator[Batch]:
    """Yield batches, and after each one's use call `on_step` with the number of rows done and the total."""
    done = 0
    for batch in batches:
        yield batch
        done += n_rows(batch)
        on_step(done, total)
