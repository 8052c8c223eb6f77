"""The share of a held-out text that training has word for word."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearformer.data import Split
from clearformer.data.text import overlap as module
from clearformer.data.text.overlap import n_covered, overlap, usual_width, window_hashes


def split_of(tokens: np.ndarray | list[int], chars_per_token: int = 1) -> Split:
    tokens = np.array(tokens, np.uint16)
    return Split("some", [tokens[:7], tokens[7:]], len(tokens) * chars_per_token, len(tokens))


def share_by_search(held_out: list[int], train: list[int], width: int) -> float:
    """The same by looking at each window of both."""
    there = {tuple(train[i : i + width]) for i in range(len(train) - width + 1)}
    seen = {
        place
        for i in range(len(held_out) - width + 1)
        if tuple(held_out[i : i + width]) in there
        for place in range(i, i + width)
    }
    return len(seen) / len(held_out)


@given(
    held_out=st.lists(st.integers(0, 2), min_size=1, max_size=40),
    train=st.lists(st.integers(0, 2), min_size=1, max_size=60),
    width=st.sampled_from([1, 2, 4, 8]),
    at_once=st.integers(1, 70),
)
@settings(max_examples=150, deadline=None)
def test_it_is_what_a_search_of_every_window_finds(
    held_out: list[int], train: list[int], width: int, at_once: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "READ_AT_ONCE", at_once)
        patch.setattr(module, "TABLE_BITS", 6)
        found = overlap(split_of(held_out), split_of(train), width)
    assert found.share == pytest.approx(share_by_search(held_out, train, width))
    assert found.n_tokens == len(held_out)


def test_two_windows_have_one_hash_only_if_they_are_equal() -> None:
    """Windows that differ in the order of two tokens, in one token, or in where a repetition begins."""
    random = np.random.default_rng(1)
    tokens = np.concatenate([random.integers(0, 50_000, 20_000), np.arange(3_000) % 7, np.arange(3_000) % 11])
    hashes = window_hashes(tokens, 16)
    windows = np.lib.stride_tricks.sliding_window_view(tokens, 16)
    assert len(np.unique(hashes)) == len(np.unique(windows, axis=0))


def test_a_large_split_is_looked_at_in_places_all_over_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_TOKENS", 400)
    monkeypatch.setattr(module, "STRETCH", 100)
    random = np.random.default_rng(2)
    copied, new = random.integers(0, 9_000, 5_000), random.integers(9_000, 18_000, 5_000)
    found = overlap(split_of(np.concatenate([copied, new])), split_of(copied), 8)
    assert (found.share, found.n_tokens) == (0.5, 400)


def test_a_text_shorter_than_a_stretch_is_in_none() -> None:
    assert overlap(split_of([1, 2, 3]), split_of([1, 2, 3]), 4).share == 0
    assert overlap(split_of([1, 2, 3, 4]), split_of([1, 2, 3]), 4).share == 0


@pytest.mark.parametrize(("chars", "width"), [(1, 64), (4, 16), (5, 16), (100, 1)])
def test_a_stretch_has_about_64_characters(chars: int, width: int) -> None:
    assert usual_width(split_of([1] * 10, chars)) == width


def test_tokens_in_several_windows_count_once() -> None:
    assert n_covered(np.array([True, True, False, False, True]), 3) == 7
