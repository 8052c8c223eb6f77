"""T5: a pre-norm encoder-decoder with learned relative position biases; attention scores are not scaled."""

from collections.abc import Mapping
from typing import Any, ClassVar

from clearformer.errors import shown
from clearformer.interop.architectures.base import Architecture, activation_name, d_ff, norm_eps
from clearformer.interop.mapping.fields import Fields
from clearformer.interop.mapping.tensors import Rule
from clearformer.model import ModelConfig
from clearformer.model.attention import MultiHead
from clearformer.model.config import Family
from clearformer.model.feedforward import GEGLU, GELU, FeedForwardSpec, ReLU, ReLU2, SiLU, SwiGLU
from clearformer.model.norms import RMSNorm
from clearformer.model.relative_positions import Relative

FEED_FORWARD: dict[str, FeedForwardSpec] = {
    "relu": ReLU(),
    "gated-gelu": GEGLU(approximate="tanh"),
    "gated-silu": SwiGLU(),
    "gelu": GELU(),
    "gelu_new": GELU(approximate="tanh"),
    "silu": SiLU(),
    "relu2": ReLU2(),
}


class T5(Architecture):
    """Raffel et al. 2020: ReLU and a tied, scaled head; version 1.1: gated GELU and an untied head.

    Its positions are unlimited; `n_positions` is the length it was trained on.
    """

    title = "T5"
    model_type = "t5"
    family: ClassVar[Family] = "encoder-decoder"
    prefix = "transformer."
    aliases: ClassVar[Mapping[str, str]] = {
        "hidden_size": "d_model",
        "head_dim": "d_kv",
        "num_attention_heads": "num_heads",
        "num_hidden_layers": "num_layers",
    }
    ignored = (r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",)

    def class_name(self, config: ModelConfig) -> str:
        return "T5ForConditionalGeneration"

    def has_their_cache(self, config: ModelConfig) -> bool:
        return config.decoder_layers <= config.n_layers  # it has as many layers as the encoder

    def read(self, fields: Fields, names: frozenset[str] = frozenset()) -> ModelConfig:
        scaled = fields.flag("scale_decoder_outputs", fields.flag("tie_word_embeddings", True))
        tied = scaled or (bool(names) and "lm_head.weight" not in names)
        ffn = fields.choice("feed_forward_proj", "relu", FEED_FORWARD)
        _check_agrees(fields)
        n_layers = fields.whole("num_layers", 6)
        return ModelConfig(
            family="encoder-decoder",
            vocab_size=fields.whole("vocab_size", 32128),
            d_model=fields.whole("d_model", 512),
            n_layers=n_layers,
            n_decoder_layers=fields.whole("num_decoder_layers", n_layers),
            max_seq_len=fields.whole("n_positions", 512),
            dropout=fields.number("dropout_rate", 0.1),
            tie_embeddings=tied,
            scale_logits=scaled,
            attention=MultiHead(
                n_heads=fields.whole("num_heads", 8), d_head=fields.whole("d_kv", 64), scale=False
            ),
            position=Relative(
                n_buckets=fields.whole("relative_attention_num_buckets", 32),
                max_distance=fields.whole("relative_attention_max_distance", 128),
            ),
            norm=RMSNorm(eps=fields.positive("layer_norm_epsilon", 1e-6)),
            ffn=ffn.replace(d_ff=fields.whole("d_ff", 2048), bias=False),
        )

    def write(self, config: ModelConfig) -> dict[str, Any]:
        n_heads, d_head = config.attention.heads(config.d_model)
        relative = config.position if isinstance(config.position, Relative) else Relative()
        return {
            "d_ff": d_ff(config),
            "d_kv": d_head,
            "d_model": config.d_model,
            "dropout_rate": config.dropout,
            "feed_forward_proj": activation_name(config.ffn, FEED_FORWARD),
            "is_encoder_decoder": True,
            "layer_norm_epsilon": norm_eps(config.norm, 1e-6),
            "n_positions": config.max_seq_len,
            "num_decoder_layers": config.decoder_layers,
            "num_heads": n_heads,
            "num_layers": config.n_layers,
            "scale_decoder_outputs": config.tie_embeddings,
            "relative_attention_max_distance": relative.max_distance,
            "relative_attention_num_buckets": relative.n_buckets,
            "tie_word_embeddings": config.tie_embeddings,
            "vocab_size": config.vocab_size,
        }

    def rules(self, config: ModelConfig) -> list[Rule]:
        tied = [
            "encoder.embed_tokens",
            "decoder.embed_tokens",
            *(["lm_head"] if config.tie_embeddings else []),
        ]
        rules = [Rule("embed", "shared", copies=tied), Rule("head", "lm_head")]
        for side in ("encoder", "decoder"):
            layer, block = f"{side}.block.*.layer", f"{side}_blocks.*"
            last = 1 if side == "encoder" else 2
            distances = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias"
            gated = (
                {"W_gate": "wi_0", "W_in": "wi_1"}
                if isinstance(config.ffn, GEGLU | SwiGLU)
                else {"W_in": "wi"}
            )
            rules += [
                Rule(f"{side}_position", distances),
                *_attention(f"{block}.attn", f"{layer}.0.SelfAttention"),
                Rule(f"{block}.ln1", f"{layer}.0.layer_norm"),
                *_attention(f"{block}.cross_attn", f"{layer}.1.EncDecAttention"),
                Rule(f"{block}.ln_cross", f"{layer}.1.layer_norm"),
                *(Rule(f"{block}.mlp.{m}", f"{layer}.{last}.DenseReluDense.{n}") for m, n in gated.items()),
                Rule(f"{block}.mlp.W_out", f"{layer}.{last}.DenseReluDense.wo"),
                Rule(f"{block}.ln2", f"{layer}.{last}.layer_norm"),
                Rule(f"{side}_ln_final", f"{side}.final_layer_norm"),
            ]
        return rules


def _check_agrees(fields: Fields) -> None:
    """Refuse other values of the two fields that repeat `feed_forward_proj`, which transformers then follows."""
    name = fields.get("feed_forward_proj", "relu")
    gated = name.startswith("gated-")
    activation = "gelu_new" if name == "gated-gelu" else name.removeprefix("gated-")
    for repeated, by_name in (("is_gated_act", gated), ("dense_act_fn", activation)):
        value = fields.get(repeated, by_name)
        if value != by_name:
            fields.refuse(
                repeated,
                f"by feed_forward_proj={name} it is {shown(by_name)}; got {shown(value)}; delete it",
            )


def _attention(ours: str, theirs: str) -> list[Rule]:
    return [Rule(f"{ours}.W_{m}", f"{theirs}.{m.lower()}") for m in "QKVO"]
