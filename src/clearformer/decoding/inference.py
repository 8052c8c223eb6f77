"""Contexts of inference: a model in evaluation mode, matrix products in another type."""

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Dropout off inside the `with` block; afterwards every module is in the mode it was in."""
    in_training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in in_training:
            module.training = True


def autocast_to(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager[object]:
    """Matrix products in `dtype` inside the `with` block; as they are around it, where that is None or float32."""
    plain = dtype in (None, torch.float32)
    return contextlib.nullcontext() if plain else torch.autocast(device.type, dtype=dtype)
