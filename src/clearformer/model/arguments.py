"""Checks of a model's arguments."""

from typing import Any

import torch
from torch import Tensor

from clearformer.errors import UserError, count
from clearformer.model.block import EncoderOutput
from clearformer.model.shapes import SourcePadding


def check_tokens(tokens: Any, name: str = "tokens") -> None:
    """Raise UserError unless the argument of that name is a tensor [B T] of token ids."""
    if not isinstance(tokens, Tensor):
        raise UserError(
            f"{name}: must be a tensor [B T] of ids; got {type(tokens).__name__} (torch.tensor([ids]) makes one)"
        )
    if tokens.dim() != 2:
        raise UserError(
            f"{name}: must be a tensor [B T] of ids; got {count(tokens.dim(), 'dimension')} "
            f"({name}[None] adds the batch dimension)"
        )
    if tokens.dtype not in (torch.int64, torch.int32):
        raise UserError(
            f"{name}: ids must be int64 or int32; got {tokens.dtype} ({name}.long() converts them)"
        )


def check_device(tokens: Tensor, weight: Tensor) -> None:
    """Raise UserError unless the tokens are on the device of a model's weight."""
    if tokens.device != weight.device:
        raise UserError(
            f"the model is on {weight.device} and the tokens on {tokens.device}: tokens.to({str(weight.device)!r}) "
            "copies them"
        )


def check_ids(ids: Tensor, n_known: int, what: str) -> None:
    """Raise UserError where an id is none of the `n_known` that the model has; `what` says what the ids stand for.

    It waits for the device, so a model calls it only after a look-up has failed.
    """
    outside = ids[(ids < 0) | (ids >= n_known)]
    if outside.numel():
        raise UserError(f"{what} {outside[0].item()} is out of range: the model knows 0 to {n_known - 1}")


def check_padding(padding: Any, tokens: Tensor, name: str = "padding") -> None:
    """Raise UserError unless the argument of that name is None or a tensor of bools, one for each token."""
    if padding is None:
        return
    if not isinstance(padding, Tensor) or padding.dtype != torch.bool:
        got = padding.dtype if isinstance(padding, Tensor) else type(padding).__name__
        raise UserError(
            f"{name}: must be a tensor of bools, True where a token is real; got {got} (mask == 1 converts one of "
            "0 and 1)"
        )
    if padding.shape != tokens.shape:
        raise UserError(
            f"{name}: must have one bool for each of the tokens {list(tokens.shape)}; got {list(padding.shape)}"
        )


def check_token_types(token_types: Any, tokens: Tensor) -> None:
    """Raise UserError unless the token types are None or a tensor of ids, one for each token."""
    if token_types is None:
        return
    check_tokens(token_types, "token_types")
    if token_types.shape != tokens.shape:
        raise UserError(
            f"token_types: must have one id for each of the tokens {list(tokens.shape)}; got {list(token_types.shape)}"
        )


def check_same_rows(tokens: Tensor, source: EncoderOutput | None) -> None:
    """Raise UserError unless there are as many rows of tokens as of the source that they may read."""
    if source is not None and len(source.vectors) != len(tokens):
        raise UserError(
            f"tokens: must have one row for each of the source's {len(source.vectors)}; got {len(tokens)}"
        )


def check_length(n_positions: int, padding: SourcePadding, limit: int, name: str = "text") -> None:
    """Raise UserError where a row of a text, padding not counted, has more tokens than the model has positions."""
    if n_positions <= limit:
        return
    longest = n_positions if padding is None else int(padding.sum(1).max())
    if longest > limit:
        raise UserError(
            f"the {name} is {longest} tokens long, but the model reads at most {limit} (model.max_seq_len)"
        )
