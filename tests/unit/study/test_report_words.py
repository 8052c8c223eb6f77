"""Numbers as people read them."""

import pytest

from clearformer.study.outcomes import Estimate, estimated
from clearformer.study.words import (
    MINUS,
    NONE,
    TIMES,
    as_written,
    estimate_text,
    interval_text,
    mean_text,
    named,
    number,
    power_of_ten,
    signed_text,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1.25, "1.250"),
        (65.0, "65"),
        (2921984.0, "2,921,984"),
        (1234.5, "1,234"),
        (-0.37381, MINUS + "0.3738"),
        (0.00012345, "0.0001234"),
        (3.25e-11, f"3.25 {TIMES} 10⁻¹¹"),
        (1.5e12 + 0.5, f"1.5 {TIMES} 10¹²"),
        (float("nan"), NONE),
        (None, NONE),
    ],
)
def test_numbers_have_sensible_digits(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(1.63, "1.63"), (65.0, "65"), (28.6e6, "28,600,000"), (1e-10, f"1 {TIMES} 10⁻¹⁰")]
)
def test_published_numbers_are_written_as_the_lecture_has_them(value: float, text: str) -> None:
    assert as_written(value) == text


def between(low: float, high: float) -> Estimate:
    return Estimate((low + high) / 2, low, high, 3, (low, (low + high) / 2, high))


def test_a_mean_has_the_digits_that_its_interval_leaves() -> None:
    assert estimate_text(between(1.618, 1.646)) == "1.632 ± 0.014"
    assert interval_text(between(1.618, 1.646)) == "1.618 to 1.646"
    assert mean_text(between(1.618, 1.646)) == "1.632"
    assert estimate_text(between(900, 1100)) == "1,000 ± 100"


def test_a_small_mean_and_its_interval_share_a_power_of_ten() -> None:
    assert estimate_text(between(2e-11, 4e-11)) == f"(3.0 ± 1.0) {TIMES} 10⁻¹¹"
    assert mean_text(between(2e-11, 4e-11)) == f"3 {TIMES} 10⁻¹¹"


def test_a_mean_alone_keeps_its_power_of_ten_where_only_its_interval_is_large() -> None:
    assert estimate_text(between(-1.2e9, 2e9)) == f"(0.4 ± 1.6) {TIMES} 10⁹"
    assert mean_text(between(-1.2e9, 2e9)) == "400,000,000"
    assert signed_text(between(-2e9, 1.2e9)) == MINUS + "400,000,000"


def test_one_seed_has_a_mean_alone() -> None:
    one = Estimate(1.5, None, None, 1, (1.5,))
    assert (estimate_text(one), interval_text(one)) == ("1.500", NONE)


def test_a_difference_has_its_sign() -> None:
    assert signed_text(between(0.1, 0.3)) == "+0.20"
    assert signed_text(between(-0.3, -0.1)) == MINUS + "0.20"


def test_values_are_named_with_their_units() -> None:
    assert named("val_loss") == "held-out loss, nats a token"
    assert named("own_weight", "share") == "own weight, share"
    assert named("val_loss", loss_unit="nats a text") == "held-out loss, nats a text"
    assert named("entropy_rate", loss_unit="nats a text") == "entropy rate, nats a symbol"


def test_a_narrow_interval_brings_no_more_than_six_digits() -> None:
    narrow = estimated([0.5315523, 0.5315586, 0.5315648])
    assert estimate_text(narrow) == "0.531559 ± 0.000016"
    assert interval_text(narrow) == "0.531543 to 0.531574"
    assert estimate_text(estimated([-0.001, 0.001])).startswith("0.000 ± 0.0")


def test_an_end_that_is_not_zero_is_not_shown_as_zero() -> None:
    assert interval_text(between(-1.0, -0.004)) == "\N{MINUS SIGN}1.00 to " + power_of_ten(-0.004)
    assert interval_text(between(-1.0, 0.0)) == "\N{MINUS SIGN}1.00 to 0.00"
    assert interval_text(between(2.0, 2.0)) == "all equal"
