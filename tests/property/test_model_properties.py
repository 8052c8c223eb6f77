"""What holds for every decoder, whatever its kinds: causality, caching, padding, fused = explicit, ..."""

import json
from contextlib import AbstractContextManager
from functools import partial
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from clearformer.errors import UserError
from clearformer.hooks import Hook, hook_points, hooked
from clearformer.model import Decoder, ModelConfig, build
from clearformer.model.attention import Attention, MultiHead
from clearformer.model.block import Block
from clearformer.model.cache import LinearCache
from clearformer.model.fast import linear_chunks as linear_chunks_module
from clearformer.model.linear_attention import Linear, causal_linear_attention
from clearformer.model.masks import Mask
from clearformer.model.norms import RMSNorm
from clearformer.model.positions import ALiBi, NoPositions, RoPE
from clearformer.model.relative_positions import Relative

from ..forks import ForkServer
from ..pairwise import crossed, pairwise
from .models import (
    ATTENTIONS,
    POSITIONS,
    D,
    V,
    config,
    each_kind,
    every_model,
    filled,
    goes_together,
    kinds,
    made,
    real_tokens,
    text,
)

B, T = 2, 11
SIDES = ("left", "right")
EXACT = partial(torch.testing.assert_close, rtol=1e-9, atol=1e-9)  # in float64


def look_at_nothing(_: Tensor, __: Hook) -> None:
    return None


def has_hooks(model: Decoder, patterns: bool = True) -> AbstractContextManager[None]:
    """Where the patterns are looked at, attention takes its explicit form."""
    names = [name for name in hook_points(model) if name.endswith("hook_pattern")]
    return model.hooked({name: look_at_nothing for name in names if patterns})


# --- hook points ------------------------------------------------------------------------------------------


@each_kind()
@torch.no_grad()
def test_every_hook_point_is_come_by_with_a_cache_and_without(case: ModelConfig) -> None:
    model, tokens = made(case), text(T)
    points, parts = set(hook_points(model)), [tokens[:, :4], tokens[:, 4:5], tokens[:, 5:]]

    logits, whole = model.run_with_cache(tokens)
    cache = model.new_cache()
    in_parts = [model.run_with_cache(part, None, cache) for part in parts]

    assert set(whole) == points
    EXACT(torch.cat([found for found, _ in in_parts], dim=1), logits)
    for _, seen in in_parts:
        assert set(seen) == points
    for name in points:
        if name.endswith(("hook_attn_scores", "hook_pattern")):
            EXACT(in_parts[1][1][name][..., 0, :], whole[name][..., 4, :5])
        else:
            EXACT(torch.cat([seen[name] for _, seen in in_parts], dim=1), whole[name])


@torch.no_grad()
def test_linear_attention_s_scores_are_not_to_be_had_of_positions_that_nobody_looked_at() -> None:
    model, tokens = made(config(attention=filled(Linear))), text(T)
    cache = model.new_cache()
    model(tokens[:, :4], cache=cache)
    with pytest.raises(
        UserError, match=r"keeps the 4 earlier positions only as sums.*from the first token on"
    ):
        model.run_with_cache(tokens[:, 4:], None, cache, names="blocks.0.attn.hook_pattern")


# --- causality --------------------------------------------------------------------------------------------


@every_model()
@torch.no_grad()
def test_a_changed_token_leaves_earlier_logits(case: ModelConfig) -> None:
    model, tokens, place = made(case), text(T), 4
    changed = tokens.clone()
    changed[:, place] = (tokens[:, place] + 1) % V

    before, after = model(tokens), model(changed)

    EXACT(after[:, :place], before[:, :place])
    assert (after[:, place] != before[:, place]).any()


