"""The model against its formulas, written anew in NumPy with plain loops and float64.

The cases are every kind of every slot, taken from the unions, and every option of them that changes a number; a
new kind joins by being in its union, and fails here until its formula is written.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from clearformer.config import Spec, slot_variants
from clearformer.errors import ConfigError
from clearformer.model import Decoder, ModelConfig
from clearformer.model.attention import Dot, Linear, MultiHead, Shared
from clearformer.model.feedforward import GELU, ReLU, ReLU2, SwiGLU
from clearformer.model.init import Gaussian
from clearformer.model.norms import LayerNorm, RMSNorm
from clearformer.model.positions import RoPE

Array = np.ndarray
Weights = dict[str, Array]

# No two axes have the same size, so that mixed-up ones cannot pass; heads are grouped where a kind has groups.
B, T = 5, 7
SIZES = {"vocab_size": 13, "d_model": 22, "n_layers": 2, "max_seq_len": 11}
SETTINGS = {"n_heads": 6, "n_kv_heads": 3, "d_head": 4, "d_ff": 17}


# --- the formulas -----------------------------------------------------------------------------------------


def decoder_oracle(c: ModelConfig, w: Weights, tokens: Array) -> Array:
    """Logits [T V] of one text."""
    x = w["embed.weight"][tokens] * (math.sqrt(c.d_model) if c.scale_embeddings else 1.0)
    if c.position.kind == "sinusoidal":
        x = x + np.array([[sinusoid(t, i, c.d_model) for i in range(c.d_model)] for t in range(len(x))])
    if c.position.kind == "learned":
        x = x + w["position.weight"][: len(x)]
    if c.embedding_norm:
        x = norm_oracle(c.norm, w, "ln_embed", x)
    for i in range(c.n_layers):
        x = block_oracle(c, w, f"blocks.{i}", x)
    if c.final_norm:
        x = norm_oracle(c.norm, w, "ln_final", x)
    logits = x @ w["embed.weight" if c.tie_embeddings else "head.weight"].T + w.get("head.bias", 0.0)
    return logits if c.logit_soft_cap is None else c.logit_soft_cap * np.tanh(logits / c.logit_soft_cap)


def sinusoid(t: int, i: int, d: int) -> float:
    angle = t / 10_000 ** ((i - i % 2) / d)
    return math.cos(angle) if i % 2 else math.sin(angle)


def block_oracle(c: ModelConfig, w: Weights, name: str, x: Array) -> Array:
    for norm, part in [("ln1", "attn"), ("ln2", "mlp")]:
        if part == "mlp" and c.ffn.kind == "none":
            continue
        read = norm_oracle(c.norm, w, f"{name}.{norm}", x) if c.placement == "pre" else x
        if part == "attn":
            out = attention_oracle(c, w, f"{name}.attn", read)
        else:
            out = feedforward_oracle(c.ffn, w, f"{name}.mlp", read)
        x = x + out if c.residual else out
        if c.placement == "post":
            x = norm_oracle(c.norm, w, f"{name}.{norm}", x)
    return x


def norm_oracle(norm: Any, w: Weights, name: str, x: Array) -> Array:
    if norm.kind == "none":
        return x
    weight, bias = w.get(f"{name}.weight", 1.0), w.get(f"{name}.bias", 0.0)
    if norm.kind == "layernorm":
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + norm.eps) * weight + bias
    if norm.kind == "rmsnorm":
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + norm.eps) * weight
    raise NotImplementedError(norm.kind)


def feedforward_oracle(ffn: Any, w: Weights, name: str, x: Array) -> Array:
    hidden = linear(w, f"{name}.W_in", x)
    if ffn.kind == "relu":
        hidden = np.maximum(hidden, 0)
    elif ffn.kind == "relu2":
        hidden = np.maximum(hidden, 0) ** 2
    elif ffn.kind == "gelu":
        hidden = hidden * np.vectorize(phi_tanh if ffn.approximate == "tanh" else phi)(hidden)
    elif ffn.kind == "swiglu":
        gate = linear(w, f"{name}.W_gate", x)
        hidden = gate / (1 + np.exp(-gate)) * hidden
    else:
        raise NotImplementedError(ffn.kind)
    return linear(w, f"{name}.W_out", hidden)


def phi(x: float) -> float:
    return (1 + math.erf(x / math.sqrt(2))) / 2


def phi_tanh(x: float) -> float:
    return (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def linear(w: Weights, name: str, x: Array) -> Array:
    return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)


def attention_oracle(c: ModelConfig, w: Weights, name: str, x: Array) -> Array:
    spec: Any = c.attention
    if spec.kind == "last":
        return x
    n_heads, n_kv_heads, d_head = 1, 1, c.d_model
    if has_heads(spec):
        n_heads, n_kv_heads = spec.n_heads, spec.n_kv_heads or spec.n_heads
        d_head = spec.d_head or c.d_model // n_heads
    scale = 1 / math.sqrt(d_head) if getattr(spec, "scale", False) else 1.0
    q, k, v = x, x, x
    if spec.kind == "shared":
        q = k = linear(w, f"{name}.W", x)
    if has_heads(spec):
        q, k = linear(w, f"{name}.W_Q", x), linear(w, f"{name}.W_K", x)
        v = linear(w, f"{name}.W_V", x) if spec.value else x
    out = np.zeros((len(x), n_heads * (v.shape[1] // n_kv_heads)))
    for h in range(n_heads):
        shared = h // (n_heads // n_kv_heads)  # the key/value head that this query head reads
        q_h, k_h, v_h = head(q, h, n_heads), head(k, shared, n_kv_heads), head(v, shared, n_kv_heads)
        if has_heads(spec):
            q_h = norm_oracle(spec.qk_norm, w, f"{name}.q_norm", q_h)
            k_h = norm_oracle(spec.qk_norm, w, f"{name}.k_norm", k_h)
        if isinstance(c.position, RoPE):
            q_h, k_h = rope_oracle(c.position, q_h), rope_oracle(c.position, k_h)
        slope = alibi_slope(h, n_heads) if c.position.kind == "alibi" else 0.0
        width = v_h.shape[1]
        for t in range(len(x)):
            first = 0 if getattr(spec, "window", None) is None else max(0, t - spec.window + 1)
            readable = range(first, t + 1)
            weights = [weight(spec, q_h[t], k_h[s], scale, slope * (s - t)) for s in readable]
            mixed = sum(a * v_h[s] for a, s in zip(weights, readable, strict=True)) / sum(weights)
            out[t, h * width : (h + 1) * width] = mixed
    return linear(w, f"{name}.W_O", out) if has_heads(spec) and spec.output else out


def has_heads(spec: Spec) -> bool:
    return "n_heads" in type(spec).model_fields


def head(x: Array, h: int, n_heads: int) -> Array:
    width = x.shape[1] // n_heads
    return x[:, h * width : (h + 1) * width]


def weight(spec: Any, q: Array, k: Array, scale: float, bias: float) -> float:
    """How much a query reads of a key, before the weights are made to sum to 1."""
    if spec.kind == "mean":
        return math.exp(bias)
    if spec.kind in ("dot", "shared", "multihead"):
        return math.exp(q @ k * scale + bias)
    if spec.kind == "linear":
        return float(elu_plus_one(q) @ elu_plus_one(k))
    raise NotImplementedError(spec.kind)


def elu_plus_one(x: Array) -> Array:
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def rope_oracle(rope: RoPE, x: Array) -> Array:
    n = round(x.shape[1] * rope.fraction)
    turned = x.copy()
    for t in range(len(x)):
        for i in range(n // 2):
            angle = t * rope.theta ** (-2 * i / n)
            a, b = x[t, i], x[t, i + n // 2]
            turned[t, i] = a * math.cos(angle) - b * math.sin(angle)
            turned[t, i + n // 2] = a * math.sin(angle) + b * math.cos(angle)
    return turned


def alibi_slope(h: int, n_heads: int) -> float:
    """Six heads: the four slopes of 4 heads, then the first and third of 8 heads' (Press et al. 2022)."""
    slopes = {1: [2.0**-8], 6: [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3]}
    return slopes[n_heads][h]


