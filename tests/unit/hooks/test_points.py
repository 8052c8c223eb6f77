"""Looking at, and replacing, named activations."""

import pickle
import re
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from threading import Barrier
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from clearformer.errors import UserError
from clearformer.hooks import Hook, HookFn, HookPoint, has_any_hooks, hook_points, hooked
from clearformer.model import Decoder, ModelConfig, Transformer, build
from clearformer.model.attention import Attention, Last, MultiHead
from clearformer.model.feedforward import GELU, SwiGLU
from clearformer.model.norms import RMSNorm
from clearformer.model.positions import Learned, RoPE, Sinusoidal

from ...forks import ForkServer

B, T, V, D, H, K, DH, FF = 2, 7, 13, 23, 6, 3, 4, 17
RESIDUAL = (B, T, D)
SCALE = (B, T, 1)
SHAPES = {
    "hook_embed": RESIDUAL,
    "hook_pos_embed": RESIDUAL,
    "blocks.0.hook_resid_pre": RESIDUAL,
    "blocks.0.ln1.hook_scale": SCALE,
    "blocks.0.ln1.hook_normalized": RESIDUAL,
    "blocks.0.attn.hook_q": (B, T, H, DH),
    "blocks.0.attn.hook_k": (B, T, K, DH),
    "blocks.0.attn.hook_v": (B, T, K, DH),
    "blocks.0.attn.hook_attn_scores": (B, H, T, T),
    "blocks.0.attn.hook_pattern": (B, H, T, T),
    "blocks.0.attn.hook_z": (B, T, H, DH),
    "blocks.0.hook_attn_out": RESIDUAL,
    "blocks.0.hook_resid_mid": RESIDUAL,
    "blocks.0.ln2.hook_scale": SCALE,
    "blocks.0.ln2.hook_normalized": RESIDUAL,
    "blocks.0.mlp.hook_pre": (B, T, FF),
    "blocks.0.mlp.hook_post": (B, T, FF),
    "blocks.0.hook_mlp_out": RESIDUAL,
    "blocks.0.hook_resid_post": RESIDUAL,
    "ln_final.hook_scale": SCALE,
    "ln_final.hook_normalized": RESIDUAL,
}
ROTATED = {
    "blocks.0.attn.hook_rot_q": (B, T, H, DH),
    "blocks.0.attn.hook_rot_k": (B, T, K, DH),
}
BY_POSITIONS: dict[str, tuple[Any, dict[str, tuple[int, ...]]]] = {
    "learned": (Learned(), SHAPES),
    "rope": (RoPE(), {name: shape for name, shape in SHAPES.items() if name != "hook_pos_embed"} | ROTATED),
}


def model(**changes: Any) -> Decoder:
    settings: dict[str, Any] = {"vocab_size": V, "d_model": D, "n_layers": 1, "max_seq_len": 11}
    settings |= {"attention": MultiHead(n_heads=H, n_kv_heads=K, d_head=DH), "ffn": GELU(d_ff=FF)}
    return build(ModelConfig(**(settings | changes)))


def of_family(family: str, **changes: Any) -> Transformer:
    return build(model().config.replace(family=family, **changes))


def tokens() -> Tensor:
    return torch.randint(V, (B, T))


def look_at_nothing(_: Tensor, __: Hook) -> None:
    return None


def other(activation: Tensor, _: Hook) -> Tensor:
    return activation * 0.5 + torch.rand_like(activation)


def times(factor: float) -> HookFn:
    return lambda activation, _: activation * factor


@pytest.mark.parametrize("positions", BY_POSITIONS)
def test_every_promised_name_is_there_with_its_shape(positions: str) -> None:
    position, shapes = BY_POSITIONS[positions]
    logits, seen = model(position=position).run_with_cache(tokens())

    assert {name: tuple(value.shape) for name, value in seen.items()} == shapes
    assert logits.shape == (B, T, V)


ENCODER_SHAPES = {name: shape for name, shape in SHAPES.items() if not name.startswith("ln_final")} | {
    "ln_embed.hook_scale": SCALE,
    "ln_embed.hook_normalized": RESIDUAL,
    "masked_head.ln.hook_scale": SCALE,
    "masked_head.ln.hook_normalized": RESIDUAL,
}
S = 5  # the source's tokens
CROSS_SHAPES = {
    "decoder_blocks.0.cross_attn.hook_q": (B, T, H, DH),
    "decoder_blocks.0.cross_attn.hook_k": (B, S, K, DH),
    "decoder_blocks.0.cross_attn.hook_v": (B, S, K, DH),
    "decoder_blocks.0.cross_attn.hook_attn_scores": (B, H, T, S),
    "decoder_blocks.0.cross_attn.hook_pattern": (B, H, T, S),
    "decoder_blocks.0.cross_attn.hook_z": (B, T, H, DH),
    "decoder_blocks.0.hook_cross_attn_out": RESIDUAL,
    "decoder_blocks.0.hook_resid_mid_cross": RESIDUAL,
    "decoder_blocks.0.ln_cross.hook_scale": SCALE,
    "decoder_blocks.0.ln_cross.hook_normalized": RESIDUAL,
}


