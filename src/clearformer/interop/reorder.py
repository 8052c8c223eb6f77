"""A model with its residual stream in another order of dimensions, which computes the same.

Sinusoidal positions stand as sine beside cosine in the paper, and as all sines before all cosines in Marian. What
tells the two apart is only the order of the dimensions, and every matrix can be made to read and write another one.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

READ_IT = ("embed", "head", "W_Q", "W_K", "W_V", "W_in", "W_gate")  # their columns are its dimensions
WRITE_TO_IT = ("W_O", "W_out", "ln1", "ln2", "ln_cross", "ln_embed", "ln_final")  # their rows are


def sines_first(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """An encoder-decoder's weights for positions whose sines come first, of those for interleaved ones."""
    dims = torch.arange(weights["embed.weight"].shape[1])
    order = torch.cat([dims[0::2], dims[1::2]])
    return {name: _reordered(name, tensor, order) for name, tensor in weights.items()}


def _reordered(name: str, tensor: Tensor, order: Tensor) -> Tensor:
    module = name.split(".")[-2] if "." in name else name
    module = module.removeprefix("encoder_").removeprefix("decoder_")
    if module in WRITE_TO_IT:
        return tensor[order]
    if module in READ_IT and name.endswith(".weight"):
        return tensor[:, order]
    return tensor
