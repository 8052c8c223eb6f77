"""What holds for every model, whatever its kinds: causality, caching, padding, fused = explicit, ...

The cases come from the unions of the slots, so that a new kind joins by being in one.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import clearformer
from clearformer.config import Spec, slot_variants
from clearformer.errors import ConfigError, UserError
from clearformer.model import Decoder, ModelConfig
from clearformer.model import linear_attention as linear_attention_module
from clearformer.model.attention import Attention, Dot, Linear, MultiHead, Shared
from clearformer.model.block import Block
from clearformer.model.cache import LinearCache
from clearformer.model.feedforward import GELU
from clearformer.model.hooks import Hook, hook_points, hooked
from clearformer.model.init import Gaussian
from clearformer.model.masks import Mask
from clearformer.model.norms import RMSNorm
from clearformer.model.positions import ALiBi, NoPositions, Relative, RoPE

# No two axes have the same size, so that mixed-up ones cannot pass; heads are grouped where a kind has groups.
B, T, V, D = 2, 11, 13, 22
SETTINGS = {"n_heads": 6, "n_kv_heads": 3, "d_head": 4, "d_ff": 17}
EXACT = partial(torch.testing.assert_close, rtol=1e-9, atol=1e-9)  # in float64


# --- the cases --------------------------------------------------------------------------------------------


def config(**changes: Any) -> ModelConfig:
    defaults: dict[str, Any] = {"vocab_size": V, "d_model": D, "n_layers": 2, "max_seq_len": 2 * T}
    defaults |= {"attention": filled(MultiHead), "ffn": filled(GELU), "init": Gaussian()}
    return ModelConfig(**(defaults | changes))


def filled(spec_type: type[Spec]) -> Any:
    return spec_type(**{name: value for name, value in SETTINGS.items() if name in spec_type.model_fields})


def kinds(slot: str) -> dict[str, type[Spec]]:
    return slot_variants(ModelConfig.model_fields[slot])


def every_kind() -> Iterator[tuple[str, ModelConfig]]:
    for slot in (name for name in ModelConfig.model_fields if name != "init"):  # see test_init.py
        for kind, spec_type in kinds(slot).items():
            yield f"{slot}={kind}", config(**{slot: filled(spec_type)})


def every_position_of_every_attention() -> Iterator[tuple[str, ModelConfig]]:
    for attention, attention_type in kinds("attention").items():
        for position, position_type in kinds("position").items():
            try:
                yield (
                    f"{attention}+{position}",
                    config(attention=filled(attention_type), position=position_type()),
                )
            except ConfigError:  # which pairs are refused is tested in test_model_config.py
                continue


OPTIONS = {
    "window": config(attention=MultiHead(n_heads=6, n_kv_heads=3, d_head=4, window=3)),
    "window+alibi": config(
        attention=MultiHead(n_heads=6, n_kv_heads=2, d_head=4, window=3), position=ALiBi()
    ),
    "window+rope": config(attention=MultiHead(n_heads=6, d_head=4, window=3), position=RoPE(fraction=0.5)),
    "biases+qk_norm": config(
        attention=MultiHead(n_heads=2, qkv_bias=True, output_bias=True, qk_norm=RMSNorm())
    ),
    "bare heads": config(attention=MultiHead(n_heads=2, value=False, output=False, scale=False)),
    "unscaled dot": config(attention=Dot(scale=False)),
    "unscaled shared": config(attention=Shared(scale=False)),
    "linear+qk_norm": config(attention=Linear(n_heads=2, qkv_bias=True, qk_norm=RMSNorm())),
    "post": config(placement="post"),
    "bare blocks": config(placement="none", final_norm=False),
    "no residuals": config(residual=False),
    "embedding norm": config(embedding_norm=True, scale_embeddings=True),
    "capped head": config(tie_embeddings=False, head_bias=True, logit_soft_cap=3.0),
    "tied head": config(head_bias=True, scale_logits=True),
    "parallel": config(parallel=True),
    "window+relative": config(
        attention=MultiHead(n_heads=2, window=3), position=Relative(n_buckets=4, max_distance=5)
    ),
}


def without_twins(cases: Iterable[tuple[str, ModelConfig]]) -> dict[str, ModelConfig]:
    names: dict[ModelConfig, str] = {}
    for name, case in cases:
        names.setdefault(case, name)
    return {name: case for case, name in names.items()}


CASES = without_twins([*every_kind(), *every_position_of_every_attention(), *OPTIONS.items()])
ATTENDING = {name: c for name, c in CASES.items() if c.attention.kind != "last"}
every_case = pytest.mark.parametrize("case", CASES)
every_attending_case = pytest.mark.parametrize("case", ATTENDING)


def model_of(case: str, **changes: Any) -> Decoder:
    """A float64 model with all that begins at 1 or 0 moved away from there, where it would hide."""
    torch.manual_seed(0)  # the same weights in every example that hypothesis makes
    return perturbed(Decoder(CASES[case].replace(**changes)).double().eval())


@torch.no_grad()
def perturbed(model: Decoder) -> Decoder:
    """With its norms, biases and relative positions moved."""
    for parameter in model.parameters():
        if parameter.dim() == 1 or not parameter.any():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def text(n_tokens: int = T, n_rows: int = B) -> Tensor:
    return torch.randint(V, (n_rows, n_tokens))


def real_tokens(lengths: list[int], side: str, n: int) -> Tensor:
    """True where a token is real, for rows padded to n tokens."""
    places, filled_to = torch.arange(n), torch.tensor(lengths)[:, None]
    return places >= n - filled_to if side == "left" else places < filled_to


def look_at_nothing(_: Tensor, __: Hook) -> None:
    return None


def has_hooks(model: Decoder, patterns: bool = True) -> AbstractContextManager[None]:
    """Where the patterns are looked at, attention takes its explicit form."""
    names = [name for name in hook_points(model) if name.endswith("hook_pattern")]
    return model.hooked({name: look_at_nothing for name in names if patterns})


# --- hook points ------------------------------------------------------------------------------------------


@every_case
@torch.no_grad()
def test_every_hook_point_is_come_by_with_a_cache_and_without(case: str) -> None:
    model, tokens = model_of(case), text()
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
    model, tokens = model_of("attention=linear"), text()
    cache = model.new_cache()
    model(tokens[:, :4], cache=cache)
    with pytest.raises(
        UserError, match=r"has kept 4 earlier positions as sums alone.*from the first token on"
    ):
        model.run_with_cache(tokens[:, 4:], None, cache, names="blocks.0.attn.hook_pattern")


# --- causality --------------------------------------------------------------------------------------------


@every_case
@torch.no_grad()
def test_a_changed_token_leaves_earlier_logits(case: str) -> None:
    model, tokens, place = model_of(case), text(), 4
    changed = tokens.clone()
    changed[:, place] = (tokens[:, place] + 1) % V

    before, after = model(tokens), model(changed)

    EXACT(after[:, :place], before[:, :place])
    assert (after[:, place] != before[:, place]).any()


@every_case
@pytest.mark.parametrize("explicit", [False, True])
def test_no_gradient_comes_from_the_future(case: str, explicit: bool) -> None:
    model, place = model_of(case), 4
    x = torch.randn(B, T, D, dtype=torch.float64, requires_grad=True)

    with model.hooked({"hook_embed": lambda _, __: x}), has_hooks(model, explicit):
        logits = model(text())
    (gradient,) = torch.autograd.grad(logits[:, place].square().sum(), x)

    assert (gradient[:, place + 1 :] == 0).all()
    assert (gradient[:, place] != 0).any()


@every_attending_case
def test_every_earlier_token_within_reach_is_read(case: str) -> None:
    model = model_of(case)
    x = torch.randn(B, T, D, dtype=torch.float64, requires_grad=True)

    with model.hooked({"hook_embed": lambda _, __: x}):
        logits = model(text())
    (gradient,) = torch.autograd.grad(logits[:, -1].square().sum(), x)

    window = getattr(model.config.attention, "window", None)
    reach = T if window is None else model.config.n_layers * (window - 1) + 1
    read = (gradient != 0).any(-1)  # [B T]
    assert read[:, T - reach :].all()
    assert not read[:, : T - reach].any()


# --- the cache --------------------------------------------------------------------------------------------


@every_case
@settings(max_examples=4, deadline=None)
@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=T))
@torch.no_grad()
def test_cached_is_uncached_in_chunks_of_any_size(case: str, sizes: list[int]) -> None:
    model, tokens = model_of(case), text()
    cache = model.new_cache()

    parts = [model(chunk, cache=cache) for chunk in tokens.split(partition(T, sizes), dim=1)]

    EXACT(torch.cat(parts, dim=1), model(tokens))
    assert cache.length == T


@every_case
@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_padded_texts_go_on_from_a_cache_as_each_does_alone(case: str, side: str) -> None:
    model, lengths, n_new = model_of(case), [7, 3], 4
    prompts, new = text(7), text(n_new)
    real = real_tokens(lengths, side, 7)
    cache = model.new_cache()

    model(prompts, real, cache)
    logits = torch.cat([model(token, cache=cache) for token in new.split(1, dim=1)], dim=1)

    for row in range(B):
        whole = torch.cat([prompts[row][real[row]], new[row]])[None]
        EXACT(logits[row], model(whole)[0, -n_new:])


@every_case
@torch.no_grad()
def test_selected_rows_go_on_as_their_own_texts(case: str) -> None:
    model, prompts, new = model_of(case), text(5, n_rows=3), text(3, n_rows=4)
    rows, cache = torch.tensor([2, 0, 2, 1]), model.new_cache()
    real = real_tokens([5, 4, 2], "left", 5)
    model(prompts, real, cache)

    cache.select(rows)
    logits = model(new, cache=cache)

    padding = torch.cat([real[rows], real.new_ones(4, 3)], dim=1)
    EXACT(logits, model(torch.cat([prompts[rows], new], dim=1), padding)[:, -3:])


def partition(total: int, sizes: list[int]) -> list[int]:
    """The sizes, cut or filled up so that they sum to the total."""
    parts = []
    for size in sizes:
        parts.append(min(size, total - sum(parts)))
    return [part for part in [*parts, total - sum(parts)] if part]


# --- padding ----------------------------------------------------------------------------------------------


@every_case
@settings(max_examples=4, deadline=None)
@given(
    lengths=st.lists(st.integers(1, T), min_size=B, max_size=B),
    side=st.sampled_from(["left", "right"]),
    explicit=st.booleans(),
)
@torch.no_grad()
def test_padding_on_either_side_changes_nothing(
    case: str, lengths: list[int], side: str, explicit: bool
) -> None:
    model, tokens = model_of(case), text()
    real = real_tokens(lengths, side, T)

    with has_hooks(model, explicit):
        logits = model(tokens, real)

    assert logits.isfinite().all(), "padding must not make NaN, which a loss's mask would not stop"
    for row in range(B):
        EXACT(logits[row][real[row]], model(tokens[row][real[row]][None])[0])


@every_case
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_gives_finite_gradients(case: str, side: str) -> None:
    """A row may be padding throughout: the last batch of a data set."""
    model = model_of(case)
    real = real_tokens([0, 4], side, T)

    model(text(), real)[real].square().sum().backward()

    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


# --- positions --------------------------------------------------------------------------------------------


def takes(attention: type[Spec], position: type[Spec]) -> bool:
    try:
        config(attention=filled(attention), position=position())
    except ConfigError:
        return False
    return True


SHIFTED = [
    (attention, position)
    for attention, spec in kinds("attention").items()
    for position in ("rope", "alibi", "relative")
    # linear attention's phi comes after the rotation and sees each position, not distances alone
    if takes(spec, kinds("position")[position]) and (attention, position) != ("linear", "rope")
]


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize(("attention", "position"), SHIFTED)
@torch.no_grad()
def test_attention_sees_distances_and_not_positions(
    attention: str, position: str, window: int | None
) -> None:
    spec = filled(kinds("attention")[attention])
    if "window" in type(spec).model_fields:
        spec = spec.replace(window=window)
    settings = {"attention": spec, "position": kinds("position")[position](), "max_seq_len": 500}
    model = Decoder(config(**settings))
    perturbed(model.double())
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
    model = perturbed(Decoder(config(position=kinds("position")[position](), n_layers=1)).double())
    tokens = torch.arange(5)[None]
    swapped = tokens[:, [2, 1, 0, 3, 4]]

    same = torch.allclose(model(tokens)[:, -1], model(swapped)[:, -1], rtol=0, atol=1e-12)

    assert same == isinstance(model.config.position, NoPositions)


# --- attention: explicit = fused, the pattern, the window -------------------------------------------------


@every_attending_case
@pytest.mark.parametrize("side", [None, "left", "right"])
def test_explicit_attention_is_fused_attention_with_its_gradients(case: str, side: str | None) -> None:
    model, tokens = model_of(case), text()
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


@every_attending_case
@torch.no_grad()
def test_pattern_rows_sum_to_one_and_hide_what_may_not_be_read(case: str) -> None:
    model = model_of(case)
    real = real_tokens([T, 6], "right", T)

    _, seen = model.run_with_cache(text(), real, names=lambda name: name.endswith("hook_pattern"))

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
    model = Decoder(config(attention=attention, n_layers=1, position=NoPositions())).double()
    tokens, place = text(), T - 1
    for back in range(T):
        changed = tokens.clone()
        changed[:, place - back] = (tokens[:, place - back] + 1) % V
        same = torch.equal(model(tokens)[:, place], model(changed)[:, place])
        assert same == (back >= window)


@pytest.mark.parametrize("case", [name for name, c in CASES.items() if c.attention.kind == "linear"])
@torch.no_grad()
def test_linear_attention_parallel_is_chunked_is_recurrent(case: str) -> None:
    model, n = model_of(case, max_seq_len=256), 2 * linear_attention_module.CHUNK + 3
    tokens, cache = text(n), model.new_cache()

    chunked = model(tokens)
    with patch.object(linear_attention_module, "CHUNK", n):
        parallel = model(tokens)
    recurrent = torch.cat([model(token, cache=cache) for token in tokens.split(1, dim=1)], dim=1)
    with has_hooks(model):
        explicit = model(tokens)

    for other in (chunked, recurrent, explicit):
        EXACT(other, parallel)


@torch.no_grad()
def test_linear_attention_remembers_in_bfloat16() -> None:
    """A sum kept in bfloat16 stops growing where a key is less than its last digit: after some 256 keys."""
    n = 1000
    q = k = torch.ones(1, 1, n, 2, dtype=torch.bfloat16)
    v = torch.linspace(0, 1, n, dtype=torch.bfloat16)[None, None, :, None]
    memory = LinearCache()

    mixed = [
        linear_attention_module.causal_linear_attention(*token, memory)
        for token in zip(q.split(1, 2), k.split(1, 2), v.split(1, 2), strict=True)
    ]

    assert abs(mixed[-1].item() - v.float().mean().item()) < 0.01


@pytest.mark.parametrize("case", [name for name, c in ATTENDING.items() if c.attention.kind != "linear"])
@pytest.mark.parametrize("padded", [False, True])
def test_whichever_form_is_faster_gives_the_same(case: str, padded: bool) -> None:
    model, tokens = model_of(case).bfloat16(), text()
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


@every_case
@torch.no_grad()
def test_a_bfloat16_model_is_near_its_float32_self(case: str) -> None:
    model, tokens = model_of(case).float(), text()
    exact = model(tokens)

    rounded = model.bfloat16()(tokens)

    assert rounded.dtype == torch.bfloat16
    assert (rounded.float() - exact).square().mean().sqrt() < 0.1 * exact.std()


@every_case
@torch.no_grad()
def test_autocast_is_near_float32(case: str) -> None:
    model, tokens = model_of(case).float(), text()
    exact = model(tokens)

    with torch.autocast("cpu", torch.bfloat16):
        rounded, cached = model(tokens), model(tokens, cache=model.new_cache())

    assert (rounded.float() - exact).square().mean().sqrt() < 0.1 * exact.std()
    assert (cached.float() - exact).square().mean().sqrt() < 0.1 * exact.std()


@every_case
@torch.no_grad()
def test_dropout_acts_in_training_and_never_else(case: str) -> None:
    model, still, tokens = model_of(case, dropout=0.5), model_of(case), text()

    EXACT(model(tokens), still(tokens))
    model.train()
    first, second = model(tokens), model(tokens)

    assert not torch.allclose(first, second)


DROPPING = [
    f"attention={kind}"
    for kind in kinds("attention")
    if kind not in ("last", "linear")  # these hold no weights
]


@pytest.mark.parametrize("case", [*DROPPING, "window+alibi"])
@pytest.mark.parametrize("explicit", [False, True])
@torch.no_grad()
def test_dropout_leaves_the_expected_pattern(case: str, explicit: bool) -> None:
    """Attention weights are dropped and the others scaled up, so that the mean of many draws is the pattern's."""
    model = model_of(case, dropout=0.5)
    attention = model.blocks[0].attn
    assert isinstance(attention, Attention)
    x = torch.randn(1, 3, D, dtype=torch.float64).expand(4000, 3, D)
    mask = Mask(q_pos=torch.arange(3), k_pos=torch.arange(3), causal=True)
    z: list[Tensor] = []
    looks = {"hook_z": lambda x, _: z.append(x)} | ({"hook_pattern": look_at_nothing} if explicit else {})

    for module in (attention.eval(), attention.train()):
        with hooked(module, looks):
            module(x, mask, model.position)

    assert z[1].std(0).max() > 0
    assert (z[1].mean(0) - z[0].mean(0)).abs().max() < 6 * z[1].std(0).max() / 4000**0.5


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
    results = {name: largest_difference(config) for name, config in json.load(sys.stdin).items()}