def of_source(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(S if size == T else size for size in shape)


def pair_shapes() -> dict[str, tuple[int, ...]]:
    """Both stacks have what a decoder's has, under their own names."""
    in_encoder = {stack_name("encoder", name): of_source(shape) for name, shape in SHAPES.items()}
    in_decoder = {stack_name("decoder", name): shape for name, shape in SHAPES.items()}
    return in_encoder | in_decoder | CROSS_SHAPES


def stack_name(stack: str, name: str) -> str:
    return name.replace("hook_", f"hook_{stack}_") if name.startswith("hook_") else f"{stack}_{name}"


def test_an_encoder_s_names_are_a_decoder_s() -> None:
    settings: dict[str, Any] = {"masked_head": "transform", "embedding_norm": True, "final_norm": False}
    encoder = of_family("encoder", n_token_types=2, **settings)

    logits, seen = encoder.run_with_cache(tokens())

    assert {name: tuple(value.shape) for name, value in seen.items()} == ENCODER_SHAPES
    assert logits.shape == (B, T, V)


@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_a_classifier_s_pooled_text_has_a_name(pooling: str) -> None:
    classifier = of_family("encoder", n_classes=3, pooling=pooling)
    scores, seen = classifier.run_with_cache(tokens(), names="hook_pooled")
    assert seen["hook_pooled"].shape == (B, D)
    torch.testing.assert_close(classifier.get_submodule("classifier")(seen["hook_pooled"]), scores)


def test_a_pair_s_names_say_in_which_stack_they_are() -> None:
    model = of_family("encoder-decoder")

    logits, seen = model.run_with_cache(torch.randint(V, (B, S)), tokens())

    assert {name: tuple(value.shape) for name, value in seen.items()} == pair_shapes()
    assert logits.shape == (B, T, V)


@pytest.mark.parametrize("name", pair_shapes())
def test_a_replacement_in_either_stack_changes_the_logits(name: str) -> None:
    model, source, text = of_family("encoder-decoder"), torch.randint(V, (B, S)), tokens()
    before = model(source, text)

    with model.hooked({name: other}):
        replaced = model(source, text)

    assert not torch.allclose(replaced, before)
    assert torch.equal(model(source, text), before)


def test_the_stream_of_a_block_that_reads_a_source_is_the_sum_of_what_was_written() -> None:
    model = of_family("encoder-decoder", n_decoder_layers=2)
    _, seen = model.run_with_cache(torch.randint(V, (B, S)), tokens())
    written = [
        seen[f"decoder_blocks.{i}.hook_{part}_out"]
        for i in range(2)
        for part in ("attn", "cross_attn", "mlp")
    ]
    stream = seen["hook_decoder_embed"] + seen["hook_decoder_pos_embed"] + sum(written)
    torch.testing.assert_close(seen["decoder_blocks.1.hook_resid_post"], stream)


@pytest.mark.parametrize("position", [Sinusoidal(), Learned()])
def test_position_vectors_have_the_same_shape_with_padding_and_without(position: Any) -> None:
    real = torch.ones(B, T, dtype=torch.bool)
    for padding in (None, real):
        _, seen = model(position=position).run_with_cache(tokens(), padding, names=["hook_pos_embed"])
        assert seen["hook_pos_embed"].shape == (B, T, D)


def test_names_follow_the_parts_of_a_model() -> None:
    names = hook_points(model(n_layers=2, ffn=SwiGLU(d_ff=FF), attention=Last())).keys()

    assert {"blocks.1.attn.hook_z", "blocks.1.mlp.hook_pre_linear"} <= names
    assert "blocks.1.attn.hook_pattern" not in names  # nothing is read there
    assert "blocks.0.mlp.hook_post" not in hook_points(model(ffn={"kind": "none"}))
    assert "blocks.0.attn.q_norm.hook_normalized" in hook_points(
        model(attention=MultiHead(n_heads=H, d_head=DH, qk_norm=RMSNorm()))
    )


def test_run_with_cache_keeps_only_what_is_named() -> None:
    decoder = model()
    _, by_list = decoder.run_with_cache(tokens(), names=["blocks.0.hook_resid_mid", "hook_embed"])
    _, by_function = decoder.run_with_cache(tokens(), names=lambda name: "ln" in name)
    _, by_name = decoder.run_with_cache(tokens(), names="hook_embed")

    assert by_list.keys() == {"blocks.0.hook_resid_mid", "hook_embed"}
    assert by_function.keys() == {name for name in SHAPES if "ln" in name}
    assert by_name.keys() == {"hook_embed"}


def test_what_is_seen_is_what_the_model_computed() -> None:
    decoder, text = model(n_layers=2), tokens()
    logits, seen = decoder.run_with_cache(text)

    torch.testing.assert_close(logits, decoder(text))
    torch.testing.assert_close(decoder.unembed(seen["ln_final.hook_normalized"]), logits)
    written = [seen[f"blocks.{i}.hook_{part}_out"] for i in range(2) for part in ("attn", "mlp")]
    # the residual stream is the embeddings and everything that was written to it (lecture 002, section 12)
    stream = seen["hook_embed"] + seen["hook_pos_embed"] + sum(written)
    torch.testing.assert_close(seen["blocks.1.hook_resid_post"], stream)
    torch.testing.assert_close(seen["blocks.1.hook_resid_pre"], seen["blocks.0.hook_resid_post"])


def test_rotated_queries_and_keys_are_seen_after_and_before_the_rotation() -> None:
    _, seen = model(position=RoPE()).run_with_cache(tokens())
    for name in "qk":
        before, after = seen[f"blocks.0.attn.hook_{name}"], seen[f"blocks.0.attn.hook_rot_{name}"]
        assert torch.equal(before[:, 0], after[:, 0])  # position 0 is not turned
        assert not torch.allclose(before[:, 1:], after[:, 1:])


@pytest.mark.parametrize(
    ("positions", "name"),
    [(positions, name) for positions, (_, shapes) in BY_POSITIONS.items() for name in shapes],
)
def test_a_replacement_changes_the_logits(positions: str, name: str) -> None:
    decoder, text = model(position=BY_POSITIONS[positions][0]), tokens()
    before = decoder(text)

    with decoder.hooked({name: other}):
        replaced = decoder(text)

    assert not torch.allclose(replaced, before)
    assert torch.equal(decoder(text), before)


def test_looking_without_replacing_leaves_the_logits() -> None:
    decoder, text = model(), tokens()
    before = decoder(text)

    with decoder.hooked(dict.fromkeys(SHAPES, look_at_nothing)):
        torch.testing.assert_close(decoder(text), before)


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    decoder = model()
    with pytest.raises(
        UserError, match=r"'blocks\.0\.attn\.hook_patern'.*mean 'blocks\.0\.attn\.hook_pattern'"
    ):
        decoder.run_with_cache(tokens(), names=["blocks.0.attn.hook_patern"])
    assert not has_any_hooks(decoder)


def test_nothing_stays_watched_after_an_exception() -> None:
    decoder = model()

    def fail(_: Tensor, __: Hook) -> None:
        raise KeyError("a mistake of the user's function")

    with (
        pytest.raises(KeyError),
        decoder.hooked({"hook_embed": look_at_nothing, "blocks.0.attn.hook_z": fail}),
    ):
        decoder(tokens())

    assert_nobody_looks(decoder)


def test_nothing_stays_watched_where_a_block_is_refused() -> None:
    decoder = model()
    with (
        pytest.raises(UserError, match="no hook point 'hook_embet'"),
        decoder.hooked({"hook_pos_embed": look_at_nothing, "hook_embet": look_at_nothing}),
    ):
        pass
    assert_nobody_looks(decoder)


def assert_nobody_looks(decoder: Decoder) -> None:
    assert not has_any_hooks(decoder)
    assert {point.n_open for point in hook_points(decoder).values()} == {0}


# --- several at one point ---------------------------------------------------------------------------------


def test_run_with_cache_sees_what_an_outer_block_replaced() -> None:
    decoder, text, name = model(), tokens(), "blocks.0.attn.hook_z"
    with decoder.hooked({name: times(0.0)}):
        patched = decoder(text)
        logits, seen = decoder.run_with_cache(text)

    torch.testing.assert_close(logits, patched)
    assert not torch.allclose(logits, decoder(text))
    assert not seen[name].any()
    assert_nobody_looks(decoder)


def test_functions_at_one_point_run_from_the_outermost_block_inwards_on_each_other_s_results() -> None:
    decoder, text = model(position=RoPE()), tokens()
    seen: list[tuple[int, Tensor]] = []

    def add(number: int) -> HookFn:
        def look(activation: Tensor, _: Hook) -> Tensor:
            seen.append((number, activation))
            return activation * 2 + number

        return look

    x = decoder.embed(text)
    with decoder.hooked({"hook_embed": add(1)}):
        with decoder.hooked({"hook_*": add(3), "hook_embed": add(5)}):
            decoder(text)
        assert [number for number, _ in seen] == [1, 3, 5]
        for (_, found), expected in zip(seen, [x, x * 2 + 1, x * 4 + 5], strict=True):
            torch.testing.assert_close(found, expected)
        decoder(text)
        assert [number for number, _ in seen] == [1, 3, 5, 1]


def test_a_block_that_ends_late_takes_nothing_of_others_with_it() -> None:
    """A generator may hold one open, and close it while one that was opened later goes on."""
    decoder, text = model(), tokens()
    held, later = decoder.hooked({"hook_embed": times(0.0)}), decoder.hooked({"hook_embed": times(2.0)})
    held.__enter__()
    later.__enter__()
    held.__exit__(None, None, None)
    _, seen = decoder.run_with_cache(text, names="hook_embed")
    later.__exit__(None, None, None)

    torch.testing.assert_close(seen["hook_embed"], decoder.embed(text) * 2)
    assert_nobody_looks(decoder)


def test_a_function_is_told_where_it_looks() -> None:
    decoder, names = model(n_layers=3), []
    with decoder.hooked({"blocks.*.attn.hook_z": lambda _, hook: names.append(hook.name)}):
        decoder(tokens())
    assert names == [f"blocks.{i}.attn.hook_z" for i in range(3)]


def test_patterns_mean_what_they_match() -> None:
    names = ["*.hook_z", "blocks.1.hook_*", "blocks.1.hook_resid_mid"]
    _, seen = model(n_layers=2).run_with_cache(tokens(), names=names)
    assert list(seen) == [
        "blocks.0.attn.hook_z",
        "blocks.1.hook_resid_pre",
        "blocks.1.attn.hook_z",
        "blocks.1.hook_attn_out",
        "blocks.1.hook_resid_mid",
        "blocks.1.hook_mlp_out",
        "blocks.1.hook_resid_post",
    ]


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("blocks.*.attn.hook_patern", "; did you mean 'blocks.*.attn.hook_pattern'?"),
        ("blocks.*.attn.hook_rot_q", "; did you mean 'blocks.*.attn.hook_q'?"),
        ("xyz*", "; it has hook_embed, hook_pos_embed, blocks.*.hook_resid_pre, "),
    ],
)
def test_a_pattern_that_means_nothing_is_refused_with_the_nearest(pattern: str, said: str) -> None:
    decoder = model(n_layers=2)
    with pytest.raises(UserError, match=re.escape(f"no hook point {pattern!r}{said}")) as caught:
        decoder.run_with_cache(tokens(), names=pattern)
    assert "\n" not in str(caught.value)
    assert "blocks.0" not in str(caught.value)


