"""A user's kind of attention, about whose heads the lens knows nothing."""

from typing import Any

import torch
from torch import Tensor, nn

from clearformer.hooks import HookPoint


class OwnAttention(nn.Module):
    """The mean of all that a position may read, times a matrix, which comes after `hook_z` if there is one."""

    def __init__(self, d_model: int, has_heads: bool) -> None:
        super().__init__()
        self.matrix = nn.Linear(d_model, d_model)
        if has_heads:
            self.hook_z = HookPoint()

    def forward(
        self, x: Tensor, mask: Any, positions: Any, cache: Any = None, memory: Tensor | None = None
    ) -> Tensor:
        if memory is None:
            read = x.cumsum(1) / torch.arange(1, x.shape[1] + 1).to(x)[:, None]
        else:
            read = memory.mean(1, keepdim=True).expand_as(x)
        return self.matrix(self.hook_z(read.unsqueeze(2)).squeeze(2) if hasattr(self, "hook_z") else read)
