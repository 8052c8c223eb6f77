"""What holds for every encoder and encoder-decoder, whatever their kinds; for decoders, test_model_properties.py."""

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from clearformer.config import Spec
from clearformer.errors import ConfigError
from clearformer.hooks import hook_points
from clearformer.model import EncoderOutput, ModelConfig, Transformer
from clearformer.model.positions import NoPositions

from .models import (
    ATTENTIONS,
    D,
    V,
    config,
    each_kind,
    every_model,
    filled,
    kinds,
    made,
    real_tokens,
    text,
)

B, S, T, C = 2, 7, 5, 3
SIDES = ("left", "right")
EXACT = partial(torch.testing.assert_close, rtol=1e-9, atol=1e-9)  # in float64
PAIR = "encoder-decoder"


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_every_attention_but_last_may_read_another_text(attention: str) -> None:
    for form in ATTENTIONS[attention]:
        with pytest.raises(ConfigError) if attention == "last" else nullcontext():
            config(PAIR, attention=form)


def has_hooks(model: Transformer, patterns: bool = True) -> AbstractContextManager[None]:
    """Where the patterns are looked at, attention takes its explicit form."""
    names = [name for name in hook_points(model) if name.endswith("hook_pattern")]
    return model.hooked({name: lambda _, __: None for name in names if patterns})


def read_by(scores: Tensor, vectors: Tensor) -> Tensor:
    """[B S]: which of the vectors the scores depend on at all."""
    (gradient,) = torch.autograd.grad(scores.square().sum(), vectors, retain_graph=True)
    assert gradient.isfinite().all()
    return (gradient != 0).any(-1)


def vectors(n_tokens: int) -> Tensor:
    return torch.randn(B, n_tokens, D, dtype=torch.float64, requires_grad=True)


# --- hook points ------------------------------------------------------------------------------------------


@each_kind("encoder", n_classes=(None, C))
@torch.no_grad()
def test_an_encoder_comes_by_every_hook_point(case: ModelConfig, n_classes: int | None) -> None:
    model = made(case.replace(**({} if n_classes is None else {"n_classes": C, "masked_head": "none"})))
    _, seen = model.run_with_cache(text(S))
    assert set(seen) == set(hook_points(model))
    assert ("hook_pooled" in seen) == (n_classes is not None)


@each_kind(PAIR, but=["last"])
@torch.no_grad()
def test_an_encoder_decoder_comes_by_every_hook_point_with_a_cache_and_without(case: ModelConfig) -> None:
    model, source, tokens = made(case), text(S), text(T)
    points = set(hook_points(model))
    ours = {name for name in points if "encoder" not in name}
    made_once = {name for name in points if ".cross_attn.k_norm." in name}

    _, whole = model.run_with_cache(source, tokens)
    memory, cache = model.encode(source), model.new_cache()
    seen: list[str] = []
    with model.hooked({"*": lambda _, hook: seen.append(hook.name)}):
        model.decode(tokens[:, :2], memory, cache=cache)
        first, seen[:] = set(seen), []
        model.decode(tokens[:, 2:], memory, cache=cache)

    assert set(whole) == points
    assert first == ours
    assert set(seen) == ours - made_once


# --- the encoder: both directions, padding ----------------------------------------------------------------


@every_model("encoder")
def test_every_token_within_reach_is_read_on_both_sides(case: ModelConfig) -> None:
    model, x = made(case), vectors(S)

    with model.hooked({"hook_embed": lambda _, __: x}):
        logits = model(text(S))

    window = getattr(model.config.attention, "window", None)
    reach = S if window is None else model.config.n_layers * (window - 1)
    if case.attention.kind == "last":
        reach = 0
    for place in (0, 2, S - 1):
        near = (torch.arange(S) - place).abs() <= reach
        assert torch.equal(read_by(logits[:, place], x), near.expand(B, S))


@each_kind("encoder", but=["last", "window"])
@torch.no_grad()
def test_the_last_token_changes_the_first_logits(case: ModelConfig) -> None:
    model, tokens = made(case), text(S)
    changed = tokens.clone()
    changed[:, -1] = (tokens[:, -1] + 1) % V

    assert (model(tokens)[:, 0] - model(changed)[:, 0]).abs().max(-1).values.min() > 1e-12


