"""Which architecture a model is, and what is said where it is none."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from clearformer.errors import ConfigError
from clearformer.interop.architectures import ARCHITECTURES, meta_weights, mismatches
from clearformer.interop.architectures.base import Architecture, effective_settings
from clearformer.interop.mapping.fields import Fields
from clearformer.interop.mapping.matching import match_architecture
from clearformer.interop.mapping.rewriting import forms
from clearformer.interop.writing import SpecialIds, foreign_tensors, write_model
from clearformer.model import ModelConfig, build
from clearformer.model.attention import MultiHead
from clearformer.model.feedforward import GEGLU, GELU, ReLU, ReLU2, SwiGLU
from clearformer.model.linear_attention import Linear
from clearformer.model.norms import LayerNorm, NoNorm, Norm, RMSNorm
from clearformer.model.positions import ALiBi, Learned, RoPE, Sinusoidal
from clearformer.model.relative_positions import Relative

V = 13
SIZES: dict[str, Any] = {"vocab_size": V, "d_model": 12, "n_layers": 2, "max_seq_len": 7}
HEADS = MultiHead(n_heads=2)
LLAMA_LIKE: dict[str, Any] = {"position": RoPE(), "norm": RMSNorm(), "ffn": SwiGLU(d_ff=17)}
PLAIN = RMSNorm(learned=False, eps=1e-3)
NANOCHAT_LIKE: dict[str, Any] = {
    "attention": MultiHead(n_heads=2, qk_norm=PLAIN),
    "position": RoPE(theta=77.0),
    "norm": PLAIN,
    "embedding_norm": True,
    "ffn": ReLU2(bias=False),
}
POST: dict[str, Any] = {"placement": "post", "final_norm": False}


def config(**settings: Any) -> ModelConfig:
    return ModelConfig(**({**SIZES, "attention": HEADS} | settings))


FITTING = {
    "GPT-2": config(position=Learned(), ffn=GELU(approximate="tanh")),
    "GPT-2, relu": config(position=Learned(), ffn=ReLU(d_ff=19, bias=False), tie_embeddings=False),
    "GPT-2, no biases": config(norm=LayerNorm(bias=False, eps=0.1), ffn=ReLU2(bias=False)),
    "Llama": config(**LLAMA_LIKE, tie_embeddings=False),
    "Llama, shared heads": config(
        **LLAMA_LIKE | {"attention": MultiHead(n_heads=4, n_kv_heads=2, d_head=6, qkv_bias=True)}
    ),
    "Llama, gated gelu": config(**LLAMA_LIKE | {"ffn": GEGLU(approximate="none", bias=True)}),
    "Llama, norms without weights": config(**LLAMA_LIKE | {"norm": RMSNorm(learned=False)}),
    "Mistral": config(**LLAMA_LIKE | {"attention": MultiHead(n_heads=2, window=3)}),
    # transformers has a Llama only of heads that divide its width, and a Mistral of any.
    "Mistral, heads that do not divide the width": config(
        **LLAMA_LIKE | {"attention": MultiHead(n_heads=8, n_kv_heads=4, d_head=6)}
    ),
    "Qwen3": config(**LLAMA_LIKE | {"attention": MultiHead(n_heads=2, qk_norm=RMSNorm(learned=False))}),
    "Llama, scaled embeddings": config(**LLAMA_LIKE, tie_embeddings=False, scale_embeddings=True),
    "NanoChat": config(**NANOCHAT_LIKE, logit_soft_cap=15.0),
    "NanoChat, shared heads, biases": config(
        **NANOCHAT_LIKE
        | {
            "attention": MultiHead(n_heads=4, n_kv_heads=2, d_head=6, qkv_bias=True, qk_norm=PLAIN),
            "tie_embeddings": False,
            "ffn": GELU(bias=False, d_ff=5),
        }
    ),
    "GPT-NeoX": config(position=RoPE(fraction=0.4, theta=77.0), parallel=True, ffn=GELU(d_ff=5)),
    "GPT-NeoX, in a row": config(position=RoPE(), ffn=ReLU()),
    "Bloom": config(position=ALiBi(), embedding_norm=True, ffn=GELU(approximate="tanh")),
    "BERT": config(
        family="encoder",
        **POST,
        embedding_norm=True,
        masked_head="transform",
        head_bias=True,
        n_token_types=2,
    ),
    "BERT, no token types": config(
        family="encoder", **POST, embedding_norm=True, masked_head="transform", tie_embeddings=True
    ),
    "BERT, classes": config(family="encoder", **POST, embedding_norm=True, n_classes=3, ffn=ReLU()),
    "Marian": config(
        family="encoder-decoder", **POST, position=Sinusoidal(interleaved=False), scale_embeddings=True
    ),
    "Marian, sines beside cosines": config(
        family="encoder-decoder", **POST, position=Sinusoidal(), d_model=14, ffn=ReLU(), head_bias=True
    ),
    "Pegasus": config(
        family="encoder-decoder", position=Sinusoidal(), d_model=14, scale_embeddings=True, ffn=ReLU(d_ff=9)
    ),
    "BART": config(family="encoder-decoder", **POST, embedding_norm=True, n_decoder_layers=1),
    "T5": config(
        family="encoder-decoder",
        position=Relative(n_buckets=8, max_distance=11),
        attention=MultiHead(n_heads=3, d_head=5, scale=False),
        norm=RMSNorm(),
        ffn=ReLU(bias=False),
        scale_logits=True,
    ),
    "T5, factors in the weights": config(
        family="encoder-decoder",
        position=Relative(n_buckets=8, max_distance=11),
        norm=RMSNorm(learned=False),
        ffn=ReLU2(bias=False),
        scale_embeddings=True,
    ),
    "T5, a tied head that is not scaled": config(
        family="encoder-decoder", position=Relative(n_buckets=8), norm=RMSNorm(), ffn=ReLU(bias=False)
    ),
    "T5, a tied head that is not scaled, norms without weights": config(
        family="encoder-decoder", position=Relative(), norm=RMSNorm(learned=False), ffn=ReLU(bias=False)
    ),
}


@pytest.mark.parametrize("name", FITTING)
def test_an_architecture_is_recognised(name: str) -> None:
    fitted = match_architecture(FITTING[name])
    assert fitted.architecture.title == name.partition(",")[0]
    theirs = fitted.architecture.nearest(fitted.config)
    assert effective_settings(theirs) == effective_settings(fitted.config)


@torch.no_grad()
@pytest.mark.parametrize("name", FITTING)
def test_what_is_added_changes_nothing(name: str) -> None:
    """A bias of zeros, a norm's weight of ones; nor does another order of the dimensions."""
    ours = build(FITTING[name]).double().eval()
    for parameter in ours.parameters():
        parameter.normal_(0, 0.5)
    fitted = match_architecture(FITTING[name])
    theirs = build(fitted.config).double().eval()
    theirs.load_state_dict(fitted.weights(ours.state_dict()))
    inputs = [torch.randint(V, (2, 5)) for _ in range(2 if ours.config.family == "encoder-decoder" else 1)]
    torch.testing.assert_close(theirs(*inputs), ours(*inputs), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "changes", "is_right"),
    [
        ("T5", {}, True),
        ("T5", {"n_decoder_layers": 1}, True),
        ("T5", {"n_decoder_layers": 3}, False),
        ("BART", {"n_decoder_layers": 3}, True),
        ("Mistral", {}, True),
        ("Mistral", {"attention": MultiHead(n_heads=2, window=1)}, False),
    ],
)
def test_files_say_where_transformers_cache_is_wrong(
    name: str, changes: dict[str, Any], is_right: bool, tmp_path: Path
) -> None:
    ours = build(FITTING[name].replace(**changes))
    write_model(tmp_path, match_architecture(ours.config), ours.state_dict(), SpecialIds())
    said = json.loads((tmp_path / "generation_config.json").read_text())
    assert said.get("use_cache", True) == is_right


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_files_are_in_float32_whatever_the_model_computes_in(dtype: torch.dtype) -> None:
    """A factor is multiplied in float32, too: sqrt(12) times a number of bfloat16 is none of bfloat16."""
    ours = build(FITTING["Llama, scaled embeddings"]).to(dtype)
    fitted = match_architecture(ours.config)
    theirs = foreign_tensors(fitted, ours.state_dict())
    assert {tensor.dtype for tensor in theirs.values()} == {torch.float32}
    assert torch.equal(theirs["model.embed_tokens.weight"], ours.embed.weight.float() * 12**0.5)


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda a: a.title)
def test_every_tensor_has_one_place(architecture: Architecture) -> None:
    fitted = [match_architecture(c) for c in FITTING.values()]
    mine = [f.config for f in fitted if f.architecture is architecture]
    assert mine, "no example of this architecture"
    for each in mine:
        placed = [name for place in architecture.places(each) for name in place.ours]
        assert sorted(placed) == sorted(meta_weights(each))


