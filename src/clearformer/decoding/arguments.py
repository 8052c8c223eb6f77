"""Checks of arguments: runs and whole numbers."""

import operator
from typing import Any

from clearformer.errors import UserError, shown
from clearformer.model import Transformer


def check_run(run: Any, *others: str) -> None:
    """Raise UserError unless `run` has a model, a tokenizer and the other named attributes."""
    if any(not hasattr(run, name) for name in ("model", "tokenizer", *others)):
        name = run if isinstance(run, str) else "NAME"
        raise UserError(f"give a run, such as cf.load({name!r}); got {_kind_of(run)}")


def check_whole(name: str, value: Any) -> None:
    """Raise UserError unless the argument's value is a whole number."""
    try:
        operator.index(value)
    except TypeError:
        raise UserError(f"{name}: a whole number; got {shown(value)}") from None
    if isinstance(value, bool):
        raise UserError(f"{name}: a whole number; got {value}")


def _kind_of(value: Any) -> str:
    if isinstance(value, Transformer):
        return "a model alone; cf.Run(model, tokenizer) makes a run of it"
    return "None" if value is None else f"an object of type {type(value).__name__}"
