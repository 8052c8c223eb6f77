"""A model in evaluation mode for a while, by the cores that this process may use."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache

import torch
from torch import nn

from clearformer.cores import n_cores


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Dropout off inside the `with` block, and no more threads than cores; afterwards all is as it was."""
    in_training = [module for module in model.modules() if module.training]
    model.eval()
    with ExitStack() as afterwards:
        afterwards.callback(_train_again, in_training)
        threads = torch.get_num_threads()
        if threads > most_threads():
            afterwards.callback(torch.set_num_threads, threads)
            torch.set_num_threads(most_threads())
        yield


@cache
def most_threads() -> int:
    """As many as cores when first asked: torch does not look at a container's quota, and looking takes its time."""
    return n_cores()


def _train_again(modules: list[nn.Module]) -> None:
    for module in modules:
        module.training = True
