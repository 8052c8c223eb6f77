"""Entropy, cross-entropy, perplexity, KL divergence, mutual information (Shannon 1948; lecture 002, section 2).

Distributions are arrays of probabilities; everything is computed in float64, and 0 log 0 is 0.
"""

import math
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from clearformer.errors import UserError

Unit = Literal["bits", "nats"]
NATS_PER_UNIT = {"bits": math.log(2), "nats": 1.0}
SUM_TOLERANCE = 1e-5  # the error of a float32 softmax over a large vocabulary


def entropy(p: ArrayLike, unit: Unit = "bits") -> float:
    """H(P) = -sum p log p: how uncertain an outcome is.

    Raises:
        UserError: `p` is not a distribution, or the unit is unknown (as everywhere in this module).
    """
    return cross_entropy(p, p, unit)


def cross_entropy(p: ArrayLike, q: ArrayLike, unit: Unit = "bits") -> float:
    """H(P, Q) = -sum p log q: the cost of encoding outcomes from P with a code for Q; infinite where q = 0 < p."""
    p, q = _pair(p, q)
    happens = p > 0
    with np.errstate(divide="ignore"):  # log 0 = -inf is intended
        return _in(unit, float(-np.sum(p[happens] * np.log(q[happens]))))


def perplexity(p: ArrayLike, q: ArrayLike) -> float:
    """exp(H(P, Q)) in nats, 2^H(P, Q) in bits: the number of equally likely outcomes with the same uncertainty.

    Also called the effective branching factor (lecture 004, section 4.8).
    """
    with np.errstate(over="ignore"):  # infinity is intended
        return float(np.exp(cross_entropy(p, q, "nats")))


def kl_divergence(p: ArrayLike, q: ArrayLike, unit: Unit = "bits") -> float:
    """D(P || Q) = sum p log(p / q) = H(P, Q) - H(P): the extra cost of a code for Q compared with one for P.

    Never negative, 0 only where P = Q, infinite where q = 0 < p, and not symmetric (Kullback and Leibler 1951).
    """
    p, q = _pair(p, q)
    happens = p > 0
    with np.errstate(divide="ignore"):
        log_ratio = np.log(p[happens]) - np.log(q[happens])
    # q - p sums to 0. With it no term is negative, and the terms of two close distributions do not cancel.
    terms = q - p
    terms[happens] += p[happens] * log_ratio
    return _in(unit, max(0.0, float(terms.sum())))


def mutual_information(joint: ArrayLike, unit: Unit = "bits") -> float:
    """I(X; Y) = D(P(x, y) || P(x) P(y)): how much X tells about Y, from the table of P(x, y), [X Y].

    It is 0 if they are independent, and H(Y) if X determines Y.
    """
    table = _distribution(joint, "the joint table", n_dims=2)
    table = table / table.sum()  # the product of the margins sums to the square of this sum
    independent = table.sum(1, keepdims=True) * table.sum(0, keepdims=True)
    return kl_divergence(table.ravel(), independent.ravel(), unit)


def _in(unit: Unit, nats: float) -> float:
    if unit not in NATS_PER_UNIT:
        raise UserError(f"unit: {' or '.join(NATS_PER_UNIT)}; got {unit!r}")
    return nats / NATS_PER_UNIT[unit] + 0.0  # -0.0 becomes 0.0


def _pair(p: ArrayLike, q: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    p, q = _distribution(p, "P"), _distribution(q, "Q")
    if len(p) != len(q):
        raise UserError(
            f"P has {len(p)} outcomes, but Q has {len(q)}: give probabilities of the same outcomes"
        )
    return p, q


def _distribution(values: ArrayLike, name: str, n_dims: int = 1) -> np.ndarray:
    p = np.asarray(values, dtype=np.float64)
    if p.ndim != n_dims:
        raise UserError(f"{name} has {p.ndim} dimensions; give an array of {n_dims}")
    if not (p >= 0).all():
        raise UserError(f"{name} holds {p[~(p >= 0)][0]:g}, which is not a probability: none may be below 0")
    if not abs(p.sum() - 1) <= SUM_TOLERANCE:
        raise UserError(f"{name} sums to {p.sum():g}; probabilities sum to 1: divide them by their sum")
    return p