@pytest.mark.parametrize("look", [lambda _: None, lambda: None, lambda a, b, c: None])
def test_a_function_of_other_arguments_is_refused_before_it_is_called(look: Any) -> None:
    said = r"the function for 'hook_embed' takes \(.*\); it is called with \(activation, hook\)"
    with pytest.raises(UserError, match=said), model().hooked({"hook_embed": look}):
        pass


WRONG_LOOKS = """
from clearformer.errors import UserError
from clearformer.model import ModelConfig, build

model = build(ModelConfig(vocab_size=5, d_model=4, n_layers=1))
for hooks in ("hook_embed", ["hook_embed"], {"hook_embed": 5}, {5: print}):
    try:
        model.hooked(hooks).__enter__()
    except UserError as error:
        print(error)
for names in (5, [5]):
    try:
        model.run_with_cache(None, names=names)
    except UserError as error:
        print(error)
"""


def test_hooks_and_names_that_are_none_are_refused(forks: ForkServer) -> None:
    """In another process, for in this one the types of all arguments are checked."""
    must_map = (
        'hooks: must map names of hook points to functions, such as {"blocks.0.attn.hook_z": function}; got '
    )
    assert forks.run(script=WRONG_LOOKS).stdout.splitlines() == [
        f"{must_map}'hook_embed'",
        f"{must_map}['hook_embed']",
        "hooks: 'hook_embed' must have a function of (activation, hook); got 5",
        "names of hook points are strings; got 5",
        "names: must be names or patterns, such as 'blocks.0.*'; got 5",
        "names: must be names or patterns, such as 'blocks.0.*'; got 5",
    ]


