"""The model against its formulas, written anew in NumPy with plain loops and float64.

The cases are every kind of every slot, taken from the unions, and every option of them that changes a number; a
new kind joins by being in its union, and fails here until its formula is written.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from clearformer.config import Spec, slot_variants
from clearformer.errors import ConfigError
from clearformer.model import ModelConfig, Transformer, build
from clearformer.model.attention import Dot, MultiHead, Shared
from clearformer.model.feedforward import GEGLU, GELU, ReLU, ReLU2, SwiGLU
from clearformer.model.init import Gaussian
from clearformer.model.linear_attention import Linear
from clearformer.model.norms import LayerNorm, RMSNorm
from clearformer.model.positions import RoPE, Sinusoidal
from clearformer.model.relative_positions import Relative

Array = np.ndarray
Weights = dict[str, Array]

# No two axes have the same size, so that mixed-up ones cannot pass; heads are grouped where a kind has groups.
B, T = 3, 7
SIZES = {"vocab_size": 13, "d_model": 22, "n_layers": 2, "max_seq_len": 11}
SETTINGS = {"n_heads": 6, "n_kv_heads": 3, "d_head": 4, "d_ff": 17}


# --- the formulas -----------------------------------------------------------------------------------------


def decoder_oracle(c: ModelConfig, w: Weights, tokens: Array) -> Array:
    """Logits [T V] of one text."""
    return logits_oracle(c, w, stack_oracle(c, w, "", tokens, causal=True))


def encoder_oracle(c: ModelConfig, w: Weights, tokens: Array, types: Array) -> Array:
    """Logits [T V] of one text, or the scores [C] of its classes."""
    x = stack_oracle(c, w, "", tokens, causal=False, types=types)
    if c.n_classes is not None:
        pooled = x.mean(0) if c.pooling == "mean" else np.tanh(linear(w, "pooler", x[0]))
        return linear(w, "classifier", pooled)
    if c.masked_head == "transform":
        hidden = linear(w, "masked_head.dense", x)
        x = norm_oracle(c.norm, w, "masked_head.ln", hidden * np.vectorize(phi)(hidden))
    return logits_oracle(c, w, x)


def pair_oracle(c: ModelConfig, w: Weights, source: Array, tokens: Array) -> Array:
    """Logits [T V] of one text, given another."""
    memory = stack_oracle(c, w, "encoder_", source, causal=False)
    return logits_oracle(c, w, stack_oracle(c, w, "decoder_", tokens, causal=True, memory=memory))


def logits_oracle(c: ModelConfig, w: Weights, x: Array) -> Array:
    matrix = w["embed.weight" if c.tie_embeddings else "head.weight"]
    bias = w.get("head_bias" if c.tie_embeddings else "head.bias", 0.0)
    logits = x @ matrix.T / (math.sqrt(c.d_model) if c.scale_logits else 1.0) + bias
    return logits if c.logit_soft_cap is None else c.logit_soft_cap * np.tanh(logits / c.logit_soft_cap)


def stack_oracle(
    c: ModelConfig,
    w: Weights,
    stack: str,
    tokens: Array,
    causal: bool,
    memory: Array | None = None,
    types: Array | None = None,
) -> Array:
    """From tokens to what the head, or another stack, reads; `stack` is what its weights' names begin with."""
    x = w["embed.weight"][tokens] * (math.sqrt(c.d_model) if c.scale_embeddings else 1.0)
    if types is not None and c.n_token_types:
        x = x + w["token_types.weight"][types]
    if isinstance(c.position, Sinusoidal):
        dims = range(c.d_model)
        x = x + np.array([[sinusoid(c.position, t, i, c.d_model) for i in dims] for t in range(len(x))])
    if c.position.kind == "learned":
        x = x + w[f"{stack}position.weight"][: len(x)]
    if c.embedding_norm:
        x = norm_oracle(c.norm, w, f"{stack}ln_embed", x)
    text = Reading(c, causal, w.get(f"{stack}position.weight"))
    blocks = {name.split(".")[1] for name in w if name.startswith(f"{stack}blocks.")}
    for i in range(len(blocks)):
        x = block_oracle(c, w, f"{stack}blocks.{i}", x, text, memory)
    return norm_oracle(c.norm, w, f"{stack}ln_final", x) if c.final_norm else x


