"""The decoder against transformers' models: tiny, with random weights, made here and never downloaded."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor
from transformers.models.bloom import modeling_bloom
from transformers.models.gpt2 import modeling_gpt2
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral
from transformers.models.qwen3 import modeling_qwen3

from clearformer.model import Decoder, ModelConfig
from clearformer.model.attention import MultiHead
from clearformer.model.feedforward import GELU, SwiGLU
from clearformer.model.norms import RMSNorm
from clearformer.model.positions import ALiBi, Learned, RoPE

B, T, V, N, D_FF, MAX_T = 3, 19, 53, 2, 37, 23
Weights = dict[str, Tensor]
Pair = tuple[Any, ModelConfig, Weights]  # transformers' model, our configuration, our weights


# --- each architecture: its model, ours, and where each weight goes ----------------------------------------


def gpt2() -> Pair:
    theirs = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=V,
            n_embd=21,
            n_layer=N,
            n_head=3,
            n_positions=MAX_T,
            n_inner=D_FF,
            **EAGER,
        )
    )
    ours = our_config(
        d_model=21,
        attention=MultiHead(n_heads=3, qkv_bias=True, output_bias=True),
        position=Learned(),
        ffn=GELU(d_ff=D_FF, approximate="tanh"),
    )
    w = randomised(theirs)
    names = {"embed.weight": w["transformer.wte.weight"], "position.weight": w["transformer.wpe.weight"]}
    names |= moved(w, {"ln_final": "transformer.ln_f"})
    for i in range(N):
        block, h = f"blocks.{i}", f"transformer.h.{i}"
        names |= moved(w, {f"{block}.ln1": f"{h}.ln_1", f"{block}.ln2": f"{h}.ln_2"})
        for suffix in ("weight", "bias"):
            qkv, out, up, down = (
                w[f"{h}.{layer}.{suffix}"].t()  # Conv1D keeps [in out]; a vector stays what it is
                for layer in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
            )
            names |= {f"{block}.attn.W_{m}.{suffix}": x for m, x in zip("QKV", qkv.chunk(3), strict=True)}
            names |= {f"{block}.attn.W_O.{suffix}": out}
            names |= {f"{block}.mlp.W_in.{suffix}": up, f"{block}.mlp.W_out.{suffix}": down}
    return theirs, ours, names


def llama() -> Pair:
    theirs = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=30,
            num_attention_heads=6,
            num_key_value_heads=2,
            head_dim=10,
            **llama_like(theta=500.0),
        )
    )
    ours = our_config(
        d_model=30,
        attention=MultiHead(n_heads=6, n_kv_heads=2, d_head=10),
        position=RoPE(theta=500.0),
        **RMS_AND_SWIGLU,
    )
    return theirs, ours, llama_names(randomised(theirs))


def mistral() -> Pair:
    theirs = transformers.MistralForCausalLM(
        transformers.MistralConfig(
            hidden_size=30,
            num_attention_heads=6,
            num_key_value_heads=3,
            head_dim=10,
            sliding_window=5,
            **llama_like(theta=10_000.0),
        )
    )
    ours = our_config(
        d_model=30,
        attention=MultiHead(n_heads=6, n_kv_heads=3, d_head=10, window=5),
        position=RoPE(theta=10_000.0),
        **RMS_AND_SWIGLU,
    )
    return theirs, ours, llama_names(randomised(theirs))


def qwen3() -> Pair:
    theirs = transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(
            hidden_size=29,
            num_attention_heads=6,
            num_key_value_heads=2,
            head_dim=14,
            **llama_like(theta=1e6),
        )
    )
    ours = our_config(
        d_model=29,
        attention=MultiHead(n_heads=6, n_kv_heads=2, d_head=14, qk_norm=RMSNorm(eps=1e-5)),
        position=RoPE(theta=1e6),
        **RMS_AND_SWIGLU,
    )
    w = randomised(theirs)
    names = llama_names(w)
    for i in range(N):
        block, h = f"blocks.{i}.attn", f"model.layers.{i}.self_attn"
        names |= moved(w, {f"{block}.q_norm": f"{h}.q_norm", f"{block}.k_norm": f"{h}.k_norm"})
    return theirs, ours, names


def bloom(n_heads: int) -> Pair:
    d_head = 7
    theirs = transformers.BloomForCausalLM(
        transformers.BloomConfig(
            vocab_size=V,
            hidden_size=n_heads * d_head,
            n_layer=N,
            n_head=n_heads,
            **EAGER,
        )
    )
    ours = our_config(
        d_model=n_heads * d_head,
        attention=MultiHead(n_heads=n_heads, qkv_bias=True, output_bias=True),
        position=ALiBi(),
        embedding_norm=True,
        ffn=GELU(approximate="tanh"),
    )
    w = randomised(theirs)
    names = {"embed.weight": w["transformer.word_embeddings.weight"]}
    names |= moved(w, {"ln_embed": "transformer.word_embeddings_layernorm", "ln_final": "transformer.ln_f"})
    for i in range(N):
        block, h = f"blocks.{i}", f"transformer.h.{i}"
        names |= moved(
            w,
            {
                f"{block}.ln1": f"{h}.input_layernorm",
                f"{block}.ln2": f"{h}.post_attention_layernorm",
                f"{block}.attn.W_O": f"{h}.self_attention.dense",
                f"{block}.mlp.W_in": f"{h}.mlp.dense_h_to_4h",
                f"{block}.mlp.W_out": f"{h}.mlp.dense_4h_to_h",
            },
        )
        for suffix in ("weight", "bias"):  # the rows are q, k and v of one head, then of the next
            fused = w[f"{h}.self_attention.query_key_value.{suffix}"].unflatten(0, (n_heads, 3, d_head))
            names |= {f"{block}.attn.W_{m}.{suffix}": fused[:, j].flatten(0, 1) for j, m in enumerate("QKV")}
    return theirs, ours, names


def our_config(**settings: Any) -> ModelConfig:
    sizes: dict[str, Any] = {"vocab_size": V, "n_layers": N, "max_seq_len": MAX_T}
    return ModelConfig(**(sizes | settings))


EAGER: dict[str, Any] = {"attn_implementation": "eager"}  # the formula in the open, at every size
RMS_AND_SWIGLU = {"norm": RMSNorm(eps=1e-5), "ffn": SwiGLU(d_ff=D_FF), "tie_embeddings": False}


def llama_like(theta: float) -> dict[str, Any]:
    return {
        "vocab_size": V,
        "intermediate_size": D_FF,
        "num_hidden_layers": N,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "max_position_embeddings": MAX_T,
        "tie_word_embeddings": False,
        **EAGER,
    }


def llama_names(w: Weights) -> Weights:
    names = moved(w, {"embed": "model.embed_tokens", "ln_final": "model.norm", "head": "lm_head"})
    for i in range(N):
        block, h = f"blocks.{i}", f"model.layers.{i}"
        names |= moved(
            w,
            {
                f"{block}.ln1": f"{h}.input_layernorm",
                f"{block}.ln2": f"{h}.post_attention_layernorm",
                **{f"{block}.attn.W_{m}": f"{h}.self_attn.{m.lower()}_proj" for m in "QKVO"},
                f"{block}.mlp.W_gate": f"{h}.mlp.gate_proj",
                f"{block}.mlp.W_in": f"{h}.mlp.up_proj",
                f"{block}.mlp.W_out": f"{h}.mlp.down_proj",
            },
        )
    return names


def moved(w: Weights, layers: dict[str, str]) -> Weights:
    """The weights, and biases where there are any, of layers by our names from layers by theirs."""
    return {
        f"{ours}.{suffix}": w[f"{theirs}.{suffix}"]
        for ours, theirs in layers.items()
        for suffix in ("weight", "bias")
        if f"{theirs}.{suffix}" in w
    }


@torch.no_grad()
def randomised(model: torch.nn.Module) -> Weights:
    """All weights, drawn so large that every one of them shows; norms and biases away from 1 and 0."""
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.add_(0.3 * torch.randn_like(parameter))
        else:
            parameter.normal_(0, 0.3)
    return model.state_dict()


ARCHITECTURES: dict[str, tuple[Callable[[], Pair], ModuleType]] = {
    "gpt2": (gpt2, modeling_gpt2),
    "llama": (llama, modeling_llama),
    "mistral": (mistral, modeling_mistral),
    "qwen3": (qwen3, modeling_qwen3),
    "bloom, 4 heads": (partial(bloom, 4), modeling_bloom),
    "bloom, 6 heads": (partial(bloom, 6), modeling_bloom),
}


# --- the tests --------------------------------------------------------------------------------------------


class _TorchOfFloat64:
    """`torch`, but its `float32` is `float64`."""

    float32 = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@pytest.fixture(params=ARCHITECTURES)
def architecture(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=["float32", "float64"])
def models(
    architecture: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> tuple[Decoder, Any, float]:
    """Our model, theirs, and how near their logits must be."""
    make, source = ARCHITECTURES[architecture]
    theirs, config, weights = make()
    ours = Decoder(config)
    ours.load_state_dict(weights)
    if request.param == "float32":
        return ours.eval(), theirs.eval(), 1e-5
    # Norms and softmaxes of transformers are computed in float32 in a model of any type, and Bloom's tanh has
    # eight digits of sqrt(2/pi): enough for training, too little to compare by.
    monkeypatch.setattr(source, "torch", _TorchOfFloat64())
    if source is modeling_bloom:
        monkeypatch.setattr(modeling_bloom, "bloom_gelu_forward", partial(F.gelu, approximate="tanh"))
    return ours.double().eval(), theirs.double().eval(), 1e-10


@torch.no_grad()
def test_logits_are_theirs(models: tuple[Decoder, Any, float]) -> None:
    ours, theirs, tolerance = models
    tokens = torch.randint(V, (B, T))

    expected = theirs(tokens).logits

    torch.testing.assert_close(ours(tokens), expected, rtol=tolerance, atol=tolerance)
    assert expected.std() > 0.3, "logits so small would agree whatever the models do"


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
def test_logits_of_padded_texts_are_theirs(side: str, models: tuple[Decoder, Any, float]) -> None:
    ours, theirs, tolerance = models
    tokens = torch.randint(V, (B, T))
    lengths = torch.tensor([T, T - 1, 7])[:, None]
    places = torch.arange(T)
    real = places >= T - lengths if side == "left" else places < lengths
    positions = (
        {} if isinstance(theirs, transformers.BloomForCausalLM) else {"position_ids": positions_of(real)}
    )

    expected = theirs(tokens, attention_mask=real.long(), **positions).logits

    torch.testing.assert_close(ours(tokens, real)[real], expected[real], rtol=tolerance, atol=tolerance)


@torch.no_grad()
def test_a_shorter_window_shows() -> None:
    """Mistral's text is longer than its window, so a window that did nothing would fail above."""
    theirs, config, weights = mistral()
    unlimited = config.replace(attention=config.attention.replace(window=None))
    ours = Decoder(unlimited)
    ours.load_state_dict(weights)
    tokens = torch.randint(V, (B, T))

    difference = (ours(tokens) - theirs.eval()(tokens).logits).abs().amax((0, 2))

    assert difference[:5].max() < 1e-4 < difference[5:].min()


def positions_of(real: Tensor) -> Tensor:
    return (real.long().cumsum(1) - 1).clamp_min(0)
