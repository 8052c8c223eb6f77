"""A window block by block is the masked formula, values and gradients, whatever the sizes."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clearformer.hooks import hooked
from clearformer.model.attention import Attention, MultiHead
from clearformer.model.cache import KeyValueCache
from clearformer.model.fast.window import WindowBlocks, window_blocks, within_reach
from clearformer.model.masks import Mask

B, H, K, DH = 2, 6, 3, 5


def text_mask(n: int, causal: bool, first: int = 0) -> Mask:
    return Mask(q_pos=torch.arange(n) + first, k_pos=torch.arange(n) + first, causal=causal)


def attention_with(window: int, dropout: float = 0.0) -> Attention:
    return MultiHead(n_heads=H, n_kv_heads=K, d_head=DH, window=window).build(7, dropout)


def heads(n_queries: int, n_keys: int | None = None, n_texts: int = B) -> list[Tensor]:
    """Queries, keys and values."""
    n_keys = n_queries if n_keys is None else n_keys
    return [
        torch.randn(n_texts, *shape, DH, dtype=torch.float64, requires_grad=True)
        for shape in ((H, n_queries), (K, n_keys), (K, n_keys))
    ]


def masked(q: Tensor, k: Tensor, v: Tensor, mask: Mask, window: int, bias: Tensor | None = None) -> Tensor:
    """The formula over all T x T scores."""
    return attention_with(window).formula(q, k, v, mask, bias)


def assert_equal_with_gradients(one: Tensor, other: Tensor, inputs: list[Tensor]) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    weight = torch.randn_like(one)
    for a, b in zip(*(torch.autograd.grad(z, inputs, weight) for z in (one, other)), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


# --- how texts are cut up ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "window", "causal", "blocks"),
    [
        # T, C, N, S by hand: a window of 5 in blocks of 32 reads one more, a window of 67 in blocks of 34 two more
        (131, 5, True, (32, 5, 64)),
        (128, 5, True, (32, 4, 64)),
        (127, 5, True, None),
        (64, 1, True, (32, 2, 32)),
        (204, 67, True, (34, 6, 102)),
        (203, 67, True, None),
        (384, 128, True, (64, 6, 192)),
        (383, 128, True, None),
        (193, 5, False, (32, 7, 96)),
        (191, 5, False, None),
        (10_007, 4096, True, None),
        (12_288, 4096, True, (2048, 6, 6144)),
        (500, None, True, None),
    ],
)
def test_texts_are_cut_up_where_that_saves_half_of_the_scores(
    n: int, window: int | None, causal: bool, blocks: tuple[int, int, int] | None
) -> None:
    found = window_blocks(text_mask(n, causal), window)
    assert (found and (found.size, found.n_blocks, found.n_keys)) == blocks
    if found is not None and blocks is not None:
        size, n_blocks, n_keys = blocks
        assert found.n_pairs == n_blocks * size * n_keys
        assert found.n_pairs <= 0.5 * n * (n + size)


def test_texts_are_cut_up_where_shapes_tell_who_is_near() -> None:
    n = 500
    positions, real = torch.arange(n), torch.ones(B, n, dtype=torch.bool)
    assert window_blocks(Mask(positions, positions, True), 5) is not None
    assert window_blocks(Mask(positions, positions, True, real), 5) is None
    assert window_blocks(Mask(positions[3:], positions, True), 5) is None


# --- equal to the formula ---------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("formula", [True, False])
@settings(max_examples=30)
@given(n=st.integers(1, 41), window=st.integers(1, 44), least=st.integers(1, 7))
def test_a_window_in_blocks_is_the_masked_formula(
    causal: bool, formula: bool, n: int, window: int, least: int
) -> None:
    """In the open and fused; with blocks so small that few numbers have many of them."""
    attention, mask, (q, k, v) = attention_with(window), text_mask(n, causal), heads(n)

    with (
        patch("clearformer.model.fast.window.LEAST_BLOCK", least),
        patch("clearformer.model.fast.attention_forms.formula_is_faster", return_value=formula),
    ):
        z = attention.mix(q, k, v, mask, None, None)

    assert_equal_with_gradients(z, masked(q, k, v, mask, window), [q, k, v])


SIZES = [(64, 1), (131, 1), (128, 31), (131, 32), (131, 33), (192, 35), (193, 64), (204, 67), (211, 65)]


@pytest.mark.parametrize(("n", "window"), SIZES)
def test_a_window_in_blocks_of_the_usual_size_is_the_masked_formula(n: int, window: int) -> None:
    attention, mask, (q, k, v) = attention_with(window), text_mask(n, causal=True), heads(n)
    assert window_blocks(mask, window) is not None
    z = attention.mix(q, k, v, mask, None, None)
    assert_equal_with_gradients(z, masked(q, k, v, mask, window), [q, k, v])


@pytest.mark.parametrize(("n", "window"), [(64, 1), (193, 2), (197, 33), (342, 67)])
def test_so_is_a_window_to_both_sides(n: int, window: int) -> None:
    attention, mask, (q, k, v) = attention_with(window), text_mask(n, causal=False), heads(n)
    assert window_blocks(mask, window) is not None
    z = attention.mix(q, k, v, mask, None, None)
    assert_equal_with_gradients(z, masked(q, k, v, mask, window), [q, k, v])


def test_blocks_begin_anew_with_every_text() -> None:
    """What stands at the end of one is not read at the beginning of the next."""
    attention, mask, (q, k, v) = attention_with(5), text_mask(131, causal=True), heads(131, n_texts=3)
    together = attention.mix(q, k, v, mask, None, None)
    for i in range(3):
        alone = attention.mix(q[[i]], k[[i]], v[[i]], mask, None, None)
        torch.testing.assert_close(together[[i]], alone, rtol=0, atol=1e-12)


def test_where_a_text_begins_to_count_makes_no_difference() -> None:
    attention, (q, k, v) = attention_with(5), heads(131)
    here, there = (
        attention.mix(q, k, v, text_mask(131, causal=True, first=first), None, None) for first in (0, 389)
    )
    assert torch.equal(here, there)


@torch.no_grad()
def test_dropout_in_blocks_leaves_the_expected_pattern() -> None:
    n, window, draws = 13, 3, 4000
    attention, mask = attention_with(window, dropout=0.5), text_mask(n, causal=True)
    q, k, v = (x.expand(draws, *x.shape[1:]) for x in heads(n, n_texts=1))

    with patch("clearformer.model.fast.window.LEAST_BLOCK", 1):
        assert window_blocks(mask, window) is not None
        z = attention.train().mix(q, k, v, mask, None, None)
        still = attention.eval().mix(q, k, v, mask, None, None)

    assert z.std(0).min() > 0
    assert (z.mean(0) - still.mean(0)).abs().max() < 6 * z.std(0).max() / draws**0.5


@torch.no_grad()
def test_who_looks_sees_all_of_the_scores() -> None:
    attention, mask, (q, k, v) = attention_with(5), text_mask(131, causal=True), heads(131)
    seen: list[Tensor] = []
    with hooked(attention, {"hook_pattern": lambda pattern, _: seen.append(pattern)}):
        attention.mix(q, k, v, mask, None, None)
    assert [pattern.shape for pattern in seen] == [(B, H, 131, 131)]


def test_what_is_added_to_the_scores_is_added() -> None:
    """A bias is of all T x T scores, so they are formed."""
    attention, mask, (q, k, v) = attention_with(5), text_mask(131, causal=True), heads(131)
    bias = torch.randn(H, 131, 131, dtype=torch.float64)
    z = attention.mix(q, k, v, mask, bias, None)
    assert_equal_with_gradients(z, masked(q, k, v, mask, 5, bias), [q, k, v])


# --- a cache ----------------------------------------------------------------------------------------------


def calls(n_before: int, n_new: int) -> Iterator[Any]:
    for window in (1, 2, n_before, n_before + n_new - 1, n_before + n_new, n_before + n_new + 1):
        yield pytest.param(n_before, n_new, window, id=f"{n_before}-{n_new}-{window}")


@pytest.mark.parametrize(("n_before", "n_new", "window"), [*calls(11, 1), *calls(7, 5)])
@torch.no_grad()
def test_new_tokens_read_the_end_of_a_cache_as_the_masked_formula_does(
    n_before: int, n_new: int, window: int
) -> None:
    n = n_before + n_new
    attention, (q, k, v) = attention_with(window), heads(n)
    cache = KeyValueCache()
    cache.append(0, k[:, :, :n_before], v[:, :, :n_before])
    mask = Mask(torch.arange(n_before, n), torch.arange(n), causal=True)
    new = slice(n_before, None)

    z = attention.mix(q[:, :, new], k[:, :, new], v[:, :, new], mask, None, cache)

    expected = masked(q, k, v, text_mask(n, causal=True), window)[:, :, new]
    torch.testing.assert_close(z, expected, rtol=0, atol=1e-12)


def test_keys_too_far_back_are_left_out() -> None:
    _, k, v = heads(3, n_keys=13)
    mask = Mask(torch.arange(10, 13), torch.arange(13), causal=True)

    near_k, near_v, near = within_reach(k, v, mask, window=4)

    assert torch.equal(near_k, k[:, :, 7:])  # position 10 reads 7 to 10
    assert torch.equal(near_v, v[:, :, 7:])
    assert torch.equal(near.attend(4), mask.attend(4)[..., 7:])
    assert not mask.attend(4)[..., :7].any()


def test_of_padded_texts_all_keys_are_kept() -> None:
    """Between a query and a key that is near may stand padding."""
    _, k, v = heads(1, n_keys=13)
    real = torch.ones(B, 13, dtype=torch.bool)
    real[0, 5:11] = False
    places = (real.cumsum(1) - 1).clamp_min(0)
    mask = Mask(places[:, -1:], places, causal=True, padding=real)
    assert within_reach(k, v, mask, window=4) == (k, v, mask)


def test_keys_and_queries_of_a_block_by_hand() -> None:
    """Five positions in blocks of two, each beside the block before it."""
    blocks = WindowBlocks(n_positions=5, size=2, n_before=1, n_after=0)
    x = torch.arange(1.0, 6.0).reshape(1, 1, 5, 1)

    assert blocks.queries(x)[:, 0, :, 0].tolist() == [[1, 2], [3, 4], [5, 0]]
    assert blocks.keys(x)[:, 0, :, 0].tolist() == [[0, 0, 1, 2], [1, 2, 3, 4], [3, 4, 5, 0]]
    assert torch.equal(blocks.joined(blocks.queries(x)), x)
    attend = blocks.mask(1, causal=True, device=x.device).attend(2)
    assert attend[:, 0].int().tolist() == [
        [[0, 0, 1, 0], [0, 0, 1, 1]],
        [[0, 1, 1, 0], [0, 0, 1, 1]],
        [[0, 1, 1, 0], [0, 0, 1, 0]],
    ]
