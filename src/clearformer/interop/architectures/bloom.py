"""Bloom: ALiBi, a norm after the embeddings, and one matrix for queries, keys and values."""

from collections.abc import Mapping
from typing import Any, ClassVar

from clearformer.interop.architectures.base import Architecture, dividing_heads, head_size, norm_eps
from clearformer.interop.mapping.fields import Fields
from clearformer.interop.mapping.tensors import ByHead, Rule
from clearformer.model import ModelConfig
from clearformer.model.attention import MultiHead
from clearformer.model.config import Family
from clearformer.model.feedforward import GELU
from clearformer.model.norms import LayerNorm
from clearformer.model.positions import ALiBi


class Bloom(Architecture):
    """Le Scao et al. 2022. Its positions are unlimited; `seq_length` is the length it was trained on."""

    title = "Bloom"
    model_type = "bloom"
    family: ClassVar[Family] = "decoder"
    prefix = "transformer."
    aliases: ClassVar[Mapping[str, str]] = {
        "n_embed": "hidden_size",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    }

    def class_name(self, config: ModelConfig) -> str:
        return "BloomForCausalLM"

    def read(self, fields: Fields, names: frozenset[str] = frozenset()) -> ModelConfig:
        fields.only("apply_residual_connection_post_layernorm", False)
        d_model = fields.whole("hidden_size", 64)
        n_heads, d_head = head_size(fields, d_model, "n_head", 8)
        return ModelConfig(
            vocab_size=fields.whole("vocab_size", 250880),
            d_model=d_model,
            n_layers=fields.whole("n_layer", 2),
            max_seq_len=fields.whole("seq_length", 2048),
            dropout=fields.number("hidden_dropout", 0.0),
            tie_embeddings=fields.flag("tie_word_embeddings", True),
            attention=MultiHead(n_heads=n_heads, d_head=d_head, qkv_bias=True, output_bias=True),
            position=ALiBi(),
            norm=LayerNorm(eps=fields.positive("layer_norm_epsilon", 1e-5)),
            embedding_norm=True,
            ffn=GELU(d_ff=4 * d_model, approximate="tanh"),
        )

    def write(self, config: ModelConfig) -> dict[str, Any]:
        return {
            "attention_dropout": config.dropout,
            "hidden_dropout": config.dropout,
            "hidden_size": config.d_model,
            "layer_norm_epsilon": norm_eps(config.norm, 1e-5),
            "n_head": dividing_heads(config),
            "n_layer": config.n_layers,
            "seq_length": config.max_seq_len,
            "tie_word_embeddings": config.tie_embeddings,
            "vocab_size": config.vocab_size,
        }

    def rules(self, config: ModelConfig) -> list[Rule]:
        n_heads, _ = config.attention.heads(config.d_model)
        layer, block = "transformer.h.*", "blocks.*"
        qkv = [f"{block}.attn.W_{m}" for m in "QKV"]
        return [
            Rule("embed", "transformer.word_embeddings", copies=["lm_head"] if config.tie_embeddings else []),
            Rule("ln_embed", "transformer.word_embeddings_layernorm"),
            Rule(f"{block}.ln1", f"{layer}.input_layernorm"),
            Rule(qkv, f"{layer}.self_attention.query_key_value", ByHead(n_heads)),
            Rule(f"{block}.attn.W_O", f"{layer}.self_attention.dense"),
            Rule(f"{block}.ln2", f"{layer}.post_attention_layernorm"),
            Rule(f"{block}.mlp.W_in", f"{layer}.mlp.dense_h_to_4h"),
            Rule(f"{block}.mlp.W_out", f"{layer}.mlp.dense_4h_to_h"),
            Rule("ln_final", "transformer.ln_f"),
            Rule("head", "lm_head"),
        ]
