"""What attention keeps between calls."""

from typing import Any

import pytest
import torch

from clearformer.errors import UserError
from clearformer.model import Decoder, ModelConfig
from clearformer.model.attention import Linear, MultiHead
from clearformer.model.cache import Cache, KeyValueCache, LinearCache

B, K, DH, DV, V = 2, 3, 4, 5, 13


def test_keys_and_values_are_kept_in_order_as_the_cache_grows() -> None:
    cache, keys, values = KeyValueCache(), torch.randn(B, K, 17, DH), torch.randn(B, K, 17, DV)
    n = 0
    for size in (1, 1, 2, 5, 1, 7):
        kept = cache.append(keys[:, :, n : n + size], values[:, :, n : n + size])
        n += size
        assert torch.equal(kept[0], keys[:, :, :n])
        assert torch.equal(kept[1], values[:, :, :n])
    assert cache.length == n == 17


def test_a_cache_makes_room_by_doubling() -> None:
    """So that a text of n tokens is copied log n times, and not n times."""
    cache, moves, place = KeyValueCache(), 0, 0
    for _ in range(100):
        keys, _values = cache.append(torch.zeros(B, K, 1, DH), torch.zeros(B, K, 1, DV))
        moves += keys.data_ptr() != place
        place = keys.data_ptr()
    assert moves <= 8


def test_rows_are_kept_in_the_order_asked_for() -> None:
    cache, keys, values = KeyValueCache(), torch.randn(B, K, 3, DH), torch.randn(B, K, 3, DV)
    cache.append(keys[:, :, :2], values[:, :, :2])
    rows = torch.tensor([1, 1, 0])

    cache.select(rows)
    kept = cache.append(keys[rows][:, :, 2:], values[rows][:, :, 2:])

    assert torch.equal(kept[0], keys[rows])
    assert torch.equal(kept[1], values[rows])


@pytest.mark.parametrize("layer", [KeyValueCache(), LinearCache()])
def test_an_empty_cache_has_no_rows_to_select(layer: KeyValueCache | LinearCache) -> None:
    Cache([layer]).select(torch.tensor([0]))


@pytest.mark.parametrize(
    ("dtype", "kept"),
    [(torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64)],
)
def test_linear_sums_begin_at_zero_in_float32_at_least(dtype: torch.dtype, kept: torch.dtype) -> None:
    outer, keys = LinearCache().sums(
        torch.ones(B, K, 7, DH, dtype=dtype), torch.ones(B, K, 7, DV, dtype=dtype)
    )
    assert (outer.shape, outer.dtype) == ((B, K, DH, DV), kept)
    assert (keys.shape, keys.dtype) == ((B, K, DH), kept)
    assert not outer.any()
    assert not keys.any()


def test_padding_of_chunks_is_joined() -> None:
    cache, real = Cache([]), torch.tensor([[False, True], [True, True]])
    assert cache.joined_padding(3, None) is None
    cache.extend(3, None)

    joined = cache.joined_padding(2, real)
    assert joined is not None
    assert joined.tolist() == [[True, True, True, False, True], [True] * 5]

    cache.extend(2, joined)
    joined = cache.joined_padding(1, None)
    assert joined is not None
    assert joined.tolist() == [[True, True, True, False, True, True], [True] * 6]
    assert cache.length == 5


@pytest.mark.parametrize("attention", [MultiHead(n_heads=2), Linear(n_heads=2)])
@torch.no_grad()
def test_a_text_that_grew_too_long_leaves_the_cache_as_it_was(attention: Any) -> None:
    model = Decoder(ModelConfig(vocab_size=V, d_model=14, max_seq_len=7, attention=attention))
    tokens, cache = torch.randint(V, (B, 7)), model.new_cache()
    model(tokens[:, :6], cache=cache)

    with pytest.raises(UserError, match="8 tokens long and the model reads at most 7"):
        model(tokens[:, :2], cache=cache)

    assert cache.length == 6
    torch.testing.assert_close(model(tokens[:, 6:], cache=cache)[:, 0], model(tokens)[:, 6])
