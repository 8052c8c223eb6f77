"""Llama, Mistral and Qwen3: rotary positions, RMSNorm, gated feed-forward networks, shared key/value heads."""

from typing import Any, ClassVar

from clearformer.interop.architectures.base import (
    GATED_ACTIVATIONS,
    Architecture,
    activation_name,
    d_ff,
    dividing_heads,
    norm_eps,
    setting,
)
from clearformer.interop.architectures.rope import read_rope, write_rope
from clearformer.interop.mapping.fields import Fields
from clearformer.interop.mapping.tensors import Rule
from clearformer.model import ModelConfig
from clearformer.model.attention import MultiHead
from clearformer.model.config import Family
from clearformer.model.norms import NoNorm, Norm, RMSNorm
from clearformer.model.positions import RoPE


class Llama(Architecture):
    """Touvron et al. 2023."""

    title = "Llama"
    model_type = "llama"
    family: ClassVar[Family] = "decoder"
    prefix = "model."
    ignored = (r".*\.rotary_emb\.inv_freq",)
    width, n_layers, n_heads, inner, eps = 4096, 32, 32, 11008, 1e-6  # defaults of absent fields
    n_kv_heads: int | None = None
    d_head: int | None = None
    vocab_size, max_seq_len = 32000, 2048

    def class_name(self, config: ModelConfig) -> str:
        return "LlamaForCausalLM"

    def read(self, fields: Fields, names: frozenset[str] = frozenset()) -> ModelConfig:
        d_model = fields.whole("hidden_size", self.width)
        n_heads = fields.whole("num_attention_heads", self.n_heads)
        norm = RMSNorm(eps=fields.positive("rms_norm_eps", self.eps))
        ffn = fields.choice("hidden_act", "silu", GATED_ACTIVATIONS)
        attention = MultiHead(
            n_heads=n_heads,
            n_kv_heads=fields.whole("num_key_value_heads", self.default_kv_heads(fields) or n_heads),
            d_head=fields.whole("head_dim", self.d_head or d_model // n_heads),
            qkv_bias=self.has_attention_bias(fields),
            output_bias=self.has_attention_bias(fields),
            window=self.window(fields),
            qk_norm=self.qk_norm(norm),
        )
        return ModelConfig(
            vocab_size=fields.whole("vocab_size", self.vocab_size),
            d_model=d_model,
            n_layers=fields.whole("num_hidden_layers", self.n_layers),
            max_seq_len=fields.whole("max_position_embeddings", self.max_seq_len),
            tie_embeddings=fields.flag("tie_word_embeddings", False),
            attention=attention,
            position=read_rope(fields),
            norm=norm,
            ffn=ffn.replace(
                d_ff=fields.whole("intermediate_size", self.inner), bias=self.has_mlp_bias(fields)
            ),
        )

    def default_kv_heads(self, fields: Fields) -> int | None:
        """Return how many there are where the field is absent; where it is null, there is one for each head."""
        return None if "num_key_value_heads" in fields.values else self.n_kv_heads

    def write(self, config: ModelConfig) -> dict[str, Any]:
        own_heads, d_head = config.attention.heads(config.d_model)
        n_heads = self.heads_there(config)
        n_kv_heads = setting(config.attention, "n_kv_heads", None) if n_heads == own_heads else None
        return {
            "attention_dropout": config.dropout,
            "head_dim": d_head,
            "hidden_act": activation_name(config.ffn, GATED_ACTIVATIONS),
            "hidden_size": config.d_model,
            "intermediate_size": d_ff(config),
            "max_position_embeddings": config.max_seq_len,
            "num_attention_heads": n_heads,
            "num_hidden_layers": config.n_layers,
            "num_key_value_heads": n_kv_heads or n_heads,
            "rms_norm_eps": norm_eps(config.norm, self.eps),
            "tie_word_embeddings": config.tie_embeddings,
            "vocab_size": config.vocab_size,
            **write_rope(config.position, RoPE()),
            **self.write_own(config),
        }

    def rules(self, config: ModelConfig) -> list[Rule]:
        layer, block = "model.layers.*", "blocks.*"
        return [
            Rule("embed", "model.embed_tokens", copies=["lm_head"] if config.tie_embeddings else []),
            Rule(f"{block}.ln1", f"{layer}.input_layernorm"),
            *(Rule(f"{block}.attn.W_{m}", f"{layer}.self_attn.{m.lower()}_proj") for m in "QKVO"),
            Rule(f"{block}.attn.q_norm", f"{layer}.self_attn.q_norm"),
            Rule(f"{block}.attn.k_norm", f"{layer}.self_attn.k_norm"),
            Rule(f"{block}.ln2", f"{layer}.post_attention_layernorm"),
            Rule(f"{block}.mlp.W_gate", f"{layer}.mlp.gate_proj"),
            Rule(f"{block}.mlp.W_in", f"{layer}.mlp.up_proj"),
            Rule(f"{block}.mlp.W_out", f"{layer}.mlp.down_proj"),
            Rule("ln_final", "model.norm"),
            Rule("head", "lm_head"),
        ]

    # --- overridden by Mistral and Qwen3 --------------------------------------------------------------------

    def heads_there(self, config: ModelConfig) -> int:
        """Return the nearest number of heads that transformers accepts; a Llama's must divide its width."""
        return dividing_heads(config)

    def has_attention_bias(self, fields: Fields) -> bool:
        """Whether the attention's four matrices have biases."""
        return fields.flag("attention_bias", False)

    def has_mlp_bias(self, fields: Fields) -> bool:
        """Whether the feed-forward network's three matrices have biases."""
        return fields.flag("mlp_bias", False)

    def window(self, fields: Fields) -> int | None:
        """Return the size of the attention's sliding window; None for no window."""
        return None

    def qk_norm(self, norm: RMSNorm) -> Norm:
        """Return the norm on each head's queries and keys."""
        return NoNorm()

    def write_own(self, config: ModelConfig) -> dict[str, Any]:
        """Return the fields of config.json that the architectures do not share."""
        return {"attention_bias": attention_has_bias(config), "mlp_bias": setting(config.ffn, "bias", False)}


class Mistral(Llama):
    """Jiang et al. 2023: Llama without biases and with a sliding window."""

    title = "Mistral"
    model_type = "mistral"
    inner, n_kv_heads, max_seq_len = 14336, 8, 131072

    def class_name(self, config: ModelConfig) -> str:
        return "MistralForCausalLM"

    def heads_there(self, config: ModelConfig) -> int:
        return config.attention.heads(config.d_model)[0]

    def has_attention_bias(self, fields: Fields) -> bool:
        return False

    def has_mlp_bias(self, fields: Fields) -> bool:
        return False

    def window(self, fields: Fields) -> int | None:
        if "sliding_window" not in fields.values:
            return 4096
        return fields.whole("sliding_window") if "sliding_window" in fields else None  # null: no window

    def write_own(self, config: ModelConfig) -> dict[str, Any]:
        return {"sliding_window": setting(config.attention, "window", None)}

    def has_their_cache(self, config: ModelConfig) -> bool:
        return setting(config.attention, "window", None) != 1  # with it, texts are other ones


class Qwen3(Llama):
    """Yang et al. 2025: Llama with a norm on each head's queries and keys."""

    title = "Qwen3"
    model_type = "qwen3"
    inner, n_kv_heads, d_head, vocab_size, max_seq_len = 22016, 32, 128, 151936, 32768

    def class_name(self, config: ModelConfig) -> str:
        return "Qwen3ForCausalLM"

    def heads_there(self, config: ModelConfig) -> int:
        return config.attention.heads(config.d_model)[0]

    def has_mlp_bias(self, fields: Fields) -> bool:
        return False

    def window(self, fields: Fields) -> int | None:
        fields.only("use_sliding_window", False)
        kinds = fields.get("layer_types", [])
        if not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds):
            fields.refuse("layer_types", "clearformer's Qwen3 has full_attention in every layer")
        return None

    def qk_norm(self, norm: RMSNorm) -> Norm:
        return RMSNorm(eps=norm.eps)

    def write_own(self, config: ModelConfig) -> dict[str, Any]:
        return {"attention_bias": attention_has_bias(config)}


def attention_has_bias(config: ModelConfig) -> bool:
    """Whether any of the attention's matrices has a bias; the others then get biases of zero."""
    return setting(config.attention, "qkv_bias", False) or setting(config.attention, "output_bias", False)
