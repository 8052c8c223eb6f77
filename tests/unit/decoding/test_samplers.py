"""Sampling settings and the draw; that each sampler is its Hugging Face counterpart is a parity test."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from clearformer.config import resolve
from clearformer.decoding.samplers import Sampling, draw, keep_min_p, keep_top_k, keep_top_p, random_stream
from clearformer.errors import ConfigError, UserError

B, V = 3, 7


def log_of(probabilities: Sequence[float]) -> torch.Tensor:
    return torch.tensor([probabilities]).log()


def kept(logits: torch.Tensor) -> list[int]:
    return (logits[0] > -torch.inf).nonzero().flatten().tolist()


class FixedNumbers(np.random.Generator):
    """A stream that always gives one number."""

    def __init__(self, number: float) -> None:
        super().__init__(np.random.PCG64(0))
        self.number = number

    def random(self, *_: Any, **__: Any) -> Any:
        return self.number


# --- settings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 1e-9),
        ("top_k", 0),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("min_p", -0.01),
        ("min_p", 1.5),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 1e-300),
        ("repetition_penalty", 1e300),
        ("temperature", 1e-300),
        ("top_k", 2**63),
        ("temperature", float("nan")),
    ],
)
def test_a_setting_out_of_its_range_is_named(setting: str, value: float) -> None:
    with pytest.raises(ConfigError, match=setting):
        resolve(Sampling, {setting: value})


def test_the_default_leaves_logits_as_they_are() -> None:
    logits = torch.randn(B, V)

    torch.testing.assert_close(Sampling().adjust(logits, [[0]] * B), logits, rtol=0, atol=0)


def test_greedy_still_avoids_repetition() -> None:
    logits = torch.tensor([[2.0, 1.9, -3.0]])

    adjusted = Sampling(temperature=0, repetition_penalty=1.2).adjust(logits, [[0]])

    assert adjusted.argmax().item() == 1


@pytest.mark.parametrize("temperature", [1e-6, 1e-3])
def test_the_lowest_temperatures_draw_what_greedy_chooses(temperature: float) -> None:
    logits = 100 * torch.randn(B, V)

    adjusted = Sampling(temperature=temperature).adjust(logits, [[0]] * B)

    streams = [random_stream(0, row) for row in range(B)]
    assert draw(adjusted, streams).tolist() == logits.argmax(-1).tolist()


# --- what is kept, on examples small enough to see ----------------------------------------------------------


def test_top_k_keeps_the_likeliest() -> None:
    assert kept(keep_top_k(log_of([0.1, 0.4, 0.2, 0.3]), 2)) == [1, 3]


@pytest.mark.parametrize(
    ("p", "expected"), [(0.39, [1]), (0.41, [1, 3]), (0.71, [1, 2, 3]), (0.95, [0, 1, 2, 3])]
)
def test_top_p_keeps_the_smallest_set_that_reaches_p(p: float, expected: list[int]) -> None:
    assert kept(keep_top_p(log_of([0.1, 0.4, 0.2, 0.3]), p)) == expected


@pytest.mark.parametrize(
    ("p", "expected"), [(0.2, [0, 1, 2, 3]), (0.3, [1, 2, 3]), (0.7, [1, 3]), (1.0, [1])]
)
def test_min_p_is_relative_to_the_likeliest(p: float, expected: list[int]) -> None:
    assert kept(keep_min_p(log_of([0.1, 0.4, 0.2, 0.3]), p)) == expected


# --- the draw ---------------------------------------------------------------------------------------------


def test_tokens_come_as_often_as_they_are_likely() -> None:
    probabilities, n = [0.07, 0.5, 0.0, 0.3, 0.13], 20_000
    stream = random_stream(0, 0)

    tokens = draw(log_of(probabilities).expand(n, -1), [stream] * n)

    frequencies = tokens.bincount(minlength=5) / n
    assert frequencies.tolist() == pytest.approx(probabilities, abs=0.015)  # four standard deviations
    assert frequencies[2] == 0


def test_a_very_rare_token_has_its_due() -> None:
    logits = log_of([0.6, 1e-10, 0.4])
    first, rare, last = logits.softmax(-1)[0].double().tolist()
    just_behind_the_first = (first + rare / 2) / (first + rare + last)

    assert draw(logits, [FixedNumbers(just_behind_the_first)]).tolist() == [1]


@pytest.mark.parametrize("number", [0.9999, 1 - 2**-53])
def test_every_number_below_one_gives_a_token(number: float) -> None:
    logits = 3 * torch.randn(1000, V)  # whose probabilities sum to a little more or less than 1

    tokens = draw(logits.masked_fill(torch.arange(V) == V - 1, -torch.inf), [FixedNumbers(number)] * 1000)

    assert tokens.max() == V - 2


@pytest.mark.parametrize(("number", "token"), [(0.0, 1), (0.49, 1), (0.5, 3), (1 - 2**-53, 3)])
def test_what_is_ruled_out_is_not_drawn_even_at_the_ends(number: float, token: int) -> None:
    logits = log_of([0.0, 0.5, 0.0, 0.5, 0.0])

    assert draw(logits, [FixedNumbers(number)]).tolist() == [token]


def test_a_row_draws_from_its_own_stream_alone() -> None:
    logits = torch.randn(B, V)

    together = draw(logits, [random_stream(3, row) for row in range(B)])

    for row in range(B):
        assert draw(logits[[row]], [random_stream(3, row)]).tolist() == [together[row].item()]


def test_streams_differ_by_seed_and_by_row() -> None:
    first_numbers = {random_stream(seed, row).random() for seed in range(4) for row in range(4)}

    assert len(first_numbers) == 16


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(UserError, match=r"seed.*-1"):
        random_stream(-1, 0)


def test_the_global_random_numbers_are_left_alone() -> None:
    before = torch.get_rng_state()

    draw(torch.randn(1, V, generator=torch.Generator().manual_seed(0)), [random_stream(0, 0)])

    assert torch.equal(torch.get_rng_state(), before)