@every_model(explicit=(False, True))
def test_no_gradient_comes_from_the_future(case: ModelConfig, explicit: bool) -> None:
    model, place = made(case), 4
    x = torch.randn(B, T, D, dtype=torch.float64, requires_grad=True)

    with model.hooked({"hook_embed": lambda _, __: x}), has_hooks(model, explicit):
        logits = model(text(T))
    (gradient,) = torch.autograd.grad(logits[:, place].square().sum(), x)

    assert (gradient[:, place + 1 :] == 0).all()
    assert (gradient[:, place] != 0).any()


@every_model(but=["last"])
def test_every_earlier_token_within_reach_is_read(case: ModelConfig) -> None:
    model = made(case)
    x = torch.randn(B, T, D, dtype=torch.float64, requires_grad=True)

    with model.hooked({"hook_embed": lambda _, __: x}):
        logits = model(text(T))
    (gradient,) = torch.autograd.grad(logits[:, -1].square().sum(), x)

    window = getattr(model.config.attention, "window", None)
    reach = T if window is None else model.config.n_layers * (window - 1) + 1
    read = (gradient != 0).any(-1)  # [B T]
    assert read[:, T - reach :].all()
    assert not read[:, : T - reach].any()


# --- the cache --------------------------------------------------------------------------------------------


@every_model(sizes=[(1,) * T, (T - 1, 1), (1, T - 1), (4, 2, 5)])
@torch.no_grad()
def test_cached_is_uncached_in_chunks_of_any_size(case: ModelConfig, sizes: tuple[int, ...]) -> None:
    model, tokens = made(case), text(T)
    cache = model.new_cache()

    parts = [model(chunk, cache=cache) for chunk in tokens.split(sizes, dim=1)]

    EXACT(torch.cat(parts, dim=1), model(tokens))
    assert cache.length == T


@every_model(side=SIDES)
@torch.no_grad()
def test_padded_texts_go_on_from_a_cache_as_each_does_alone(case: ModelConfig, side: str) -> None:
    model, lengths, n_new = made(case), [7, 3], 4
    prompts, new = text(7), text(n_new)
    real = real_tokens(lengths, side, 7)
    cache = model.new_cache()

    model(prompts, real, cache)
    logits = torch.cat([model(token, cache=cache) for token in new.split(1, dim=1)], dim=1)

    for row in range(B):
        whole = torch.cat([prompts[row][real[row]], new[row]])[None]
        EXACT(logits[row], model(whole)[0, -n_new:])


@every_model(side=SIDES)
@torch.no_grad()
def test_selected_rows_go_on_as_their_own_texts(case: ModelConfig, side: str) -> None:
    model, prompts, new = made(case), text(5, n_rows=3), text(3, n_rows=4)
    rows, cache = torch.tensor([2, 0, 2, 1]), model.new_cache()
    real = real_tokens([5, 4, 2], side, 5)
    model(prompts, real, cache)

    cache.select(rows)
    logits = model(new, cache=cache)

    padding = torch.cat([real[rows], real.new_ones(4, 3)], dim=1)
    EXACT(logits, model(torch.cat([prompts[rows], new], dim=1), padding)[:, -3:])


# --- padding ----------------------------------------------------------------------------------------------


@every_model(lengths=[(T, 1), (3, T - 1), (6, 6)], side=SIDES, explicit=(False, True))
@torch.no_grad()
def test_padding_on_either_side_changes_nothing(
    case: ModelConfig, lengths: tuple[int, ...], side: str, explicit: bool
) -> None:
    model, tokens = made(case), text(T)
    real = real_tokens(list(lengths), side, T)

    with has_hooks(model, explicit):
        logits = model(tokens, real)

    assert logits.isfinite().all(), "padding must not make NaN, which a loss's mask would not stop"
    for row in range(B):
        EXACT(logits[row][real[row]], model(tokens[row][real[row]][None])[0])


@every_model(side=SIDES)
def test_padding_gives_finite_gradients(case: ModelConfig, side: str) -> None:
    """A row may be padding throughout: the last batch of a data set."""
    model = made(case)
    real = real_tokens([0, 4], side, T)

    model(text(T), real)[real].square().sum().backward()

    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


