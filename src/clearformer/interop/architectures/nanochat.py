"""NanoChat: norms without weights, squared ReLU, capped logits; RoPE rotates in the opposite direction."""

from typing import Any, ClassVar

from clearformer.interop.architectures.base import (
    ACTIVATIONS,
    Architecture,
    activation_name,
    d_ff,
    norm_eps,
    setting,
)
from clearformer.interop.architectures.llama import attention_has_bias
from clearformer.interop.architectures.rope import read_rope, write_rope
from clearformer.interop.mapping.fields import Fields
from clearformer.interop.mapping.tensors import HalvesExchanged, Rule
from clearformer.model import ModelConfig
from clearformer.model.attention import MultiHead
from clearformer.model.config import Family
from clearformer.model.norms import RMSNorm
from clearformer.model.positions import RoPE

SOFT_CAP = "final_logit_softcapping"


class NanoChat(Architecture):
    """Karpathy 2025. Queries and keys are rotated before their norm; without weights, the order does not matter."""

    title = "NanoChat"
    model_type = "nanochat"
    family: ClassVar[Family] = "decoder"
    prefix = "model."
    ignored = (r".*\.rotary_emb\.inv_freq",)

    def class_name(self, config: ModelConfig) -> str:
        return "NanoChatForCausalLM"

    def read(self, fields: Fields, names: frozenset[str] = frozenset()) -> ModelConfig:
        d_model, n_heads = fields.whole("hidden_size", 768), fields.whole("num_attention_heads", 6)
        norm = RMSNorm(eps=fields.positive("rms_norm_eps", 1e-6), learned=False)
        bias = fields.flag("attention_bias", False)
        ffn = fields.choice("hidden_act", "relu2", ACTIVATIONS)
        return ModelConfig(
            vocab_size=fields.whole("vocab_size", 50304),
            d_model=d_model,
            n_layers=fields.whole("num_hidden_layers", 12),
            max_seq_len=fields.whole("max_position_embeddings", 2048),
            tie_embeddings=fields.flag("tie_word_embeddings", False),
            attention=MultiHead(
                n_heads=n_heads,
                n_kv_heads=fields.whole("num_key_value_heads", n_heads),
                d_head=fields.whole("head_dim", d_model // n_heads),
                qkv_bias=bias,
                output_bias=bias,
                qk_norm=norm,
            ),
            position=read_rope(fields),
            norm=norm,
            ffn=ffn.replace(d_ff=fields.whole("intermediate_size", 8192), bias=False),
            embedding_norm=True,
            logit_soft_cap=_soft_cap(fields),
        )

    def write(self, config: ModelConfig) -> dict[str, Any]:
        n_heads, d_head = config.attention.heads(config.d_model)
        return {
            "attention_bias": attention_has_bias(config),
            "attention_dropout": config.dropout,
            SOFT_CAP: config.logit_soft_cap,
            "head_dim": d_head,
            "hidden_act": activation_name(config.ffn, {"relu2": ACTIVATIONS["relu2"], **ACTIVATIONS}),
            "hidden_size": config.d_model,
            "intermediate_size": d_ff(config),
            "max_position_embeddings": config.max_seq_len,
            "num_attention_heads": n_heads,
            "num_hidden_layers": config.n_layers,
            "num_key_value_heads": setting(config.attention, "n_kv_heads", None) or n_heads,
            "rms_norm_eps": norm_eps(config.norm, 1e-6),
            "tie_word_embeddings": config.tie_embeddings,
            "vocab_size": config.vocab_size,
            **write_rope(config.position, RoPE()),
        }

    def rules(self, config: ModelConfig) -> list[Rule]:
        assert isinstance(config.attention, MultiHead)
        layer, block = "model.layers.*", "blocks.*"
        turned = {"Q": config.attention.n_heads, "K": config.attention.n_key_value_heads}
        return [
            Rule("embed", "model.embed_tokens", copies=["lm_head"] if config.tie_embeddings else []),
            *(
                Rule(f"{block}.attn.W_{m}", f"{layer}.self_attn.{m.lower()}_proj", HalvesExchanged(n))
                for m, n in turned.items()
            ),
            *(Rule(f"{block}.attn.W_{m}", f"{layer}.self_attn.{m.lower()}_proj") for m in "VO"),
            Rule(f"{block}.mlp.W_in", f"{layer}.mlp.fc1"),
            Rule(f"{block}.mlp.W_out", f"{layer}.mlp.fc2"),
            Rule("head", "lm_head"),
        ]


def _soft_cap(fields: Fields) -> float | None:
    if SOFT_CAP not in fields.values:
        return 15.0
    return fields.positive(SOFT_CAP) if SOFT_CAP in fields else None  # null: no cap