# --- the cases --------------------------------------------------------------------------------------------


def config(**changes: Any) -> ModelConfig:
    defaults: dict[str, Any] = SIZES | {
        "attention": filled(MultiHead),
        "ffn": filled(GELU),
        "init": Gaussian(),
    }
    return ModelConfig(**(defaults | changes))


def filled(spec_type: type[Spec]) -> Spec:
    """A spec of the given kind, with sizes that tell the axes apart."""
    return spec_type(**{name: value for name, value in SETTINGS.items() if name in spec_type.model_fields})


def every_kind() -> Iterator[tuple[str, ModelConfig]]:
    for slot, field in ModelConfig.model_fields.items():
        for kind, spec_type in slot_variants(field).items():
            yield f"{slot}={kind}", config(**{slot: filled(spec_type)})


def every_position_of_every_attention() -> Iterator[tuple[str, ModelConfig]]:
    fields = ModelConfig.model_fields
    for attention, attention_type in slot_variants(fields["attention"]).items():
        for position, position_type in slot_variants(fields["position"]).items():
            try:
                yield (
                    f"{attention}+{position}",
                    config(attention=filled(attention_type), position=position_type()),
                )
            except ConfigError:  # which pairs are refused is tested in test_model_config.py
                continue


OPTIONS = {
    "window": config(attention=MultiHead(n_heads=6, n_kv_heads=3, d_head=4, window=3)),
    "window+alibi": config(attention=MultiHead(n_heads=6, d_head=4, window=3), position={"kind": "alibi"}),
    "mha": config(attention=MultiHead(n_heads=2)),
    "mqa": config(attention=MultiHead(n_heads=2, n_kv_heads=1)),
    "no value matrix": config(attention=MultiHead(n_heads=2, value=False)),
    "no output matrix": config(attention=MultiHead(n_heads=2, output=False)),
    "the lecture's": config(attention=MultiHead(output=False), ffn=ReLU(), norm={"kind": "none"}),
    "biases": config(attention=MultiHead(n_heads=2, qkv_bias=True, output_bias=True)),
    "qk norm": config(attention=MultiHead(n_heads=2, qk_norm=RMSNorm()), position=RoPE(fraction=0.75)),
    "unscaled": config(attention=MultiHead(n_heads=2, scale=False)),
    "unscaled dot": config(attention=Dot(scale=False)),
    "unscaled shared": config(attention=Shared(scale=False)),
    "linear with biases": config(attention=Linear(n_heads=2, qkv_bias=True, output_bias=True)),
    "rope of another theta": config(
        attention=MultiHead(n_heads=6, d_head=4), position=RoPE(theta=50.0, fraction=0.5)
    ),
    "tanh": config(ffn=GELU(d_ff=17, approximate="tanh")),
    "ffn without biases": config(ffn=ReLU2(d_ff=17, bias=False)),
    "swiglu with biases": config(ffn=SwiGLU(d_ff=17, bias=True)),
    "default widths": config(ffn=SwiGLU()),
    "rmsnorm without weights": config(norm=RMSNorm(learned=False, eps=0.1)),
    "layernorm without biases": config(norm=LayerNorm(bias=False, eps=0.1)),
    "post": config(placement="post"),
    "bare blocks": config(placement="none"),
    "no residuals": config(residual=False),
    "no final norm": config(final_norm=False),
    "embedding norm": config(embedding_norm=True, norm=RMSNorm()),
    "scaled embeddings": config(scale_embeddings=True),
    "untied": config(tie_embeddings=False),
    "head bias": config(tie_embeddings=False, head_bias=True),
    "soft cap": config(logit_soft_cap=2.0),
}
CASES = {**dict(every_kind()), **dict(every_position_of_every_attention()), **OPTIONS}


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_the_formulas(case: str) -> None:
    model = Decoder(CASES[case]).double()
    perturb(model)
    tokens = torch.randint(SIZES["vocab_size"], (B, T))

    logits = model(tokens).detach().numpy()

    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    expected = np.stack([decoder_oracle(CASES[case], weights, row) for row in tokens.numpy()])
    # Tables of positions are float32 in a model of any type, as in other implementations.
    tolerance = 2e-6 if CASES[case].position.kind in ("sinusoidal", "rope") else 1e-11
    np.testing.assert_allclose(logits, expected, atol=tolerance, rtol=tolerance)


@torch.no_grad()
def perturb(model: Decoder) -> None:
    """Move norms and biases away from 1 and 0, where they would hide."""
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.add_(0.3 * torch.randn_like(parameter))
