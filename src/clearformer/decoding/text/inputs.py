"""Arguments that are texts: strings, or token ids as lists, NumPy arrays or tensors."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clearformer.errors import TokenizerError, UserError, shown
from clearformer.text import Tokenizer, located

Text = str | Sequence[int] | np.ndarray | Tensor
"""A string, or the ids of a text's tokens [T]."""
Texts = Text | Sequence[Text]
"""One text or several; an array of ids with two dimensions [B T] is B texts."""


def texts_of(value: Texts) -> list[str | list[int]]:
    """Return one text or several as a list of strings and lists of ids.

    Raises:
        UserError: something in it is neither a string nor token ids.
    """
    values = _plain(value)
    return [values] if is_one(value) else [_one(each) for each in values]


def is_one(value: Texts) -> bool:
    """Whether the value is a single text: an empty array of whole numbers is one, an empty list holds none."""
    values = _plain(value)
    if isinstance(values, str) or values:
        return isinstance(values, str) or _are_ids(values)
    if isinstance(value, Tensor):
        return value.dim() == 1 and value.dtype in (torch.int64, torch.int32)
    return isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iu"


def text_of(value: Text) -> str | list[int]:
    """Return one text as a string or a list of ids.

    Raises:
        UserError: it is neither.
    """
    return _one(_plain(value))


def ids_of(tokenizer: Tokenizer, text: str | list[int]) -> list[int]:
    """Return a text's ids, with no special tokens but those written in it.

    Raises:
        TokenizerError: the tokenizer lacks a character of a string, or an id.
    """
    if isinstance(text, str):
        return tokenizer.encode(text).tolist()
    for token in text:
        if not 0 <= token < tokenizer.vocab_size:
            raise TokenizerError(
                f"the id {token} is outside this tokenizer's vocabulary of {tokenizer.vocab_size:,}"
            )
    return text


def encoded(
    tokenizer: Tokenizer, texts: Sequence[str | list[int]], place: Callable[[int], str]
) -> list[list[int]]:
    """Return the ids of each text; `place` names a text by its number, from 1.

    Raises:
        TokenizerError: the tokenizer lacks a character of a text, or an id; the message names the text.
    """
    rows = []
    for number, text in enumerate(texts, start=1):
        try:
            rows.append(ids_of(tokenizer, text))
        except TokenizerError as error:
            raise located(error, place(number)) from None
    return rows


def words_of(tokenizer: Tokenizer, text: str | list[int]) -> str:
    """Return a text as a string."""
    return text if isinstance(text, str) else tokenizer.decode(text)


def with_specials(ids: Sequence[int], before: Sequence[int] = (), after: Sequence[int] = ()) -> list[int]:
    """Return ids with special tokens before and after them, unless they are there already."""
    ids = list(ids)
    if before and ids[: len(before)] != list(before):
        ids = [*before, *ids]
    if after and ids[-len(after) :] != list(after):
        ids = [*ids, *after]
    return ids


def _one(value: Any) -> str | list[int]:
    value = _plain(value)
    if isinstance(value, str) or _are_ids(value):
        return value
    raise _no_text(value)


def _plain(value: Any) -> Any:
    """Return the value as a string or a list."""
    if isinstance(value, str):
        return str(value)
    if not isinstance(value, np.ndarray | Tensor | Sequence) or isinstance(value, bytes):
        raise _no_text(value)
    return value.tolist() if isinstance(value, np.ndarray | Tensor) and value.ndim else _listed(value)


def _listed(value: Any) -> list[Any]:
    if isinstance(value, np.ndarray | Tensor):
        raise _no_text(value)
    return [each.item() if isinstance(each, np.integer) else each for each in value]


def _are_ids(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int for value in values)


def _no_text(value: Any) -> UserError:
    return UserError(f"a text must be a string or token ids; got {shown(value)}")
