"""Checks of a model's arguments."""

from typing import Any

import torch
from torch import Tensor

from clearformer.errors import UserError, count
from clearformer.model.shapes import SourcePadding


def check_tokens(tokens: Any) -> None:
    """Raise UserError unless `tokens` is a tensor [B T] of token ids."""
    if not isinstance(tokens, Tensor):
        raise UserError(
            f"tokens: must be a tensor [B T] of ids; got {type(tokens).__name__} (torch.tensor([ids]) makes one)"
        )
    if tokens.dim() != 2:
        raise UserError(
            f"tokens: must be a tensor [B T] of ids; got {count(tokens.dim(), 'dimension')} "
            "(tokens[None] adds the batch dimension)"
        )
    if tokens.dtype not in (torch.int64, torch.int32):
        raise UserError(
            f"tokens: ids must be int64 or int32; got {tokens.dtype} (tokens.long() converts them)"
        )


def check_length(n_positions: int, padding: SourcePadding, limit: int) -> None:
    """Raise UserError where a row, its padding not counted, has more tokens than the model has positions."""
    if n_positions <= limit:
        return
    longest = n_positions if padding is None else int(padding.sum(1).max())
    if longest > limit:
        raise UserError(
            f"the text is {longest} tokens long, but the model reads at most {limit} (model.max_seq_len)"
        )
