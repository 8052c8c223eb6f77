"""Information measures: the lecture's worked values, the identities, and what is refused."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearformer.errors import UserError
from clearformer.evaluation.information import (
    cross_entropy,
    entropy,
    kl_divergence,
    mutual_information,
    perplexity,
)

FAIR, LOADED = [0.5, 0.5], [0.9, 0.1]
TRUE, GOOD, BAD = [0.0, 1.0, 0.0], [0.05, 0.9, 0.05], [0.3, 0.4, 0.3]
P, Q = [0.7, 0.2, 0.1], [0.5, 0.3, 0.2]


@st.composite
def distributions(draw: st.DrawFn, n: int = 5) -> np.ndarray:
    weights = np.array(draw(st.lists(st.integers(0, 9), min_size=n, max_size=n).filter(any)), dtype=float)
    return weights / weights.sum()


# --- lecture 002, section 2, in bits ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "published"),
    [
        (entropy(FAIR), 1.0),
        (entropy(LOADED), 0.4690),
        (cross_entropy(TRUE, GOOD), 0.1520),
        (cross_entropy(TRUE, BAD), 1.3219),
        (kl_divergence(P, Q), 0.1228),
        (cross_entropy(P, Q), 1.2796),
        (entropy(P), 1.1568),
    ],
)
def test_the_lectures_values_to_its_four_digits(value: float, published: float) -> None:
    assert value == pytest.approx(published, abs=5e-5)


@pytest.mark.parametrize(("q", "published"), [(GOOD, 1.11), (BAD, 2.50)])
def test_the_lectures_perplexities(q: Sequence[float], published: float) -> None:
    assert perplexity(TRUE, q) == pytest.approx(published, abs=5e-3)
    assert perplexity(TRUE, q) == pytest.approx(2 ** cross_entropy(TRUE, q))


# --- what they mean ---------------------------------------------------------------------------------------


@given(p=distributions(), q=distributions())
def test_cross_entropy_is_entropy_and_divergence(p: np.ndarray, q: np.ndarray) -> None:
    q = (q + 0.1) / (q + 0.1).sum()  # all possible

    assert cross_entropy(p, q) == pytest.approx(entropy(p) + kl_divergence(p, q), abs=1e-12)
    assert kl_divergence(p, q) >= 0
    assert kl_divergence(p, p) == 0


@given(p=distributions(), q=distributions())
def test_independent_variables_say_nothing_of_each_other(p: np.ndarray, q: np.ndarray) -> None:
    assert 0 <= mutual_information(np.outer(p, q)) < 1e-12


@given(p=distributions())
def test_a_variable_says_all_of_what_it_determines(p: np.ndarray) -> None:
    joint = np.zeros((5, 3))
    joint[np.arange(5), [0, 2, 1, 2, 0]] = p  # Y as a function of X

    assert mutual_information(joint) == pytest.approx(entropy(joint.sum(0)), abs=1e-12)
    assert mutual_information(joint.T) == pytest.approx(mutual_information(joint), abs=1e-12)


@pytest.mark.parametrize("n", [1, 2, 7])
def test_a_uniform_choice_of_n_has_perplexity_n(n: int) -> None:
    uniform = [1 / n] * n

    assert entropy(uniform) == pytest.approx(math.log2(n))
    assert perplexity(uniform, uniform) == pytest.approx(n)


def test_a_nat_is_more_than_a_bit() -> None:
    assert entropy(FAIR, unit="nats") == pytest.approx(math.log(2))
    assert cross_entropy(P, Q, "nats") == pytest.approx(1.2796 * math.log(2), abs=5e-5)
    assert kl_divergence(P, Q, "nats") == pytest.approx(0.1228 * math.log(2), abs=5e-5)
    assert mutual_information(np.diag(FAIR), "nats") == pytest.approx(math.log(2))


def test_a_table_of_rounded_probabilities_is_read_as_one_that_sums_to_1() -> None:
    table = np.diag(FAIR) * (1 + 8e-6)
    assert mutual_information(table, "nats") == pytest.approx(math.log(2))


def test_what_cannot_happen_costs_nothing() -> None:
    certain = entropy([0.0, 1.0])

    assert certain == 0
    assert math.copysign(1, certain) == 1  # not -0.0


def test_what_was_thought_impossible_costs_infinitely_much() -> None:
    assert cross_entropy([0.5, 0.5], [1.0, 0.0]) == math.inf
    assert kl_divergence([0.5, 0.5], [1.0, 0.0]) == math.inf
    assert perplexity([0.5, 0.5], [1.0, 0.0]) == math.inf
    assert perplexity([0.0, 1.0], [1.0, 5e-324]) == math.inf  # e^744, beyond a float64
    assert kl_divergence([1.0, 0.0], [0.5, 0.5]) == 1


def test_a_softmax_in_float32_is_a_distribution() -> None:
    scores = np.random.default_rng(0).normal(size=50_257).astype(np.float32)
    q = np.exp(scores) / np.exp(scores).sum()

    assert 0 < entropy(q, "nats") < math.log(50_257)


def test_the_divergence_of_two_close_distributions_in_float32_is_not_that_of_their_rounding() -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(2, 50_257)) * [[1], [1e-4]]
    exact, rounded = [], []
    for logits in (scores[0], scores.sum(0)):
        exact.append(np.exp(logits) / np.exp(logits).sum())
        single = np.exp(logits.astype(np.float32))
        rounded.append(single / single.sum())

    assert kl_divergence(*rounded) == pytest.approx(kl_divergence(*exact), rel=0.01)


# --- what is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("p", "message"),
    [
        ([0.5, 0.6], "P sums to 1.1"),
        ([1.5, -0.5], "P holds -0.5"),
        ([0.5, math.nan], "P holds nan"),
        ([0.5, math.inf], "P sums to inf"),
        ([], "P sums to 0"),
        ([[0.5, 0.5]], "P has 2 dimensions"),
    ],
)
def test_no_distribution(p: Sequence[float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        entropy(p)


def test_other_misuse_is_named() -> None:
    with pytest.raises(UserError, match=r"Q sums to 0\.9"):
        kl_divergence(FAIR, [0.5, 0.4])
    with pytest.raises(UserError, match="P has 2 outcomes, but Q has 3"):
        cross_entropy(FAIR, Q)
    with pytest.raises(UserError, match="joint table sums to 2"):
        mutual_information([[0.5, 0.5], [0.5, 0.5]])
    with pytest.raises(UserError, match="bits or nats; got 'bans'"):
        entropy(FAIR, unit="bans")  # type: ignore[arg-type]