@pytest.mark.parametrize(
    ("replace", "returned"),
    [
        (lambda a: a[:, :1], f"[{B}, 1, {D}] of float32"),
        (lambda a: a.double(), f"[{B}, {T}, {D}] of float64"),
        (lambda a: a.numpy(), "ndarray"),
        (lambda a: 0.0, "float"),
    ],
)
def test_a_replacement_that_is_not_like_the_activation_is_refused(replace: Any, returned: str) -> None:
    said = (
        f"the function at blocks.0.hook_mlp_out must return a tensor like its argument, "
        f"[{B}, {T}, {D}] of float32, or None; it returned {returned}"
    )
    decoder = model().requires_grad_(requires_grad=False)
    with (
        pytest.raises(UserError, match=f"^{re.escape(said)}$"),
        decoder.hooked({"*hook_mlp_out": lambda a, _: replace(a)}),
    ):
        decoder(tokens())


@pytest.mark.parametrize("copy", [deepcopy, lambda each: pickle.loads(pickle.dumps(each))])  # noqa: S301  (our own)
def test_a_copy_of_a_hooked_model_is_not_hooked(copy: Any) -> None:
    decoder, read = model(), tokens()
    with decoder.hooked({"hook_embed": lambda a, _: 0 * a}):
        copied = copy(decoder)
        found = copied(read)
    assert torch.equal(found, decoder(read))
    assert not any(point.n_open for point in hook_points(copied).values())