json.dump(results, sys.stdout)
"""
COMPILED = {
    name: case.replace(n_layers=1)
    for name, case in CASES.items()
    if "=" in name or name in ("window+alibi", "window+rope", "biases+qk_norm")
} | {
    "encoder": config(family="encoder", n_layers=1, n_token_types=2, masked_head="transform"),
    "classifier": config(family="encoder", n_layers=1, n_classes=3),
    "pair": config(family="encoder-decoder", n_layers=1),
    "pair+relative": config(family="encoder-decoder", n_layers=1, position=Relative()),
    "pair+linear": config(family="encoder-decoder", n_layers=1, attention=filled(Linear)),
    "window in blocks": config(attention=MultiHead(n_heads=2, window=3), n_layers=1, max_seq_len=22 * 31),
    "linear in chunks": config(attention=filled(Linear), n_layers=1, max_seq_len=22 * 31),
    "encoder, window in blocks": config(
        family="encoder", attention=MultiHead(n_heads=2, window=3), n_layers=1, max_seq_len=22 * 31
    ),
}


def test_one_graph_holds_the_whole_model() -> None:
    """In a process of its own: there the model is as users run it, without the shape checks of these tests."""
    result = subprocess.run(
        [sys.executable, "-c", COMPILE_EACH],
        input=json.dumps({name: c.model_dump(mode="json") for name, c in COMPILED.items()}),
        env=os.environ | {"PYTHONPATH": str(Path(clearformer.__file__).parents[1])},
        capture_output=True,
        text=True,
    )

    assert result.returncode == 0, result.stderr
    differences = json.loads(result.stdout)
    assert differences.keys() == COMPILED.keys()
    assert max(differences.values()) < 1e-9, differences