# --- positions --------------------------------------------------------------------------------------------


def sees_distances(row: dict[str, str]) -> bool:
    # linear attention's phi comes after the rotation and sees each position, not distances alone
    attention, position = row["attention"], row["position"]
    return goes_together("decoder", attention, position) and (attention, position) != ("linear", "rope")


@crossed(sees_distances, attention=list(ATTENTIONS), position=["rope", "alibi", "relative"])
@torch.no_grad()
def test_attention_sees_distances_and_not_positions(attention: str, position: str) -> None:
    parts = {"attention": ATTENTIONS[attention][0], "position": POSITIONS[position][0]}
    model = made(config(**parts, max_seq_len=500))
    block, x = model.blocks[0], torch.randn(B, T, D, dtype=torch.float64)
    assert isinstance(block, Block)

    here, there = (
        block(x, Mask(q_pos=places, k_pos=places, causal=True), model.position)
        for places in (torch.arange(T), torch.arange(T) + 389)
    )

    tolerance = 2e-5 if position == "rope" else 1e-12  # tables of angles are float32
    torch.testing.assert_close(here, there, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("position", kinds("position"))
@torch.no_grad()
def test_order_is_known_with_positions_and_unknown_without(position: str) -> None:
    model = made(config(position=kinds("position")[position](), n_layers=1))
    tokens = torch.arange(5)[None]
    swapped = tokens[:, [2, 1, 0, 3, 4]]

    same = torch.allclose(model(tokens)[:, -1], model(swapped)[:, -1], rtol=0, atol=1e-12)

    assert same == isinstance(model.config.position, NoPositions)


# --- attention: explicit = fused, the pattern, the window -------------------------------------------------


@every_model(but=["last"], side=[None, *SIDES])
def test_explicit_attention_is_fused_attention_with_its_gradients(
    case: ModelConfig, side: str | None
) -> None:
    model, tokens = made(case), text(T)
    real = None if side is None else real_tokens([T, 4], side, T)
    kept = torch.ones(B, T, dtype=torch.bool) if real is None else real

    def logits_and_gradients() -> tuple[Tensor, dict[str, Tensor]]:
        model.zero_grad()
        logits = model(tokens, real)[kept]
        logits.sin().sum().backward()
        return logits, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    fused = logits_and_gradients()
    with has_hooks(model):
        explicit = logits_and_gradients()

    EXACT(explicit[0], fused[0])
    EXACT(explicit[1], fused[1])
    assert fused[1]


@each_kind(but=["last"])
@torch.no_grad()
def test_pattern_rows_sum_to_one_and_hide_what_may_not_be_read(case: ModelConfig) -> None:
    model = made(case)
    real = real_tokens([T, 6], "right", T)

    _, seen = model.run_with_cache(text(T), real, names=lambda name: name.endswith("hook_pattern"))

    assert len(seen) == model.config.n_layers
    window = getattr(model.config.attention, "window", None)
    back = torch.arange(T)[:, None] - torch.arange(T)
    allowed = (back >= 0) & (back < (window or T)) & real[:, None, None, :]  # [B 1 T S]
    for pattern in seen.values():
        rows = pattern.sum(-1).transpose(1, 2)  # [B T H]
        torch.testing.assert_close(rows[real], torch.ones_like(rows[real]))
        readers = real[:, None, :, None].expand_as(pattern)
        assert (pattern[readers & ~allowed.expand_as(pattern)] == 0).all()
        assert (pattern[readers & allowed.expand_as(pattern)] > 0).all()


@pytest.mark.parametrize("window", [1, 2, 5, T])
@torch.no_grad()
def test_the_token_a_window_back_is_not_read(window: int) -> None:
    attention = MultiHead(n_heads=2, window=window)
    model = build(config(attention=attention, n_layers=1, position=NoPositions())).double()
    tokens, place = text(T), T - 1
    logits = model(tokens)
    for back in range(T):
        changed = tokens.clone()
        changed[:, place - back] = (tokens[:, place - back] + 1) % V
        same = torch.equal(logits[:, place], model(changed)[:, place])
        assert same == (back >= window)


@every_model(only=["linear"])
@torch.no_grad()
def test_linear_attention_parallel_is_chunked_is_recurrent(case: ModelConfig) -> None:
    model, tokens = made(case), text(2 * 5 + 3)
    cache = model.new_cache()

    with patch.object(linear_chunks_module, "CHUNK", 5):
        chunked = model(tokens)
    parallel = model(tokens)
    recurrent = torch.cat([model(token, cache=cache) for token in tokens.split(1, dim=1)], dim=1)
    with has_hooks(model):
        explicit = model(tokens)

    for other in (chunked, recurrent, explicit):
        EXACT(other, parallel)


@torch.no_grad()
def test_linear_attention_remembers_in_bfloat16() -> None:
    """A sum kept in bfloat16 stops growing where a key is less than its last digit: after some 256 keys."""
    n = 600
    q = k = torch.ones(1, 1, n, 2, dtype=torch.bfloat16)
    v = torch.linspace(0, 1, n, dtype=torch.bfloat16)[None, None, :, None]
    memory = LinearCache()

    mixed = [
        causal_linear_attention(*token, memory)
        for token in zip(q.split(1, 2), k.split(1, 2), v.split(1, 2), strict=True)
    ]

    assert abs(mixed[-1].item() - v.float().mean().item()) < 0.01


@every_model(but=["last", "linear"], padded=(False, True))
def test_whichever_form_is_faster_gives_the_same(case: ModelConfig, padded: bool) -> None:
    model, tokens = made(case).bfloat16(), text(T)
    real = real_tokens([T, 4], "left", T) if padded else None

    results = []
    for formula in (False, True):
        with patch("clearformer.model.fast.attention_forms.formula_is_faster", return_value=formula):
            model.zero_grad()
            logits = model(tokens, real)
            logits[:, -3:].float().square().mean().backward()
        gradient = model.embed.weight.grad
        assert gradient is not None
        results.append((logits[:, -3:].float(), gradient.float().clone()))

    for one, other in zip(*results, strict=True):
        assert (one - other).square().mean().sqrt() < 0.1 * one.std()


# --- types, dropout, compilation --------------------------------------------------------------------------


@each_kind()
@torch.no_grad()
def test_a_bfloat16_model_is_near_its_float32_self(case: ModelConfig) -> None:
    model, tokens = made(case).float(), text(T)
    exact = model(tokens)

    rounded = model.bfloat16()(tokens)

    assert rounded.dtype == torch.bfloat16
    assert (rounded.float() - exact).square().mean().sqrt() < 0.1 * exact.std()


@each_kind()
@torch.no_grad()
def test_autocast_is_near_float32(case: ModelConfig) -> None:
    model, tokens = made(case).float(), text(T)
    exact = model(tokens)

    with torch.autocast("cpu", torch.bfloat16):
        rounded, cached = model(tokens), model(tokens, cache=model.new_cache())

    assert (rounded.float() - exact).square().mean().sqrt() < 0.1 * exact.std()
    assert (cached.float() - exact).square().mean().sqrt() < 0.1 * exact.std()


@each_kind()
@torch.no_grad()
def test_dropout_acts_in_training_and_never_else(case: ModelConfig) -> None:
    model, still, tokens = made(case.replace(dropout=0.5)), made(case), text(T)

    EXACT(model(tokens), still(tokens))
    model.train()
    first, second = model(tokens), model(tokens)

    assert not torch.allclose(first, second)


@crossed(
    attention=[name for name in ATTENTIONS if name not in ("last", "linear")],  # these hold no weights
    position=["none", "alibi"],
    explicit=(False, True),
)
@torch.no_grad()
def test_dropout_leaves_the_expected_pattern(attention: str, position: str, explicit: bool) -> None:
    """Attention weights are dropped and the others scaled up, so that the mean of many draws is the pattern's."""
    model = made(config(attention=ATTENTIONS[attention][0], position=POSITIONS[position][0], dropout=0.5))
    layer = model.blocks[0].attn
    assert isinstance(layer, Attention)
    x = torch.randn(1, 3, D, dtype=torch.float64).expand(2000, 3, D)
    mask = Mask(q_pos=torch.arange(3), k_pos=torch.arange(3), causal=True)
    z: list[Tensor] = []
    looks = {"hook_z": lambda x, _: z.append(x)} | ({"hook_pattern": look_at_nothing} if explicit else {})

    for module in (layer.eval(), layer.train()):
        with hooked(module, looks):
            module(x, mask, model.position)

    assert z[1].std(0).max() > 0
    assert (z[1].mean(0) - z[0].mean(0)).abs().max() < 6 * z[1].std(0).max() / 2000**0.5


COMPILE_EACH = """
import json, sys
import torch
from clearformer.model import ModelConfig, build

def largest_difference(config):
    torch.manual_seed(0)
    torch.compiler.reset()
    model = build(ModelConfig(**config)).double().eval()
    lengths = [n * model.config.max_seq_len // 22 for n in (7, 11)[:model.config.n_stacks]]
    texts = [torch.randint(model.config.vocab_size, (2, n)) for n in lengths]
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    return (compiled(*texts) - model(*texts)).abs().max().item()

torch.set_num_threads(1)
with torch.no_grad():
    results = {name: largest_difference(config) for name, config in json.loads(sys.argv[1]).items()}
json.dump(results, sys.stdout)
"""
SLOTS = ("attention", "position", "norm", "ffn")


def compiles(kinds_of: dict[str, str]) -> bool:
    return goes_together("decoder", kinds_of["attention"], kinds_of["position"])


COMPILED = {
    "-".join(row.values()): config(
        **{slot: filled(kinds(slot)[kind]) for slot, kind in row.items()}, n_layers=1
    )
    for row in pairwise({slot: kinds(slot) for slot in SLOTS}, compiles, together=1)
} | {
    "window+alibi": config(
        attention=MultiHead(n_heads=6, n_kv_heads=2, d_head=4, window=3), position=ALiBi(), n_layers=1
    ),
    "window+rope, biases, qk_norm": config(
        attention=MultiHead(
            n_heads=6, d_head=4, window=3, qkv_bias=True, output_bias=True, qk_norm=RMSNorm()
        ),
        position=RoPE(fraction=0.5),
        n_layers=1,
    ),
    "encoder": config("encoder", n_layers=1),
    "classifier, window in blocks": config(
        "encoder",
        attention=MultiHead(n_heads=2, window=3),
        n_layers=1,
        n_classes=3,
        masked_head="none",
        max_seq_len=22 * 31,
    ),
    "pair+relative": config("encoder-decoder", n_decoder_layers=1, position=Relative()),
    "pair+linear": config("encoder-decoder", n_decoder_layers=1, attention=filled(Linear)),
    "window in blocks": config(attention=MultiHead(n_heads=2, window=3), n_layers=1, max_seq_len=22 * 31),
    "linear in chunks": config(attention=filled(Linear), n_layers=1, max_seq_len=22 * 31),
}


def test_one_graph_holds_the_whole_model(forks: ForkServer) -> None:
    """In a process of its own: there the model is as users run it, without the shape checks of these tests."""
    configurations = {name: c.model_dump(mode="json") for name, c in COMPILED.items()}
    result = forks.run(json.dumps(configurations), script=COMPILE_EACH)

    assert result.returncode == 0, result.stderr
    differences = json.loads(result.stdout)
    assert differences.keys() == COMPILED.keys()
    assert max(differences.values()) < 1e-9, differences
