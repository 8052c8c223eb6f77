"""What holds for every encoder and every encoder-decoder, whatever their kinds.

As in test_model_properties.py, which does the same for decoders, the cases come from the unions of the slots.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from clearformer.config import Spec, slot_variants
from clearformer.errors import ConfigError
from clearformer.model import Encoder, EncoderDecoder, EncoderOutput, ModelConfig, Transformer, build
from clearformer.model.attention import Linear, MultiHead
from clearformer.model.feedforward import GELU
from clearformer.model.hooks import hook_points
from clearformer.model.init import Gaussian
from clearformer.model.norms import RMSNorm
from clearformer.model.positions import ALiBi, NoPositions, Relative, RoPE, Sinusoidal

# No two axes have the same size, so that mixed-up ones cannot pass; heads are grouped where a kind has groups.
B, S, T, V, D, C = 2, 7, 5, 13, 22, 3
SETTINGS = {"n_heads": 6, "n_kv_heads": 3, "d_head": 4, "d_ff": 17, "n_buckets": 8, "max_distance": 5}
EXACT = partial(torch.testing.assert_close, rtol=1e-9, atol=1e-9)  # in float64


# --- the cases --------------------------------------------------------------------------------------------


def filled(spec_type: type[Spec]) -> Any:
    return spec_type(**{name: value for name, value in SETTINGS.items() if name in spec_type.model_fields})


def every_kind() -> Iterator[tuple[str, dict[str, Any]]]:
    for slot, field in ModelConfig.model_fields.items():
        for kind, spec_type in slot_variants(field).items():
            if slot != "init":  # see test_init.py
                yield f"{slot}={kind}", {slot: filled(spec_type)}


def every_order_of_every_attention() -> Iterator[tuple[str, dict[str, Any]]]:
    """Positions that change attention itself; those that are added to the embeddings act before it."""
    fields = ModelConfig.model_fields
    for attention, attention_type in slot_variants(fields["attention"]).items():
        for position_type in (RoPE, ALiBi, Relative):
            parts = {"attention": filled(attention_type), "position": filled(position_type)}
            try:
                config("encoder", **parts)
            except ConfigError:  # which pairs are refused is tested in test_model_config.py
                continue
            yield f"{attention}+{parts['position'].kind}", parts


def config(family: str, **changes: Any) -> ModelConfig:
    own: dict[str, dict[str, Any]] = {
        "encoder": {"n_layers": 2, "n_token_types": 2, "masked_head": "transform"},
        "encoder-decoder": {"n_layers": 1, "n_decoder_layers": 2},
    }
    defaults: dict[str, Any] = {"family": family, "vocab_size": V, "d_model": D, "max_seq_len": 11}
    defaults |= {"attention": filled(MultiHead), "ffn": filled(GELU), "init": Gaussian()}
    return ModelConfig(**(defaults | own[family] | changes))


OPTIONS: dict[str, dict[str, Any]] = {
    "window": {"attention": MultiHead(n_heads=2, window=3)},
    "window+relative": {"attention": MultiHead(n_heads=2, window=3), "position": filled(Relative)},
    "biases+qk_norm": {"attention": MultiHead(n_heads=2, qkv_bias=True, output_bias=True, qk_norm=RMSNorm())},
    "bare heads": {"attention": MultiHead(n_heads=2, value=False, output=False, scale=False)},
    "linear+qk_norm": {"attention": Linear(n_heads=2, qkv_bias=True, qk_norm=RMSNorm())},
    "sines first": {"position": Sinusoidal(interleaved=False)},
    "post": {"placement": "post", "final_norm": False},
    "bare blocks": {"placement": "none", "final_norm": False},
    "no residuals": {"residual": False},
    "parallel": {"parallel": True},
    "embedding norm": {"embedding_norm": True, "scale_embeddings": True},
    "tied head": {"head_bias": True, "scale_logits": True},
    "own head": {"tie_embeddings": False, "head_bias": True, "logit_soft_cap": 3.0},
}


def without_twins(*cases: tuple[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    names: dict[ModelConfig, str] = {}
    for name, changes in cases:
        names.setdefault(config("encoder", **changes), name)
    return {name: changes for name, changes in cases if name in names.values()}


CASES = without_twins(*every_kind(), *every_order_of_every_attention(), *OPTIONS.items())
CROSSING = {name: c for name, c in CASES.items() if name != "attention=last"}  # it reads nothing else
every_encoder = pytest.mark.parametrize("case", CASES)
every_pair_model = pytest.mark.parametrize("case", CROSSING)
either_side = pytest.mark.parametrize("side", ["left", "right"])


def test_every_kind_that_may_read_another_text_is_among_the_cases() -> None:
    refused = set(CASES) - set(CROSSING)
    for name, changes in CASES.items():
        if name in refused:
            with pytest.raises(ConfigError):
                config("encoder-decoder", **changes)
        else:
            config("encoder-decoder", **changes)


def encoder(case: str, **changes: Any) -> Encoder:
    return made(config("encoder", **CASES[case] | changes))


def pair_model(case: str, **changes: Any) -> EncoderDecoder:
    return made(config("encoder-decoder", **CASES[case] | changes))


def made(settings: ModelConfig) -> Any:
    """A float64 model with all that begins at 1 or 0 moved away from there, where it would hide."""
    model = build(settings).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1 or not parameter.any():
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def text(n_tokens: int, n_rows: int = B) -> Tensor:
    return torch.randint(V, (n_rows, n_tokens))


def real_tokens(lengths: list[int], side: str, n: int) -> Tensor:
    """True where a token is real, for rows padded to n tokens."""
    places, filled_to = torch.arange(n), torch.tensor(lengths)[:, None]
    return places >= n - filled_to if side == "left" else places < filled_to


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


@every_encoder
@pytest.mark.parametrize("n_classes", [None, C])
@torch.no_grad()
def test_an_encoder_comes_by_every_hook_point(case: str, n_classes: int | None) -> None:
    model = encoder(case, **({} if n_classes is None else {"n_classes": C, "masked_head": "none"}))
    _, seen = model.run_with_cache(text(S))
    assert set(seen) == set(hook_points(model))
    assert ("hook_pooled" in seen) == (n_classes is not None)


@every_pair_model
@torch.no_grad()
def test_an_encoder_decoder_comes_by_every_hook_point_with_a_cache_and_without(case: str) -> None:
    model, source, tokens = pair_model(case), text(S), text(T)
    points = set(hook_points(model))
    ours = {name for name in points if "encoder" not in name}
    made_once = {name for name in points if name.endswith("cross_attn.k_norm.hook_normalized")}

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


@every_encoder
def test_every_token_within_reach_is_read_on_both_sides(case: str) -> None:
    model, x = encoder(case), vectors(S)

    with model.hooked({"hook_embed": lambda _, __: x}):
        logits = model(text(S))

    window = getattr(model.config.attention, "window", None)
    reach = S if window is None else model.config.n_layers * (window - 1)
    if case == "attention=last":
        reach = 0
    for place in (0, 2, S - 1):
        near = (torch.arange(S) - place).abs() <= reach
        assert torch.equal(read_by(logits[:, place], x), near.expand(B, S))


@pytest.mark.parametrize(
    "case", [name for name in CASES if name != "attention=last" and "window" not in name]
)
@torch.no_grad()
def test_the_last_token_changes_the_first_logits(case: str) -> None:
    model, tokens = encoder(case), text(S)
    changed = tokens.clone()
    changed[:, -1] = (tokens[:, -1] + 1) % V

    assert (model(tokens)[:, 0] - model(changed)[:, 0]).abs().max(-1).values.min() > 1e-6


@every_encoder
@either_side
@torch.no_grad()
def test_padding_changes_nothing_for_an_encoder_s_real_tokens(case: str, side: str) -> None:
    model, tokens, types = encoder(case), text(S), torch.randint(2, (B, S))
    real = real_tokens([S, 3], side, S)

    logits = model(tokens, real, types)

    assert logits.isfinite().all(), "padding must not make NaN, which a loss's mask would not stop"
    for row in range(B):
        alone = model(tokens[row][real[row]][None], None, types[row][real[row]][None])
        EXACT(logits[row][real[row]], alone[0])


@every_encoder
@either_side
@pytest.mark.parametrize("pooling", ["first", "mean"])
@torch.no_grad()
def test_padding_changes_no_class_s_score(case: str, side: str, pooling: str) -> None:
    model, tokens = encoder(case, n_classes=C, masked_head="none", pooling=pooling), text(S)
    real = real_tokens([S, 3], side, S)

    scores = model(tokens, real)

    assert scores.shape == (B, C)
    for row in range(B):
        EXACT(scores[row], model(tokens[row][real[row]][None])[0])


@every_encoder
@pytest.mark.parametrize("pooling", [None, "first", "mean"])
def test_padding_gives_finite_gradients_in_an_encoder(case: str, pooling: str | None) -> None:
    """A row may be padding throughout: the last batch of a data set."""
    model = encoder(case, **{"n_classes": C, "pooling": pooling} if pooling else {})
    real = real_tokens([0, 4], "left", S)

    model(text(S), real).square().sum().backward()

    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("position", slot_variants(ModelConfig.model_fields["position"]).values())
@torch.no_grad()
def test_an_encoder_knows_order_with_positions_and_not_without(position: type[Spec]) -> None:
    model, tokens = made(config("encoder", position=filled(position), n_layers=1)), torch.arange(5)[None]
    swapped = tokens[:, [2, 1, 0, 3, 4]]

    same = torch.allclose(model(tokens)[:, -1], model(swapped)[:, -1], rtol=0, atol=1e-12)

    assert same == isinstance(model.config.position, NoPositions)


# --- the encoder-decoder: who reads whom ------------------------------------------------------------------


@every_pair_model
@torch.no_grad()
def test_a_changed_token_leaves_earlier_logits_and_a_changed_source_leaves_none(case: str) -> None:
    model, source, tokens, place = pair_model(case), text(S), text(T), 2
    changed, other_source = tokens.clone(), source.clone()
    changed[:, place] = (tokens[:, place] + 1) % V
    other_source[:, -1] = (source[:, -1] + 1) % V

    before, after = model(source, tokens), model(source, changed)

    EXACT(after[:, :place], before[:, :place])
    assert (after[:, place] != before[:, place]).any()
    assert (model(other_source, tokens) - before).abs().amax(-1).min() > 1e-6


@every_pair_model
@pytest.mark.parametrize("explicit", [False, True])
def test_each_position_reads_all_of_the_source_and_nothing_of_the_future(case: str, explicit: bool) -> None:
    model, x, memory = pair_model(case), vectors(T), vectors(S)

    with model.hooked({"hook_decoder_embed": lambda _, __: x}), has_hooks(model, explicit):
        logits = model.decode(text(T), EncoderOutput(memory))

    window = getattr(model.config.attention, "window", None)
    reach = T if window is None else model.config.decoder_layers * (window - 1)
    for place in (0, 2, T - 1):
        back = place - torch.arange(T)
        assert torch.equal(read_by(logits[:, place], x), ((back >= 0) & (back <= reach)).expand(B, T))
        assert read_by(logits[:, place], memory).all()


@every_pair_model
def test_the_source_is_read_by_its_own_words(case: str) -> None:
    model, x = pair_model(case), vectors(S)

    with model.hooked({"hook_encoder_embed": lambda _, __: x}):
        logits = model(text(S), text(T))

    assert read_by(logits[:, 0], x).all()
    assert read_by(logits[:, -1], x).all()


# --- the encoder-decoder: padding -------------------------------------------------------------------------


@every_pair_model
@pytest.mark.parametrize(("side", "target_side"), [("left", "right"), ("right", "left")])
@torch.no_grad()
def test_padding_changes_nothing_for_a_pair_s_real_tokens(case: str, side: str, target_side: str) -> None:
    model, source, tokens = pair_model(case), text(S), text(T)
    real_source, real = real_tokens([3, S], side, S), real_tokens([T, 2], target_side, T)

    logits = model(source, tokens, real_source, real)

    assert logits.isfinite().all()
    for row in range(B):
        alone = model(source[row][real_source[row]][None], tokens[row][real[row]][None])
        EXACT(logits[row][real[row]], alone[0])


@every_pair_model
def test_padding_gives_finite_gradients_in_a_pair(case: str) -> None:
    """The first pair has no source, the second no target."""
    model = pair_model(case)
    real_source, real = real_tokens([0, 4], "right", S), real_tokens([3, 0], "left", T)

    model(text(S), text(T), real_source, real).square().sum().backward()

    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


# --- the encoder-decoder: the cache -----------------------------------------------------------------------


@every_pair_model
@torch.no_grad()
def test_decoding_with_a_cache_is_decoding_without(case: str) -> None:
    model, source, tokens = pair_model(case), text(S), text(T)
    real = real_tokens([S, 3], "left", S)
    expected = model(source, tokens, real)
    memory = model.encode(source, real)

    for sizes in ([1] * T, [2, T - 2]):
        cache = model.new_cache()
        parts = [model.decode(chunk, memory, cache=cache) for chunk in tokens.split(sizes, dim=1)]
        EXACT(torch.cat(parts, dim=1), expected)
        assert cache.length == T
    EXACT(model.decode(tokens, memory), expected)
    EXACT(model.decode(tokens, memory, last_only=True), expected[:, -1:])


@every_pair_model
@torch.no_grad()
def test_selected_rows_go_on_with_their_own_source_and_target(case: str) -> None:
    """As beams do: rows are repeated, left out and put in another order."""
    model, source, tokens, new = pair_model(case), text(S, 3), text(3, 3), text(2, 4)
    real_source, real = real_tokens([S, 2, 4], "right", S), real_tokens([3, 1, 2], "left", 3)
    rows, cache, memory = torch.tensor([2, 0, 2, 1]), model.new_cache(), model.encode(source, real_source)
    model.decode(tokens, memory, real, cache)

    cache.select(rows)
    chosen = memory.select(rows)
    logits = torch.cat([model.decode(token, chosen, cache=cache) for token in new.split(1, 1)], dim=1)

    padding = torch.cat([real[rows], real.new_ones(4, 2)], dim=1)
    whole = torch.cat([tokens[rows], new], dim=1)
    EXACT(logits, model(source[rows], whole, real_source[rows], padding)[:, -2:])


# --- both: explicit = fused, the pattern, types, dropout --------------------------------------------------


def a_case_of(family: str) -> list[str]:
    return [name for name in (CASES if family == "encoder" else CROSSING) if name != "attention=last"]


FAMILY_CASES = [(family, case) for family in ("encoder", "encoder-decoder") for case in a_case_of(family)]
every_family = pytest.mark.parametrize(("family", "case"), FAMILY_CASES)


def inputs(family: str, side: str | None = None) -> tuple[tuple[Tensor | None, ...], Tensor]:
    """What a model of the family is given, and which of its results belong to real tokens."""
    real_source = real_tokens([S, 3], side or "right", S) if side else None
    real = real_tokens([2, T], side, T) if side else None
    if family == "encoder":
        kept = torch.ones(B, S, dtype=torch.bool) if real_source is None else real_source
        return (text(S), real_source), kept
    kept = torch.ones(B, T, dtype=torch.bool) if real is None else real
    return (text(S), text(T), real_source, real), kept


@every_family
@pytest.mark.parametrize("side", [None, "left", "right"])
def test_explicit_attention_is_fused_attention_with_its_gradients(
    family: str, case: str, side: str | None
) -> None:
    model = made(config(family, **CASES[case]))
    given, kept = inputs(family, side)

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


@every_family
@torch.no_grad()
def test_pattern_rows_sum_to_one_and_hide_what_may_not_be_read(family: str, case: str) -> None:
    model = made(config(family, **CASES[case]))
    given, kept = inputs(family, "right")
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
    n_attentions = model.config.n_layers + 2 * model.config.decoder_layers
    assert len(seen) == (n_attentions if family == "encoder-decoder" else model.config.n_layers)


@every_pair_model
@torch.no_grad()
def test_bfloat16_and_autocast_are_near_float32(case: str) -> None:
    model = pair_model(case).float()
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
    assert_drops(partial(encoder, "attention=multihead", n_classes=n_classes), inputs("encoder")[0])


@torch.no_grad()
def test_dropout_acts_in_both_of_a_pair_s_stacks_in_training_and_never_else() -> None:
    model = assert_drops(partial(pair_model, "attention=multihead"), inputs("encoder-decoder")[0])
    source, tokens = text(S), text(T)
    assert not torch.allclose(model.encode(source).vectors, model.encode(source).vectors)
    memory = model.encode(source)
    assert not torch.allclose(model.decode(tokens, memory), model.decode(tokens, memory))


def assert_drops(make: Any, given: tuple[Tensor | None, ...]) -> Any:
    torch.manual_seed(3)
    still = make()
    torch.manual_seed(3)
    model = make(dropout=0.5)
    EXACT(model(*given), still(*given))
    model.train()
    assert not torch.allclose(model(*given), model(*given))
    return model