@every_model("encoder", side=SIDES)
@torch.no_grad()
def test_padding_changes_nothing_for_an_encoder_s_real_tokens(case: ModelConfig, side: str) -> None:
    model, tokens, types = made(case), text(S), torch.randint(2, (B, S))
    real = real_tokens([S, 3], side, S)

    logits = model(tokens, real, types)

    assert logits.isfinite().all(), "padding must not make NaN, which a loss's mask would not stop"
    for row in range(B):
        alone = model(tokens[row][real[row]][None], None, types[row][real[row]][None])
        EXACT(logits[row][real[row]], alone[0])


@every_model("encoder", side=SIDES, pooling=("first", "mean"))
@torch.no_grad()
def test_padding_changes_no_class_s_score(case: ModelConfig, side: str, pooling: str) -> None:
    model, tokens = made(case.replace(n_classes=C, masked_head="none", pooling=pooling)), text(S)
    real = real_tokens([S, 3], side, S)

    scores = model(tokens, real)

    assert scores.shape == (B, C)
    for row in range(B):
        EXACT(scores[row], model(tokens[row][real[row]][None])[0])


@every_model("encoder", side=SIDES, pooling=(None, "first", "mean"))
def test_padding_gives_finite_gradients_in_an_encoder(
    case: ModelConfig, side: str, pooling: str | None
) -> None:
    """A row may be padding throughout: the last batch of a data set."""
    model = made(case.replace(**{"n_classes": C, "pooling": pooling} if pooling else {}))
    real = real_tokens([0, 4], side, S)

    model(text(S), real).square().sum().backward()

    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("position", kinds("position").values())
@torch.no_grad()
def test_an_encoder_knows_order_with_positions_and_not_without(position: type[Spec]) -> None:
    model, tokens = made(config("encoder", position=filled(position), n_layers=1)), torch.arange(5)[None]
    swapped = tokens[:, [2, 1, 0, 3, 4]]

    same = torch.allclose(model(tokens)[:, -1], model(swapped)[:, -1], rtol=0, atol=1e-12)

    assert same == isinstance(model.config.position, NoPositions)


# --- the encoder-decoder: who reads whom ------------------------------------------------------------------


@every_model(PAIR, but=["last"])
@torch.no_grad()
def test_a_changed_token_leaves_earlier_logits_and_a_changed_source_leaves_none(case: ModelConfig) -> None:
    model, source, tokens, place = made(case), text(S), text(T), 2
    changed, other_source = tokens.clone(), source.clone()
    changed[:, place] = (tokens[:, place] + 1) % V
    other_source[:, -1] = (source[:, -1] + 1) % V

    before, after = model(source, tokens), model(source, changed)

    EXACT(after[:, :place], before[:, :place])
    assert (after[:, place] != before[:, place]).any()
    assert (model(other_source, tokens) - before).abs().amax(-1).min() > 1e-12


@every_model(PAIR, but=["last"], explicit=(False, True))
def test_each_position_reads_all_of_the_source_and_nothing_of_the_future(
    case: ModelConfig, explicit: bool
) -> None:
    model, x, memory = made(case), vectors(T), vectors(S)

    with model.hooked({"hook_decoder_embed": lambda _, __: x}), has_hooks(model, explicit):
        logits = model.decode(text(T), EncoderOutput(memory))

    window = getattr(model.config.attention, "window", None)
    reach = T if window is None else model.config.decoder_layers * (window - 1)
    for place in (0, 2, T - 1):
        back = place - torch.arange(T)
        assert torch.equal(read_by(logits[:, place], x), ((back >= 0) & (back <= reach)).expand(B, T))
        assert read_by(logits[:, place], memory).all()


@each_kind(PAIR, but=["last"])
def test_the_source_is_read_by_its_own_words(case: ModelConfig) -> None:
    model, x = made(case), vectors(S)

    with model.hooked({"hook_encoder_embed": lambda _, __: x}):
        logits = model(text(S), text(T))

    assert read_by(logits[:, 0], x).all()
    assert read_by(logits[:, -1], x).all()