def test_a_module_of_a_model_can_be_looked_at_by_itself() -> None:
    decoder, names = model(), []
    with hooked(decoder.blocks[0], {"*hook_z": lambda _, hook: names.append(hook.name)}):
        decoder(tokens())
    assert names == ["attn.hook_z"]


# --- whose they are ---------------------------------------------------------------------------------------


def test_threads_that_look_at_one_model_at_once_see_each_their_own() -> None:
    decoder, text, name = model(), tokens(), "blocks.0.attn.hook_z"
    together = Barrier(3, timeout=60)

    def run(looks: dict[str, HookFn]) -> tuple[Tensor, bool]:
        with decoder.hooked(looks):
            together.wait()
            found = decoder(text), has_any_hooks(decoder)
            together.wait()
        return found

    every = [{name: times(0.0)}, {name: times(3.0)}, {}]
    expected = []
    for looks in every:
        with decoder.hooked(looks):
            expected.append(decoder(text))
    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(run, every))

    assert [has_hooks for _, has_hooks in found] == [True, True, False]
    for (logits, _), wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(logits, wanted)
    assert not torch.allclose(expected[0], expected[1])
    assert_nobody_looks(decoder)


def test_attention_keeps_its_fast_form_where_only_another_thread_looks() -> None:
    decoder, text = model(), tokens()
    fused = patch.object(F, "scaled_dot_product_attention", wraps=F.scaled_dot_product_attention)
    with decoder.hooked({"*.hook_pattern": look_at_nothing}), fused as spy, ThreadPoolExecutor(1) as thread:
        decoder(text)
        assert spy.call_count == 0
        thread.submit(decoder, text).result()
        assert spy.call_count == 1


def test_a_hook_point_that_nobody_looks_at_hands_on_the_same_tensor() -> None:
    point, activation = HookPoint(), torch.ones(3)
    assert point(activation) is activation
    assert not point.has_hooks


@pytest.mark.parametrize("name", ["blocks.0.attn.hook_pattern", "blocks.0.attn.hook_attn_scores"])
def test_the_scores_are_held_only_while_somebody_looks_at_them(name: str) -> None:
    decoder, text = model(), tokens()
    fused = patch.object(F, "scaled_dot_product_attention", wraps=F.scaled_dot_product_attention)
    explicit = patch.object(Attention, "formula", autospec=True, side_effect=Attention.formula)

    with fused as fused_spy, explicit as explicit_spy:
        with decoder.hooked({"blocks.0.attn.hook_z": look_at_nothing}):
            decoder(text)
        assert (fused_spy.call_count, explicit_spy.call_count) == (1, 0)
        with decoder.hooked({name: look_at_nothing}):
            decoder(text)
        assert (fused_spy.call_count, explicit_spy.call_count) == (1, 1)
