"""What attention keeps between calls."""

from typing import Any

import pytest
import torch

from clearformer.errors import UserError
from clearformer.model import EncoderOutput, ModelConfig, build
from clearformer.model.attention import MultiHead
from clearformer.model.cache import BlockCache, Cache, KeyValueCache, LinearCache, MemoryCache
from clearformer.model.linear_attention import Linear

B, K, DH, DV, V = 2, 3, 4, 5, 13


def test_keys_and_values_are_kept_in_order_as_the_cache_grows() -> None:
    cache, keys, values = KeyValueCache(), torch.randn(B, K, 17, DH), torch.randn(B, K, 17, DV)
    n = 0
    for size in (1, 1, 2, 5, 1, 7):
        kept = cache.append(n, keys[:, :, n : n + size], values[:, :, n : n + size])
        n += size
        assert torch.equal(kept[0], keys[:, :, :n])
        assert torch.equal(kept[1], values[:, :, :n])
    assert n == 17


def test_a_cache_makes_room_by_doubling() -> None:
    """So that a text of n tokens is copied log n times, and not n times."""
    cache, moves, place = KeyValueCache(), 0, 0
    for n in range(100):
        keys, _values = cache.append(n, torch.zeros(B, K, 1, DH), torch.zeros(B, K, 1, DV))
        moves += keys.data_ptr() != place
        place = keys.data_ptr()
    assert moves <= 8


def test_a_cache_with_room_stays_where_it_is() -> None:
    layers, x = [KeyValueCache(), KeyValueCache()], torch.randn(B, K, 3, DH)
    cache, places = Cache([BlockCache(layer) for layer in layers]), []
    for layer in layers:
        layer.append(0, x, x)
    cache.extend(3, None)

    cache.make_room(100)
    for n in range(3, 100):
        for layer in layers:
            keys, values = layer.append(n, x[:, :, :1], x[:, :, :1])
            assert torch.equal(keys[:, :, :3], x)
            places.append((keys.data_ptr(), values.data_ptr()))

    assert len(set(places)) == len(layers)
    cache.make_room(50)  # there is more already
    assert layers[0].append(99, x[:, :, :1], x[:, :, :1])[0].data_ptr() == places[0][0]


def test_rows_are_kept_in_the_order_asked_for() -> None:
    cache, keys, values = KeyValueCache(), torch.randn(B, K, 3, DH), torch.randn(B, K, 3, DV)
    cache.append(0, keys[:, :, :2], values[:, :, :2])
    rows = torch.tensor([1, 1, 0])

    cache.select(rows)
    kept = cache.append(2, keys[rows][:, :, 2:], values[rows][:, :, 2:])

    assert torch.equal(kept[0], keys[rows])
    assert torch.equal(kept[1], values[rows])


@pytest.mark.parametrize("layer", [KeyValueCache(), LinearCache()])
@pytest.mark.parametrize("cross", [None, MemoryCache()])
def test_an_empty_cache_has_no_rows_to_select(
    layer: KeyValueCache | LinearCache, cross: MemoryCache | None
) -> None:
    Cache([BlockCache(layer, cross)]).select(torch.tensor([0]))


def test_keys_and_values_of_a_memory_are_made_once_and_their_rows_kept_in_order() -> None:
    cache, calls = MemoryCache(), []
    keys, values = torch.randn(B, 7, K, DH), torch.randn(B, 7, K, DV)

    def make() -> tuple[torch.Tensor, torch.Tensor]:
        calls.append(1)
        return keys, values

    for _ in range(3):
        kept = cache.once(make)
        assert kept[0] is keys
        assert kept[1] is values
    rows = torch.tensor([1, 1, 0])
    cache.select(rows)
    kept = cache.once(make)

    assert torch.equal(kept[0], keys[rows])
    assert torch.equal(kept[1], values[rows])
    assert len(calls) == 1


