"""GPT-NeoX and Pythia: parallel sub-layers, partly rotated heads, one matrix for queries, keys and values."""

from typing import Any, ClassVar

from clearformer.interop.architectures.base import (
    ACTIVATIONS,
    Architecture,
    activation_name,
    d_ff,
    dividing_heads,
    head_size,
    norm_eps,
)
from clearformer.interop.architectures.llama import attention_has_bias
from clearformer.interop.architectures.rope import read_rope, write_rope
from clearformer.interop.mapping.fields import Fields
from clearformer.interop.mapping.tensors import ByHead, Rule
from clearformer.model import ModelConfig
from clearformer.model.attention import MultiHead
from clearformer.model.config import Family
from clearformer.model.norms import LayerNorm
from clearformer.model.positions import RoPE


class GPTNeoX(Architecture):
    """Black et al. 2022; Pythia: Biderman et al. 2023."""

    title = "GPT-NeoX"
    model_type = "gpt_neox"
    family: ClassVar[Family] = "decoder"
    prefix = "gpt_neox."
    ignored = (r".*\.attention\.(masked_)?bias", r".*\.rotary_emb\.inv_freq")

    def class_name(self, config: ModelConfig) -> str:
        return "GPTNeoXForCausalLM"

    def read(self, fields: Fields, names: frozenset[str] = frozenset()) -> ModelConfig:
        d_model = fields.whole("hidden_size", 6144)
        n_heads, d_head = head_size(fields, d_model, "num_attention_heads", 64)
        bias = fields.flag("attention_bias", True)
        ffn = fields.choice("hidden_act", "gelu", ACTIVATIONS)
        return ModelConfig(
            vocab_size=fields.whole("vocab_size", 50432),
            d_model=d_model,
            n_layers=fields.whole("num_hidden_layers", 44),
            max_seq_len=fields.whole("max_position_embeddings", 2048),
            dropout=fields.number("hidden_dropout", 0.0),
            tie_embeddings=fields.flag("tie_word_embeddings", False),
            attention=MultiHead(n_heads=n_heads, d_head=d_head, qkv_bias=bias, output_bias=bias),
            position=read_rope(fields, "rotary_emb_base", "rotary_pct", 0.25),
            norm=LayerNorm(eps=fields.positive("layer_norm_eps", 1e-5)),
            ffn=ffn.replace(d_ff=fields.whole("intermediate_size", 24576), bias=True),
            parallel=fields.flag("use_parallel_residual", True),
        )

    def write(self, config: ModelConfig) -> dict[str, Any]:
        fraction = config.position.fraction if isinstance(config.position, RoPE) else 0.25
        rope = write_rope(config.position, RoPE())
        rope["rope_parameters"]["partial_rotary_factor"] = fraction
        return {
            "attention_bias": attention_has_bias(config),
            "attention_dropout": config.dropout,
            "hidden_act": activation_name(config.ffn, ACTIVATIONS),
            "hidden_dropout": config.dropout,
            "hidden_size": config.d_model,
            "intermediate_size": d_ff(config),
            "layer_norm_eps": norm_eps(config.norm, 1e-5),
            "max_position_embeddings": config.max_seq_len,
            "num_attention_heads": dividing_heads(config),
            "num_hidden_layers": config.n_layers,
            "rope_parameters": rope["rope_parameters"],
            "rotary_emb_base": rope["rope_theta"],
            "rotary_pct": fraction,
            "tie_word_embeddings": config.tie_embeddings,
            "use_parallel_residual": config.parallel,
            "vocab_size": config.vocab_size,
        }

    def rules(self, config: ModelConfig) -> list[Rule]:
        n_heads, _ = config.attention.heads(config.d_model)
        layer, block = "gpt_neox.layers.*", "blocks.*"
        qkv = [f"{block}.attn.W_{m}" for m in "QKV"]
        return [
            Rule("embed", "gpt_neox.embed_in", copies=["embed_out"] if config.tie_embeddings else []),
            Rule(f"{block}.ln1", f"{layer}.input_layernorm"),
            Rule(qkv, f"{layer}.attention.query_key_value", ByHead(n_heads)),
            Rule(f"{block}.attn.W_O", f"{layer}.attention.dense"),
            Rule(f"{block}.ln2", f"{layer}.post_attention_layernorm"),
            Rule(f"{block}.mlp.W_in", f"{layer}.mlp.dense_h_to_4h"),
            Rule(f"{block}.mlp.W_out", f"{layer}.mlp.dense_4h_to_h"),
            Rule("ln_final", "gpt_neox.final_layer_norm"),
            Rule("head", "embed_out"),
        ]
