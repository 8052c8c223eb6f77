"""Markov chains counted in a text: their stationary distribution, their samples, their own loss."""

import numpy as np
import pytest

from clearformer.data.text.markov import REST, MarkovChain
from clearformer.errors import DataError

TEXT = "To be, or not to be, that is the question: whether 'tis nobler in the mind to suffer. " * 3


@pytest.mark.parametrize("order", [0, 1, 2, 3])
def test_the_frequencies_are_the_stationary_distribution(order: int) -> None:
    chain = MarkovChain.of(TEXT, order, n_symbols=5)
    states, n = chain.stationary, len(chain.symbols)
    moved = np.zeros_like(states)
    for state, symbol in np.ndindex(chain.counts.shape):
        moved[(state * n + symbol) % len(states)] += states[state] * chain.probabilities[state, symbol]
    np.testing.assert_allclose(moved, states, atol=1e-15)
    assert states.sum() == pytest.approx(1)


def test_counts_follow_the_text_as_a_ring() -> None:
    chain = MarkovChain.of("AABb", order=1, n_symbols=3)
    assert chain.symbols == f"ab{REST}"
    assert chain.counts.tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 0]]  # aa ab; ba (around the end) bb


def test_rarer_characters_become_one() -> None:
    chain = MarkovChain.of("aaabbc.", order=0, n_symbols=3)
    assert chain.symbols == f"ab{REST}"
    assert chain.counts.tolist() == [[3, 2, 2]]


def test_the_sign_for_rarer_characters_may_occur_in_a_text_of_few() -> None:
    chain = MarkovChain.of(f"aa{REST}b", order=0, n_symbols=8)
    assert chain.symbols == f"ab{REST}"
    assert chain.counts.tolist() == [[2, 1, 1]]


@pytest.mark.parametrize("order", [0, 1, 2])
def test_a_sample_has_the_chain_s_probabilities(order: int) -> None:
    chain = MarkovChain.of(TEXT, order, n_symbols=4)
    sample = chain.sample(20_000, seed=1)
    assert sample == chain.sample(20_000, seed=1)
    assert sample != chain.sample(20_000, seed=2)
    known = np.maximum(chain.counts.sum(1, keepdims=True), 1)
    found = MarkovChain.of(sample, order, n_symbols=4)
    assert found.symbols == chain.symbols
    often = known[:, 0] > 20
    np.testing.assert_allclose(found.probabilities[often], chain.probabilities[often], atol=0.05)


def test_the_chain_s_loss_of_its_own_text_nears_its_entropy() -> None:
    chain = MarkovChain.of(TEXT, 2, n_symbols=5)
    p = chain.probabilities
    entropy = -(chain.stationary[:, None] * p * np.log(np.where(p > 0, p, 1))).sum()
    surprisals = chain.surprisals(chain.sample(20_000, seed=3))
    assert len(surprisals) == 20_000 - 2
    assert surprisals.mean() == pytest.approx(entropy, abs=0.03)


def test_what_the_chain_never_writes_costs_infinitely_much() -> None:
    assert MarkovChain.of("abab", 1, n_symbols=3).surprisals("aa").tolist() == [np.inf]


def test_a_text_must_be_longer_than_the_order() -> None:
    with pytest.raises(DataError, match="order 3 needs a text of at least 4 characters"):
        MarkovChain.of("abc", 3, n_symbols=3)