def sinusoid(spec: Sinusoidal, t: int, i: int, d: int) -> float:
    n_sines = (d + 1) // 2
    pair, is_cosine = (i // 2, i % 2) if spec.interleaved else (i % n_sines, i >= n_sines)
    angle = t / 10_000 ** (2 * pair / d)
    return math.cos(angle) if is_cosine else math.sin(angle)


def block_oracle(
    c: ModelConfig, w: Weights, name: str, x: Array, text: "Reading", memory: Array | None
) -> Array:
    before = x
    for norm, part in [("ln1", "attn"), ("ln_cross", "cross_attn"), ("ln2", "mlp")]:
        if (part == "mlp" and c.ffn.kind == "none") or (part == "cross_attn" and memory is None):
            continue
        read = before if part == "mlp" and c.parallel else x
        read = norm_oracle(c.norm, w, f"{name}.{norm}", read) if c.placement == "pre" else read
        if part == "attn":
            out = attention_oracle(c, w, f"{name}.attn", read, read, text)
        elif part == "cross_attn" and memory is not None:
            out = attention_oracle(c, w, f"{name}.cross_attn", read, memory, EVERYTHING)
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
    elif ffn.kind == "silu":
        hidden = hidden / (1 + np.exp(-hidden))
    elif ffn.kind == "swiglu":
        gate = linear(w, f"{name}.W_gate", x)
        hidden = gate / (1 + np.exp(-gate)) * hidden
    elif ffn.kind == "geglu":
        gate = linear(w, f"{name}.W_gate", x)
        hidden = gate * np.vectorize(phi_tanh if ffn.approximate == "tanh" else phi)(gate) * hidden
    else:
        raise NotImplementedError(ffn.kind)
    return linear(w, f"{name}.W_out", hidden)


def phi(x: float) -> float:
    return (1 + math.erf(x / math.sqrt(2))) / 2


def phi_tanh(x: float) -> float:
    return (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def linear(w: Weights, name: str, x: Array) -> Array:
    return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)


class Reading:
    """Who reads whom in a text that reads itself, from where, and with what added to the scores."""

    def __init__(self, c: ModelConfig, causal: bool, table: Array | None) -> None:
        self.c, self.causal, self.table = c, causal, table

    def keys(self, t: int, n: int) -> list[int]:
        window = getattr(self.c.attention, "window", None) or n
        return [s for s in range(n) if abs(t - s) < window and (s <= t or not self.causal)]

    def turned(self, x: Array) -> Array:
        return rope_oracle(self.c.position, x) if isinstance(self.c.position, RoPE) else x

    def bias(self, h: int, n_heads: int, t: int, s: int) -> float:
        if self.c.position.kind == "alibi":
            return -alibi_slope(h, n_heads) * abs(t - s)
        if isinstance(self.c.position, Relative):
            assert self.table is not None
            return self.table[relative_bucket(self.c.position, t - s, self.causal), h]
        return 0.0


class Everything(Reading):
    """Every key is read, in no order."""

    def __init__(self) -> None:
        pass

    def keys(self, t: int, n: int) -> list[int]:
        return list(range(n))

    def turned(self, x: Array) -> Array:
        return x

    def bias(self, h: int, n_heads: int, t: int, s: int) -> float:
        return 0.0


EVERYTHING = Everything()


def relative_bucket(spec: Relative, distance: int, causal: bool) -> int:
    """Which bucket a distance falls in, by the distances at which buckets begin (Raffel et al. 2020)."""
    n = spec.n_buckets if causal else spec.n_buckets // 2
    near = n // 2
    begins = [*range(near), *(near * (spec.max_distance / near) ** (i / (n - near)) for i in range(n - near))]
    size = max(0, distance) if causal else abs(distance)
    bucket = max(i for i, begin in enumerate(begins) if begin <= size)
    return bucket + n if distance < 0 and not causal else bucket


def attention_oracle(c: ModelConfig, w: Weights, name: str, x: Array, read: Array, text: Reading) -> Array:
    spec: Any = c.attention
    if spec.kind == "last":
        return x
    n_heads, n_kv_heads, d_head = 1, 1, c.d_model
    if has_heads(spec):
        n_heads, n_kv_heads = spec.n_heads, spec.n_kv_heads or spec.n_heads
        d_head = spec.d_head or c.d_model // n_heads
    scale = 1 / math.sqrt(d_head) if getattr(spec, "scale", False) else 1.0
    q, k, v = x, read, read
    if spec.kind == "shared":
        q, k = linear(w, f"{name}.W", x), linear(w, f"{name}.W", read)
    if has_heads(spec):
        q, k = linear(w, f"{name}.W_Q", x), linear(w, f"{name}.W_K", read)
        v = linear(w, f"{name}.W_V", read) if spec.value else read
    out = np.zeros((len(x), n_heads * (v.shape[1] // n_kv_heads)))
    for h in range(n_heads):
        shared = h // (n_heads // n_kv_heads)  # the key/value head that this query head reads
        q_h, k_h, v_h = head(q, h, n_heads), head(k, shared, n_kv_heads), head(v, shared, n_kv_heads)
        if has_heads(spec):
            q_h = norm_oracle(spec.qk_norm, w, f"{name}.q_norm", q_h)
            k_h = norm_oracle(spec.qk_norm, w, f"{name}.k_norm", k_h)
        q_h, k_h = text.turned(q_h), text.turned(k_h)
        width = v_h.shape[1]
        for t in range(len(x)):
            keys = text.keys(t, len(read))
            weights = [weight(spec, q_h[t], k_h[s], scale, text.bias(h, n_heads, t, s)) for s in keys]
            mixed = sum(a * v_h[s] for a, s in zip(weights, keys, strict=True)) / sum(weights)
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
    "tied head with a bias": config(head_bias=True, scale_logits=True),
    "scaled logits": config(tie_embeddings=False, head_bias=True, scale_logits=True),
    "sines first": config(position=Sinusoidal(interleaved=False)),
    "geglu by erf": config(ffn=GEGLU(d_ff=17, bias=True, approximate="none")),
    "few buckets": config(position=Relative(n_buckets=8, max_distance=6)),
    "parallel": config(parallel=True),
    "parallel post": config(parallel=True, placement="post"),
}
CASES = {**dict(every_kind()), **dict(every_position_of_every_attention()), **OPTIONS}


ENCODERS = {
    "token types": config(family="encoder", n_token_types=3, scale_embeddings=True),
    "bert's head": config(family="encoder", masked_head="transform", head_bias=True, norm=RMSNorm()),
    "classes of the first": config(family="encoder", n_classes=3),
    "classes of the mean": config(family="encoder", n_classes=3, pooling="mean"),
}
PAIRS = {
    "higher decoder": config(family="encoder-decoder", n_layers=1, n_decoder_layers=2, embedding_norm=True),
    "few buckets in both": config(
        family="encoder-decoder",
        attention=MultiHead(n_heads=2),
        position=Relative(n_buckets=4, max_distance=3),
    ),
}
OF_BOTH = (
    "attention=",
    "position=",
    *(f"{kind}+" for kind in slot_variants(ModelConfig.model_fields["attention"])),
)
"""Whoever reads whom depends on these; the other kinds and options are tried in an encoder and in a pair in turn."""
for turn, (name, case) in enumerate(CASES.items()):
    if name.startswith(OF_BOTH) or turn % 2:
        ENCODERS[name] = case.replace(family="encoder", n_layers=1)
    if (name.startswith(OF_BOTH) or not turn % 2) and case.attention.kind != "last":  # it reads no other text
        PAIRS.setdefault(name, case.replace(family="encoder-decoder", n_layers=1))


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_the_formulas(case: str) -> None:
    tokens = texts(B, T)
    assert_is_its_formula(CASES[case], decoder_oracle, tokens)


@pytest.mark.parametrize("case", ENCODERS)
def test_an_encoder_s_scores_are_those_of_the_formulas(case: str) -> None:
    types = torch.randint(max(1, ENCODERS[case].n_token_types), (2, T))
    assert_is_its_formula(ENCODERS[case], encoder_oracle, texts(2, T), types)


@pytest.mark.parametrize("case", PAIRS)
def test_a_pair_s_logits_are_those_of_the_formulas(case: str) -> None:
    assert_is_its_formula(PAIRS[case], pair_oracle, texts(2, 5), texts(2, T))


def texts(n_rows: int, n_tokens: int) -> Tensor:
    return torch.randint(SIZES["vocab_size"], (n_rows, n_tokens))


@torch.no_grad()
def assert_is_its_formula(c: ModelConfig, oracle: Callable[..., Array], *inputs: Tensor) -> None:
    model = build(c).double()
    perturb(model)

    if c.family == "encoder":
        tokens, types = inputs
        scores = model(tokens, token_types=types if c.n_token_types else None)
    else:
        scores = model(*inputs)

    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    rows = zip(*(tensor.numpy() for tensor in inputs), strict=True)
    expected = np.stack([oracle(c, weights, *row) for row in rows])
    # Tables of positions are float32 in a model of any type, as in other implementations.
    tolerance = 2e-6 if c.position.kind in ("sinusoidal", "rope") else 1e-11
    np.testing.assert_allclose(scores.numpy(), expected, atol=tolerance, rtol=tolerance)


@torch.no_grad()
def perturb(model: Transformer) -> None:
    """Move all that begins at 1 or 0 away from there, where it would hide."""
    for parameter in model.parameters():
        if parameter.dim() == 1 or not parameter.any():
            parameter.add_(0.3 * torch.randn_like(parameter))
