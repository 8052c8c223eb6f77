"""Putting a model into evaluation mode, with as many threads as there are free cores."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import RLock
from weakref import WeakKeyDictionary

from torch import nn

from clearformer.threads import ThreadsByLoad

_evaluated: WeakKeyDictionary[nn.Module, list[list[nn.Module]]] = WeakKeyDictionary()
"""Models in evaluation mode: for each open `with` block, the modules that it found in training mode."""

_changing = RLock()
"""Taken again by its own thread where garbage is collected: a generator that nobody closed leaves its block then."""


@contextmanager
def evaluating(model: nn.Module) -> Iterator[ThreadsByLoad]:
    """Turn dropout off in the `with` block and use as many threads as cores are free; restore both afterwards.

    If several threads evaluate one model, the last to leave restores it, so dropout stays off while another computes.
    A block inside another one (of a stream that nobody reads on, perhaps) restores what it found itself.

    Yields:
        The threads: call `adapt` before each of many batches or tokens.
    """
    with ExitStack() as afterwards:
        afterwards.callback(_end, model, _begin(model))
        yield afterwards.enter_context(ThreadsByLoad())


def _begin(model: nn.Module) -> list[nn.Module]:
    with _changing:
        in_training: list[nn.Module] = []
        _evaluated.setdefault(model, []).append(in_training)  # first, for another block may end from here on
        in_training += [module for module in model.modules() if module.training]
        model.eval()
        return in_training


def _end(model: nn.Module, in_training: list[nn.Module]) -> None:
    """Restore what a block found, or leave that to the next of the blocks that began after it."""
    with _changing:
        blocks = _evaluated.get(model)
        if blocks is None:  # garbage, collected together with a generator that read it: nobody has the model
            return
        place = next(i for i, each in enumerate(blocks) if each is in_training)
        del blocks[place]
        if place < len(blocks):
            blocks[place].extend(in_training)
            return
        for module in in_training:
            module.training = True
        if not blocks:
            _evaluated.pop(model, None)
