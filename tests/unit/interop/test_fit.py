"""Which architecture a model is, and what is said where it is none."""

from typing import Any

import pytest
import torch

from clearformer.errors import ConfigError
from clearformer.interop.architectures import ARCHITECTURES, meta_weights, misfits
from clearformer.interop.architectures.base import Architecture, settled
from clearformer.interop.reorder import sines_first
from clearformer.interop.writing import completed, fit
from clearformer.model import ModelConfig, build
from clearformer.model.attention import Linear, MultiHead
from clearformer.model.feedforward import GEGLU, GELU, ReLU, ReLU2, SwiGLU
from clearformer.model.norms import LayerNorm, RMSNorm
from clearformer.model.positions import ALiBi, Learned, Relative, RoPE, Sinusoidal

V = 13
SIZES: dict[str, Any] = {"vocab_size": V, "d_model": 12, "n_layers": 2, "max_seq_len": 7}
HEADS = MultiHead(n_heads=2)
LLAMA_LIKE: dict[str, Any] = {"position": RoPE(), "norm": RMSNorm(), "ffn": SwiGLU(d_ff=17)}
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
    "Qwen3": config(**LLAMA_LIKE | {"attention": MultiHead(n_heads=2, qk_norm=RMSNorm(learned=False))}),
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
}


@pytest.mark.parametrize("name", FITTING)
def test_an_architecture_is_recognised(name: str) -> None:
    fitted = fit(FITTING[name])
    assert fitted.architecture.title == name.partition(",")[0]
    theirs = fitted.architecture.nearest(fitted.config)
    assert settled(theirs) == settled(fitted.config)


@torch.no_grad()
@pytest.mark.parametrize("name", FITTING)
def test_what_is_added_changes_nothing(name: str) -> None:
    """A bias of zeros, a norm's weight of ones; nor does another order of the dimensions."""
    ours = build(FITTING[name]).eval()
    for parameter in ours.parameters():
        parameter.normal_(0, 0.5)
    fitted = fit(FITTING[name])
    theirs = build(fitted.config).eval()
    weights = sines_first(ours.state_dict()) if fitted.reordered else ours.state_dict()
    theirs.load_state_dict(completed(fitted.config, weights))
    inputs = [torch.randint(V, (2, 5)) for _ in range(2 if ours.config.family == "encoder-decoder" else 1)]
    torch.testing.assert_close(theirs(*inputs), ours(*inputs), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda a: a.title)
def test_every_tensor_has_one_place(architecture: Architecture) -> None:
    fitted = [fit(c) for c in FITTING.values()]
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
            "model.position.kind",
            "alibi",
            "GPT-2",
            "learned",
        ),
        (
            {"position": ALiBi(), "embedding_norm": True, "ffn": GELU(d_ff=5, approximate="tanh")},
            "model.ffn.d_ff",
            "5",
            "Bloom",
            "48",
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
        fit(config(**settings))
    message = str(caught.value)
    assert message.startswith(f"{setting}={ours} does not fit")
    assert f"is {nearest}, which has {theirs} there" in message
    assert "\n" not in message


def test_sizes_that_an_architecture_cannot_have_do_not_stop_the_search() -> None:
    """Heads of 5 cannot be turned in pairs, so Llama is out of the question."""
    odd = config(d_model=10, attention=MultiHead(n_heads=2))
    assert fit(odd).architecture.title == "GPT-2"


def test_what_only_training_needs_is_not_compared() -> None:
    ours = FITTING["GPT-2"].replace(dropout=0.3)
    gpt2 = next(a for a in ARCHITECTURES if a.title == "GPT-2")
    assert misfits(gpt2, ours) == []
    assert gpt2.nearest(ours).dropout == 0.3