# --- the encoder-decoder: padding -------------------------------------------------------------------------


@every_model(PAIR, but=["last"], side=SIDES, target_side=SIDES)
@torch.no_grad()
def test_padding_changes_nothing_for_a_pair_s_real_tokens(
    case: ModelConfig, side: str, target_side: str
) -> None:
    model, source, tokens = made(case), text(S), text(T)
    real_source, real = real_tokens([3, S], side, S), real_tokens([T, 2], target_side, T)

    logits = model(source, tokens, real_source, real)

    assert logits.isfinite().all()
    for row in range(B):
        alone = model(source[row][real_source[row]][None], tokens[row][real[row]][None])
        EXACT(logits[row][real[row]], alone[0])


@every_model(PAIR, but=["last"], side=SIDES)
def test_padding_gives_finite_gradients_in_a_pair(case: ModelConfig, side: str) -> None:
    """The first pair has no source, the second no target."""
    model = made(case)
    real_source, real = real_tokens([0, 4], "right", S), real_tokens([3, 0], side, T)

    model(text(S), text(T), real_source, real).square().sum().backward()

    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


# --- the encoder-decoder: the cache -----------------------------------------------------------------------


@every_model(PAIR, but=["last"], side=SIDES)
@torch.no_grad()
def test_decoding_with_a_cache_is_decoding_without(case: ModelConfig, side: str) -> None:
    model, source, tokens = made(case), text(S), text(T)
    real = real_tokens([S, 3], side, S)
    expected = model(source, tokens, real)
    memory = model.encode(source, real)

    for sizes in ([1] * T, [2, T - 2]):
        cache = model.new_cache()
        parts = [model.decode(chunk, memory, cache=cache) for chunk in tokens.split(sizes, dim=1)]
        EXACT(torch.cat(parts, dim=1), expected)
        assert cache.length == T
    EXACT(model.decode(tokens, memory), expected)
    EXACT(model.decode(tokens, memory, last_only=True), expected[:, -1:])


@every_model(PAIR, but=["last"], side=SIDES)
@torch.no_grad()
def test_selected_rows_go_on_with_their_own_source_and_target(case: ModelConfig, side: str) -> None:
    """As beams do: rows are repeated, left out and put in another order."""
    model, source, tokens, new = made(case), text(S, 3), text(3, 3), text(2, 4)
    real_source, real = real_tokens([S, 2, 4], "right", S), real_tokens([3, 1, 2], side, 3)
    rows, cache, memory = torch.tensor([2, 0, 2, 1]), model.new_cache(), model.encode(source, real_source)
    model.decode(tokens, memory, real, cache)

    cache.select(rows)
    chosen = memory.select(rows)
    logits = torch.cat([model.decode(token, chosen, cache=cache) for token in new.split(1, 1)], dim=1)

    padding = torch.cat([real[rows], real.new_ones(4, 2)], dim=1)
    whole = torch.cat([tokens[rows], new], dim=1)
    EXACT(logits, model(source[rows], whole, real_source[rows], padding)[:, -2:])


# --- both: explicit = fused, the pattern, types, dropout --------------------------------------------------


def inputs(family: str, side: str | None = None) -> tuple[tuple[Tensor | None, ...], Tensor]:
    """What a model of the family is given, and which of its results belong to real tokens."""
    real_source = real_tokens([S, 3], side or "right", S) if side else None
    real = real_tokens([2, T], side, T) if side else None
    if family == "encoder":
        kept = torch.ones(B, S, dtype=torch.bool) if real_source is None else real_source
        return (text(S), real_source), kept
    kept = torch.ones(B, T, dtype=torch.bool) if real is None else real
    return (text(S), text(T), real_source, real), kept


def reads_as_fused(model: Any, side: str | None) -> None:
    """Logits and gradients of both forms are equal."""
    given, kept = inputs(model.config.family, side)

    results = []
    for explicit in (False, True):
        model.zero_grad()
        with has_hooks(model, explicit):
            logits = model(*given)[kept]
        logits.sin().sum().backward()
        gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        # by their size: without norms some are in the thousands
        results.append({n: g / g.abs().max().clamp_min(1) for n, g in gradients.items()} | {"logits": logits})

    EXACT(*results)
    assert len(results[0]) > 1


