"""Checks of what a user hands to the functions of a run: the run itself, and whole numbers."""

import operator
from typing import Any

from clearformer.errors import UserError, shown
from clearformer.model import Transformer


def check_run(run: Any, *others: str) -> None:
    """Raise UserError where something is no run: it lacks a model, a tokenizer, or one of some other attributes."""
    if any(not hasattr(run, name) for name in ("model", "tokenizer", *others)):
        name = run if isinstance(run, str) else "NAME"
        raise UserError(f"give a run, such as cf.load({name!r}); got {_kind_of(run)}")


def check_whole(name: str, value: Any) -> None:
    """Raise UserError where the value of an argument is no whole number."""
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
