"""GPT-2: learned positions, pre-norm, GELU by tanh; matrices are stored as [in out]."""

from collections.abc import Mapping
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
from clearformer.interop.mapping.fields import Fields
from clearformer.interop.mapping.tensors import Conv1D, Rule
from clearformer.model import ModelConfig
from clearformer.model.attention import MultiHead
from clearformer.model.config import Family
from clearformer.model.norms import LayerNorm
from clearformer.model.positions import Learned


class GPT2(Architecture):
    """Radford et al. 2019."""

    title = "GPT-2"
    model_type = "gpt2"
    family: ClassVar[Family] = "decoder"
    prefix = "transformer."
    aliases: ClassVar[Mapping[str, str]] = {
        "hidden_size": "n_embd",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    }
    ignored = (r".*\.attn\.(masked_)?bias",)  # the causal mask, which older files hold

    def class_name(self, config: ModelConfig) -> str:
        return "GPT2LMHeadModel"

    def read(self, fields: Fields, names: frozenset[str] = frozenset()) -> ModelConfig:
        fields.only("scale_attn_weights", True)
        fields.only("scale_attn_by_inverse_layer_idx", False)
        fields.only("add_cross_attention", False)
        d_model = fields.whole("n_embd", 768)
        n_heads, d_head = head_size(fields, d_model, "n_head", 12)
        ffn = fields.choice("activation_function", "gelu_new", ACTIVATIONS)
        return ModelConfig(
            vocab_size=fields.whole("vocab_size", 50257),
            d_model=d_model,
            n_layers=fields.whole("n_layer", 12),
            max_seq_len=fields.whole("n_positions", 1024),
            dropout=fields.number("resid_pdrop", 0.1),
            tie_embeddings=fields.flag("tie_word_embeddings", True),
            attention=MultiHead(n_heads=n_heads, d_head=d_head, qkv_bias=True, output_bias=True),
            position=Learned(),
            norm=LayerNorm(eps=fields.positive("layer_norm_epsilon", 1e-5)),
            ffn=ffn.replace(d_ff=fields.whole("n_inner", 4 * d_model), bias=True),
        )

    def write(self, config: ModelConfig) -> dict[str, Any]:
        return {
            "activation_function": activation_name(config.ffn, ACTIVATIONS),
            "attn_pdrop": config.dropout,
            "embd_pdrop": config.dropout,
            "layer_norm_epsilon": norm_eps(config.norm, 1e-5),
            "n_embd": config.d_model,
            "n_head": dividing_heads(config),
            "n_inner": d_ff(config),
            "n_layer": config.n_layers,
            "n_positions": config.max_seq_len,
            "resid_pdrop": config.dropout,
            "tie_word_embeddings": config.tie_embeddings,
            "vocab_size": config.vocab_size,
        }

    def rules(self, config: ModelConfig) -> list[Rule]:
        layer, block = "transformer.h.*", "blocks.*"
        return [
            Rule("embed", "transformer.wte", copies=["lm_head"] if config.tie_embeddings else []),
            Rule("position", "transformer.wpe"),
            Rule(f"{block}.ln1", f"{layer}.ln_1"),
            Rule([f"{block}.attn.W_{m}" for m in "QKV"], f"{layer}.attn.c_attn", Conv1D(3)),
            Rule(f"{block}.attn.W_O", f"{layer}.attn.c_proj", Conv1D()),
            Rule(f"{block}.ln2", f"{layer}.ln_2"),
            Rule(f"{block}.mlp.W_in", f"{layer}.mlp.c_fc", Conv1D()),
            Rule(f"{block}.mlp.W_out", f"{layer}.mlp.c_proj", Conv1D()),
            Rule("ln_final", "transformer.ln_f"),
            Rule("head", "lm_head"),
        ]