@every_model("encoder", but=["last"], side=[None, *SIDES])
def test_an_encoder_s_explicit_attention_is_fused_attention(case: ModelConfig, side: str | None) -> None:
    reads_as_fused(made(case), side)


@every_model(PAIR, but=["last"], side=[None, *SIDES])
def test_a_pair_s_explicit_attention_is_fused_attention(case: ModelConfig, side: str | None) -> None:
    reads_as_fused(made(case), side)


@each_kind("encoder", but=["last"], side=SIDES)
def test_an_encoder_s_pattern_sums_to_one_and_hides_what_may_not_be_read(
    case: ModelConfig, side: str
) -> None:
    assert len(pattern_of_readable(made(case), side)) == case.n_layers


@each_kind(PAIR, but=["last"], side=SIDES)
def test_a_pair_s_patterns_sum_to_one_and_hide_what_may_not_be_read(case: ModelConfig, side: str) -> None:
    assert len(pattern_of_readable(made(case), side)) == case.n_layers + 2 * case.decoder_layers


@torch.no_grad()
def pattern_of_readable(model: Any, side: str) -> dict[str, Tensor]:
    """The patterns, of which every row of a real token is found to be right."""
    family = model.config.family
    given, kept = inputs(family, side)
    real_source = given[1] if family == "encoder" else given[2]
    assert real_source is not None

    _, seen = model.run_with_cache(*given, names=lambda name: name.endswith("hook_pattern"))

    window = getattr(model.config.attention, "window", None)
    for name, pattern in seen.items():
        in_decoder, cross = name.startswith("decoder_"), "cross" in name
        readers, keys = (
            (kept if in_decoder else real_source),
            (kept if in_decoder and not cross else real_source),
        )
        back = torch.arange(readers.shape[1])[:, None] - torch.arange(keys.shape[1])
        allowed = keys[:, None, None, :].expand_as(pattern)
        if not cross:
            allowed = allowed & ((back >= 0) | (not in_decoder)) & (back.abs() < (window or S))
        real_rows = readers[:, None, :, None].expand_as(pattern)
        assert (pattern[real_rows & ~allowed] == 0).all()
        assert (pattern[real_rows & allowed] > 0).all()
        sums = pattern.sum(-1).transpose(1, 2)[readers]
        torch.testing.assert_close(sums, torch.ones_like(sums))
    return seen


@each_kind(PAIR, but=["last"])
@torch.no_grad()
def test_bfloat16_and_autocast_are_near_float32(case: ModelConfig) -> None:
    model = made(case).float()
    given, _ = inputs("encoder-decoder")
    exact = model(*given)

    with torch.autocast("cpu", torch.bfloat16):
        mixed = model(*given)
    rounded = model.bfloat16()(*given)

    assert rounded.dtype == torch.bfloat16
    for result in (mixed, rounded):
        assert (result.float() - exact).square().mean().sqrt() < 0.1 * exact.std()


@pytest.mark.parametrize("n_classes", [None, C])
@torch.no_grad()
def test_dropout_acts_in_an_encoder_s_training_and_never_else(n_classes: int | None) -> None:
    assert_drops(config("encoder", n_classes=n_classes), inputs("encoder")[0])


@torch.no_grad()
def test_dropout_acts_in_both_of_a_pair_s_stacks_in_training_and_never_else() -> None:
    model = assert_drops(config(PAIR), inputs(PAIR)[0])
    source, tokens = text(S), text(T)
    assert not torch.allclose(model.encode(source).vectors, model.encode(source).vectors)
    memory = model.encode(source)
    assert not torch.allclose(model.decode(tokens, memory), model.decode(tokens, memory))


def assert_drops(settings: ModelConfig, given: tuple[Tensor | None, ...]) -> Any:
    still, model = made(settings), made(settings.replace(dropout=0.5))
    EXACT(model(*given), still(*given))
    model.train()
    assert not torch.allclose(model(*given), model(*given))
    return model
