"""Putting a model into evaluation mode, and limiting torch to the cores that this process may use."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from threading import Lock
from weakref import WeakKeyDictionary

import torch
from torch import nn

from clearformer.cores import n_cores

_evaluated: WeakKeyDictionary[nn.Module, list[list[nn.Module]]] = WeakKeyDictionary()
"""Models in evaluation mode: for each open `with` block, the modules that it found in training mode."""

_changing = Lock()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Turn dropout off in the `with` block and use no more threads than cores; restore both afterwards.

    If several threads evaluate one model, the last to leave restores it, so dropout stays off while another computes.
    """
    with ExitStack() as afterwards:
        _begin(model)
        afterwards.callback(_end, model)
        threads = torch.get_num_threads()
        if threads > most_threads():
            afterwards.callback(torch.set_num_threads, threads)
            torch.set_num_threads(most_threads())
        yield


@cache
def most_threads() -> int:
    """Return the number of cores, cached because it is slow to find; torch itself ignores a container's quota."""
    return n_cores()


def _begin(model: nn.Module) -> None:
    with _changing:
        in_training = [module for module in model.modules() if module.training]
        _evaluated.setdefault(model, []).append(in_training)
        model.eval()


def _end(model: nn.Module) -> None:
    with _changing:
        first, *others = _evaluated[model]
        if others:
            _evaluated[model] = [first + others[0], *others[1:]]
            return
        del _evaluated[model]
        for module in first:
            module.training = True
