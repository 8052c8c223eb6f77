"""Looking at, and replacing, named activations."""

from typing import Any
from unittest.mock import Mock, patch

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from clearformer.errors import UserError
from clearformer.model import Decoder, ModelConfig, Transformer, build
from clearformer.model import attention as attention_module
from clearformer.model.attention import Last, MultiHead
from clearformer.model.feedforward import GELU, SwiGLU
from clearformer.model.hooks import HookPoint, hook_points
from clearformer.model.norms import RMSNorm
from clearformer.model.positions import Learned, RoPE, Sinusoidal

B, T, V, D, H, K, DH, FF = 2, 7, 13, 23, 6, 3, 4, 17
RESIDUAL = (B, T, D)
SHAPES = {
    "hook_embed": RESIDUAL,
    "hook_pos_embed": RESIDUAL,
    "blocks.0.hook_resid_pre": RESIDUAL,
    "blocks.0.ln1.hook_normalized": RESIDUAL,
    "blocks.0.attn.hook_q": (B, T, H, DH),
    "blocks.0.attn.hook_k": (B, T, K, DH),
    "blocks.0.attn.hook_v": (B, T, K, DH),
    "blocks.0.attn.hook_rot_q": (B, T, H, DH),
    "blocks.0.attn.hook_rot_k": (B, T, K, DH),
    "blocks.0.attn.hook_attn_scores": (B, H, T, T),
    "blocks.0.attn.hook_pattern": (B, H, T, T),
    "blocks.0.attn.hook_z": (B, T, H, DH),
    "blocks.0.hook_attn_out": RESIDUAL,
    "blocks.0.hook_resid_mid": RESIDUAL,
    "blocks.0.ln2.hook_normalized": RESIDUAL,
    "blocks.0.mlp.hook_pre": (B, T, FF),
    "blocks.0.mlp.hook_post": (B, T, FF),
    "blocks.0.hook_mlp_out": RESIDUAL,
    "blocks.0.hook_resid_post": RESIDUAL,
    "ln_final.hook_normalized": RESIDUAL,
}


def model(**changes: Any) -> Decoder:
    settings: dict[str, Any] = {"vocab_size": V, "d_model": D, "n_layers": 1, "max_seq_len": 11}
    settings |= {"attention": MultiHead(n_heads=H, n_kv_heads=K, d_head=DH), "ffn": GELU(d_ff=FF)}
    return Decoder(ModelConfig(**(settings | changes)))


def of_family(family: str, **changes: Any) -> Transformer:
    return build(model().config.replace(family=family, **changes))


def tokens() -> Tensor:
    return torch.randint(V, (B, T))


def look_at_nothing(_: Tensor) -> None:
    return None


def test_every_promised_name_is_there_with_its_shape() -> None:
    logits, seen = model(position=Learned()).run_with_cache(tokens())

    assert {name: tuple(value.shape) for name, value in seen.items()} == SHAPES
    assert logits.shape == (B, T, V)


ENCODER_SHAPES = {name: shape for name, shape in SHAPES.items() if name != "ln_final.hook_normalized"} | {
    "ln_embed.hook_normalized": RESIDUAL,
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

    with model.hooked({name: lambda activation: activation * 0.5 + torch.rand_like(activation)}):
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


@pytest.mark.parametrize("name", SHAPES)
def test_a_replacement_changes_the_logits(name: str) -> None:
    decoder, text = model(), tokens()
    before = decoder(text)

    with decoder.hooked({name: lambda activation: activation * 0.5 + torch.rand_like(activation)}):
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
    assert not watched(decoder)


def test_nothing_stays_watched_after_an_exception() -> None:
    decoder = model()

    def fail(_: Tensor) -> None:
        raise KeyError("a mistake of the user's function")

    with (
        pytest.raises(KeyError),
        decoder.hooked({"hook_embed": look_at_nothing, "blocks.0.attn.hook_z": fail}),
    ):
        decoder(tokens())

    assert not watched(decoder)


def test_an_inner_look_gives_way_to_the_outer_one_again() -> None:
    decoder, outer, inner = model(), Mock(return_value=None), Mock(return_value=None)
    with decoder.hooked({"hook_embed": outer}):
        with decoder.hooked({"hook_embed": inner}):
            decoder(tokens())
        decoder(tokens())

    assert (inner.call_count, outer.call_count) == (1, 1)
    assert not watched(decoder)


def test_a_hook_point_that_nobody_looks_at_hands_on_the_same_tensor() -> None:
    point, activation = HookPoint(), torch.ones(3)
    assert point(activation) is activation
    assert not point.watched


@pytest.mark.parametrize("name", ["blocks.0.attn.hook_pattern", "blocks.0.attn.hook_attn_scores"])
def test_the_scores_are_held_only_while_somebody_looks_at_them(name: str) -> None:
    decoder, text = model(), tokens()
    fused = patch.object(F, "scaled_dot_product_attention", wraps=F.scaled_dot_product_attention)
    explicit = patch.object(attention_module, "attention_scores", wraps=attention_module.attention_scores)

    with fused as fused_spy, explicit as explicit_spy:
        with decoder.hooked({"blocks.0.attn.hook_z": look_at_nothing}):
            decoder(text)
        assert (fused_spy.call_count, explicit_spy.call_count) == (1, 0)
        with decoder.hooked({name: look_at_nothing}):
            decoder(text)
        assert (fused_spy.call_count, explicit_spy.call_count) == (1, 1)


def watched(decoder: Decoder) -> list[str]:
    return [name for name, point in hook_points(decoder).items() if point.watched]
