"""The mask: which keys each query may read, given causal order (a look-ahead mask), a window and padding.

Shapes: B batch, T query positions, S key positions.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from clearformer.model.shapes import KeyPositions, QueryPositions, SourcePadding, Tokens


@dataclass(frozen=True)
class Mask:
    """The keys that each query may read in one forward pass.

    Attributes:
        q_pos: The queries' positions, [T] or [B T].
        k_pos: The keys' positions, [S] or [B S].
        causal: Whether a query reads only keys at its own position and before (lecture 000, section 4.5).
        padding: True where a key is a real token and False where it is padding, [B S]; None: all are real.
    """

    q_pos: QueryPositions
    k_pos: KeyPositions
    causal: bool
    padding: SourcePadding = None

    @classmethod
    def of(cls, tokens: Tokens, causal: bool, padding: SourcePadding = None, n_before: int = 0) -> "Mask":
        """Return the mask of self-attention; the first `n_before` of the S positions are in the cache."""
        if padding is None:
            k_pos = torch.arange(n_before + tokens.shape[1], device=tokens.device)
        else:  # padding does not count: a row's first real token is at position 0
            k_pos = (padding.cumsum(1) - 1).clamp_min(0)
        return cls(q_pos=k_pos[..., n_before:], k_pos=k_pos, causal=causal, padding=padding)

    def attend(self, window: int | None) -> Bool[Tensor, "#B 1 T S"]:
        """Return True where a query may read a key; `window` is the number of keys back, a query's own included.

        Where queries read ahead, too, it is the number of keys ahead as well.
        """
        distance = self.q_pos.unsqueeze(-1) - self.k_pos.unsqueeze(-2)  # [*B T S]
        allowed = distance >= 0 if self.causal else torch.ones_like(distance, dtype=torch.bool)
        if window is not None:
            allowed = allowed & (distance < window) & (distance > -window)
        if self.padding is not None:
            allowed = allowed & self.padding.unsqueeze(-2)
        return allowed.unsqueeze(-3) if allowed.dim() == 3 else allowed[None, None]

    def matrix(self, window: int | None, dtype: torch.dtype) -> Float[Tensor, "#B 1 T S"]:
        """Return M: 0 where a query may read a key, and elsewhere half the lowest finite number.

        A score added to it stays finite (in float16 one above -32,000): the softmax of a query that may read nothing
        (a padding token's) would else be NaN. Other queries still give such keys a weight of exactly 0, because exp
        underflows.
        """
        attend = self.attend(window)
        return torch.zeros_like(attend, dtype=dtype).masked_fill(~attend, mask_value(dtype))

    @staticmethod
    def keeps(scores: Float[Tensor, "... S"]) -> Bool[Tensor, "... S"]:
        """Return True for each score that is the model's own, False where M was added to it."""
        return ~(scores <= mask_value(scores.dtype) / 2)  # NaN is the model's own

    def reads_everything(self, window: int | None) -> bool:
        """Whether every query may read every key, judged from the shapes alone, so that no mask is needed."""
        one_new_token = self.q_pos.shape[-1] == 1  # the newest: all cached keys precede it
        return self._reads_far(window) and (one_new_token or not self.causal)

    def is_triangle(self, window: int | None) -> bool:
        """Whether query t reads exactly keys 0 to t, judged from the shapes alone."""
        return self._reads_far(window) and self.causal and self.q_pos.shape[-1] == self.k_pos.shape[-1]

    def _reads_far(self, window: int | None) -> bool:
        """Whether no key is padding or outside the window, judged from the shapes alone."""
        return self.padding is None and (window is None or self.k_pos.shape[-1] <= window)


def mask_value(dtype: torch.dtype) -> float:
    """Return what is added to the score of a key that may not be read: half the lowest finite number."""
    return torch.finfo(dtype).min / 2
