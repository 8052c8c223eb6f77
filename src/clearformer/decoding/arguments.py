"""Arguments that several functions take, and their checks: runs, whole numbers, functions, lists, types of products."""

import operator
from collections.abc import Callable, Collection
from typing import Any

import torch

from clearformer.errors import UserError, did_you_mean, shown
from clearformer.model import Transformer

MATRIX_DTYPES = ("float32", "bfloat16", "float16")

OnStep = Callable[[int, int], None]
"""Called with how much of a long computation is done (steps, rows, sentences, gradients), and the total."""


def check_run(run: Any, *others: str) -> None:
    """Raise UserError unless `run` has a model, a tokenizer and the other named attributes."""
    if any(not hasattr(run, name) for name in ("model", "tokenizer", *others)):
        name = run if isinstance(run, str) else "NAME"
        raise UserError(f"give a run, such as cf.load({name!r}); got {_kind_of(run)}")


def check_whole(name: str, value: Any, least: int | None = None) -> None:
    """Raise UserError unless the argument's value is a whole number, and `least` or more where that is given."""
    try:
        operator.index(value)
    except TypeError:
        raise UserError(f"{name}: a whole number; got {shown(value)}") from None
    if isinstance(value, bool):
        raise UserError(f"{name}: a whole number; got {value}")
    if least is not None and value < least:
        raise UserError(f"{name}: {least} or more; got {value}")


def check_seed(seed: Any) -> None:
    """Raise UserError unless the seed is a whole number that torch's generators take."""
    check_whole("seed", seed)
    if not -(2**63) <= seed < 2**64:
        raise UserError(f"seed: a whole number of at most 64 bits; got {shown(seed)}")


def check_function(name: str, value: Any) -> None:
    """Raise UserError unless the argument's value can be called."""
    if not callable(value):
        raise UserError(f"{name}: a function; got {shown(value)}")


def check_kind(name: str, value: Any, kind: type) -> None:
    """Raise UserError unless the argument's value is of a class."""
    if not isinstance(value, kind):
        raise UserError(f"{name}: must be of type {kind.__name__}; got {shown(value)}")


def check_list(name: str, value: Any, of: str, such_as: object = 1) -> None:
    """Raise UserError unless the argument's value is a collection, and no text; `of` says what it holds."""
    if isinstance(value, str | bytes) or not isinstance(value, Collection):
        raise UserError(f"{name}: a list of {of}, such as {[such_as]}; got {shown(value)}")


def matrix_dtype(dtype: torch.dtype | str) -> torch.dtype:
    """Return a type of the matrix products, given itself or its name.

    Raises:
        UserError: it is not one of `MATRIX_DTYPES`.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in MATRIX_DTYPES:
        raise UserError(
            f"dtype: {' or '.join(MATRIX_DTYPES)}; got {shown(name)}{did_you_mean(name, MATRIX_DTYPES)}"
        )
    return getattr(torch, name)


def _kind_of(value: Any) -> str:
    if isinstance(value, Transformer):
        return "a model alone; cf.Run(model, tokenizer) makes a run of it"
    return "None" if value is None else f"an object of type {type(value).__name__}"
