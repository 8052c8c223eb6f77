"""How far one prediction is from another: the Kullback-Leibler divergence (lecture 002, section 2)."""

import torch
from jaxtyping import Float
from torch import Tensor

from clearformer.model.norms import at_least_float32


def divergence(one: Float[Tensor, "*B V"], other: Float[Tensor, "*B V"]) -> Float[Tensor, "*B"]:
    """Return KL(one || other) of the distributions given by logits, in nats."""
    return divergence_of_logs(*(at_least_float32(each).log_softmax(-1) for each in (one, other)))


def divergence_of_logs(log_p: Float[Tensor, "*B V"], log_q: Float[Tensor, "*B V"]) -> Float[Tensor, "*B"]:
    """Return KL(p || q) given the logarithms of the probabilities, in nats; what p rules out adds nothing."""
    p = log_p.exp()
    return torch.where(p == 0, 0, p * (log_p - log_q)).sum(-1)