def test_a_cache_selects_in_both_parts_of_a_block() -> None:
    block = BlockCache(KeyValueCache(), MemoryCache())
    assert isinstance(block.attn, KeyValueCache)
    assert block.cross is not None
    keys, values = torch.randn(B, K, 3, DH), torch.randn(B, K, 3, DV)
    block.attn.append(0, keys[:, :, :2], values[:, :, :2])
    block.cross.once(lambda: (keys, values))
    rows = torch.tensor([1, 0, 1])

    Cache([block]).select(rows)

    own = block.attn.append(2, keys[rows][:, :, 2:], values[rows][:, :, 2:])
    read = block.cross.once(lambda: (keys, values))
    for found, expected in zip([*own, *read], [keys, values] * 2, strict=True):
        assert torch.equal(found, expected[rows])


def test_a_memory_s_rows_are_selected_with_their_padding() -> None:
    vectors, real, rows = torch.randn(B, 3, DH), torch.tensor([[True] * 3, [True, False, False]]), [1, 1, 0]

    padded = EncoderOutput(vectors, real).select(torch.tensor(rows))
    whole = EncoderOutput(vectors).select(torch.tensor(rows))

    assert torch.equal(padded.vectors, vectors[rows])
    assert padded.padding is not None
    assert torch.equal(padded.padding, real[rows])
    assert torch.equal(whole.vectors, vectors[rows])
    assert whole.padding is None


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
    model = build(ModelConfig(vocab_size=V, d_model=14, max_seq_len=7, attention=attention))
    tokens, cache = torch.randint(V, (B, 7)), model.new_cache()
    model(tokens[:, :6], cache=cache)

    with pytest.raises(UserError, match="8 tokens long, but the model reads at most 7"):
        model(tokens[:, :2], cache=cache)

    assert cache.length == 6
    torch.testing.assert_close(model(tokens[:, 6:], cache=cache)[:, 0], model(tokens)[:, 6])


class Unplugged(Exception):
    pass


def fails(*_: Any) -> Any:
    raise Unplugged


@pytest.mark.parametrize("attention", [MultiHead(n_heads=2), Linear(n_heads=2)])
@torch.no_grad()
def test_a_cache_whose_last_call_failed_halfway_is_refused(attention: Any) -> None:
    """Its first layers have kept the new keys by then, or added them to their sums, and its last have not."""
    model = build(ModelConfig(vocab_size=V, d_model=14, attention=attention, n_layers=2)).eval()
    tokens, cache = torch.randint(V, (B, 4)), model.new_cache()
    model(tokens[:, :3], cache=cache)
    with pytest.raises(Unplugged), model.hooked({"blocks.1.hook_resid_mid": fails}):
        model(tokens[:, 3:], cache=cache)
    with pytest.raises(
        UserError, match=r"^cache: its last call failed halfway; model\.new_cache\(\) begins anew"
    ):
        model(tokens[:, 3:], cache=cache)


@pytest.mark.parametrize("attention", [MultiHead(n_heads=2), Linear(n_heads=2)])
@torch.no_grad()
def test_a_batch_of_other_rows_than_those_in_the_cache_is_refused(attention: Any) -> None:
    model = build(ModelConfig(vocab_size=V, d_model=14, attention=attention)).eval()
    tokens, cache = torch.randint(V, (B, 4)), model.new_cache()
    model(tokens[:, :3], cache=cache)

    with pytest.raises(UserError, match=rf"^tokens: a batch of 1 row, but the cache holds {B} \("):
        model(tokens[:1, 3:], cache=cache)

    assert cache.length == 3
    torch.testing.assert_close(model(tokens[:, 3:], cache=cache)[:, 0], model(tokens)[:, 3])
    cache.select(torch.tensor([0]))
    model(tokens[:1, 3:], cache=cache)


@torch.no_grad()
def test_cross_attention_turns_the_source_into_keys_once_for_all_steps() -> None:
    config = ModelConfig(family="encoder-decoder", vocab_size=V, d_model=14, attention=MultiHead(n_heads=2))
    model = build(config)
    memory, cache, calls = model.encode(torch.randint(V, (B, 5))), model.new_cache(), []
    for block in model.decoder_blocks:
        block.get_submodule("cross_attn.W_K").register_forward_hook(lambda *_: calls.append(1))

    for token in torch.randint(V, (B, 3)).split(1, dim=1):
        model.decode(token, memory, cache=cache)

    assert len(calls) == config.decoder_layers