@pytest.mark.parametrize(
    ("settings", "setting", "ours", "nearest", "theirs"),
    [
        ({"position": Sinusoidal()}, "model.position.kind", "sinusoidal", "GPT-2", "learned"),
        ({**LLAMA_LIKE, "logit_soft_cap": 15.0}, "model.logit_soft_cap", "15.0", "Llama", "none"),
        ({**LLAMA_LIKE, "scale_embeddings": True}, "model.scale_embeddings", "true", "Llama", "false"),
        ({"attention": Linear(n_heads=2)}, "model.attention.kind", "linear", "GPT-2", "multihead"),
        ({"placement": "post"}, "model.placement", "post", "GPT-2", "pre"),
        (
            {"position": ALiBi(), "ffn": GELU(approximate="tanh")},
            "model.embedding_norm",
            "false",
            "Bloom",
            "true",
        ),
        (
            {"position": ALiBi(), "embedding_norm": True, "ffn": GELU(d_ff=5, approximate="tanh")},
            "model.ffn.d_ff",
            "5",
            "Bloom",
            "48",
        ),
        ({**NANOCHAT_LIKE, "embedding_norm": False}, "model.embedding_norm", "false", "NanoChat", "true"),
        (
            {**NANOCHAT_LIKE, "norm": RMSNorm(eps=1e-3)},
            "model.norm.learned",
            "true",
            "NanoChat",
            "false",
        ),
        (
            {**NANOCHAT_LIKE, "norm": RMSNorm(eps=0.5, learned=False)},
            "model.attention.qk_norm.eps",
            "0.001",
            "NanoChat",
            "0.5",
        ),
        (
            {
                **NANOCHAT_LIKE,
                "position": RoPE(fraction=0.5, theta=77.0),
                "attention": MultiHead(n_heads=1, qk_norm=PLAIN),
            },
            "model.position.fraction",
            "0.5",
            "NanoChat",
            "1.0",
        ),
        ({"parallel": True}, "model.parallel", "true", "GPT-2", "false"),
        ({"attention": MultiHead(n_heads=2, value=False)}, "model.attention.value", "false", "GPT-2", "true"),
        ({"family": "encoder"}, "model.placement", "pre", "BERT", "post"),
        (
            {"family": "encoder", **POST, "embedding_norm": True, "n_classes": 3, "pooling": "mean"},
            "model.pooling",
            "mean",
            "BERT",
            "first",
        ),
        (
            {"family": "encoder-decoder", "position": Sinusoidal(), "norm": RMSNorm()},
            "model.norm.kind",
            "rmsnorm",
            "Pegasus",
            "layernorm",
        ),
    ],
)
def test_the_first_setting_that_does_not_fit_is_named(
    settings: dict[str, Any], setting: str, ours: str, nearest: str, theirs: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        match_architecture(config(**settings))
    message = str(caught.value)
    assert message.startswith(f"{setting}={ours} does not fit")
    assert f"the nearest architecture in transformers, {nearest}, has {theirs} there" in message
    assert "\n" not in message


def test_all_settings_that_differ_from_the_nearest_are_named() -> None:
    with pytest.raises(ConfigError) as caught:
        match_architecture(config(**NANOCHAT_LIKE | {"embedding_norm": False, "scale_embeddings": True}))
    assert str(caught.value) == (
        "model.embedding_norm=false does not fit: the nearest architecture in transformers, NanoChat, "
        "has true there, and model.scale_embeddings=false instead of true"
    )


def test_sizes_that_no_architecture_can_have_are_told() -> None:
    with pytest.raises(ConfigError, match=r"no architecture of these sizes: .*a clearformer classifier"):
        match_architecture(config(family="encoder", **POST, embedding_norm=True, n_classes=1))


QK_NORMS = [NoNorm(), RMSNorm(learned=False), RMSNorm(), LayerNorm()]


@torch.no_grad()
@pytest.mark.parametrize("qk_norm", QK_NORMS, ids=lambda norm: f"{norm.kind}-{getattr(norm, 'learned', '')}")
@pytest.mark.parametrize("tied", [False, True])
def test_a_model_in_other_words_computes_the_same(qk_norm: Norm, tied: bool) -> None:
    heads = MultiHead(n_heads=4, n_kv_heads=2, d_head=6, qkv_bias=True, qk_norm=qk_norm)
    parts = {"attention": heads, "position": Sinusoidal(), "d_model": 14, "scale_embeddings": True}
    ours = build(config(family="encoder-decoder", **parts, tie_embeddings=tied)).double().eval()
    for parameter in ours.parameters():
        parameter.normal_(0, 0.5)
    source, text = torch.randint(V, (2, 5)), torch.randint(V, (2, 6))
    found = forms(ours.config)
    for form in found:
        theirs = build(form.config).double().eval()
        weights = form.weights(ours.state_dict())
        theirs.load_state_dict(
            {**theirs.state_dict(), **weights}
        )  # ones for norms that ours has without weights
        torch.testing.assert_close(theirs(source, text), ours(source, text), rtol=1e-6, atol=1e-6)
    assert [len(form.changes) for form in found] == [0, 1, 1, 1, 2, 2, 2, 3]
    assert len({str(form.config) for form in found}) == 8


def test_a_tied_and_scaled_head_keeps_its_factor() -> None:
    """What would have to be divided by twice is no setting."""
    both = config(scale_embeddings=True, scale_logits=True)
    assert all(form.config.scale_embeddings for form in forms(both))


def test_sizes_that_an_architecture_cannot_have_do_not_stop_the_search() -> None:
    """Heads of 5 cannot be turned in pairs, so Llama is out of the question."""
    odd = config(d_model=10, attention=MultiHead(n_heads=2))
    assert match_architecture(odd).architecture.title == "GPT-2"


@pytest.mark.parametrize("title", ["Llama", "Mistral", "Qwen3", "NanoChat"])
def test_a_part_of_each_head_is_turned_only_where_the_architecture_does_that(title: str) -> None:
    """Theirs turn whole heads whatever their config.json says of it."""
    architecture = next(each for each in ARCHITECTURES if each.title == title)
    rope = {"rope_type": "default", "rope_theta": 500.0}
    assert architecture.read(Fields({"rope_parameters": rope})).position == RoPE(theta=500.0)
    with pytest.raises(ConfigError, match=r"rope_parameters: partial_rotary_factor: .*whole heads; got 0.5"):
        architecture.read(Fields({"rope_parameters": rope | {"partial_rotary_factor": 0.5}}))


def test_what_only_training_needs_is_not_compared() -> None:
    ours = FITTING["GPT-2"].replace(dropout=0.3, ffn=GELU(approximate="tanh", dropout=0.2))
    gpt2 = next(a for a in ARCHITECTURES if a.title == "GPT-2")
    assert mismatches(gpt2, ours) == []
    assert gpt2.nearest(ours).dropout == 0.3


@pytest.mark.parametrize("title", ["BART", "Marian", "Pegasus"])
def test_dropout_between_the_matrices_comes_along_where_theirs_has_it(title: str) -> None:
    architecture = next(a for a in ARCHITECTURES if a.title == title)
    ours = FITTING["BART"].replace(ffn=GELU(dropout=0.2))
    assert architecture.write(ours)["activation_dropout"] == 0.2
    assert getattr(architecture.nearest(ours).ffn, "dropout", None) == 0.2
