"""BART, Marian and Pegasus: encoder-decoders with one vocabulary, which differ in positions and norms."""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from clearformer.interop.architectures.base import (
    ACTIVATIONS,
    Architecture,
    activation_name,
    d_ff,
    dividing_heads,
    head_size,
    setting,
)
from clearformer.interop.mapping.fields import Fields
from clearformer.interop.mapping.tensors import AsRow, Below, Rule
from clearformer.model import ModelConfig
from clearformer.model.attention import MultiHead
from clearformer.model.config import Family, Position
from clearformer.model.norms import LayerNorm
from clearformer.model.positions import Learned, Sinusoidal, sinusoidal_table

SIDES = ("encoder", "decoder")


class _FairseqLike(Architecture):
    """The common base of Marian, Pegasus and BART."""

    family: ClassVar[Family] = "encoder-decoder"
    prefix = "model."
    aliases: ClassVar[Mapping[str, str]] = {
        "hidden_size": "d_model",
        "num_attention_heads": "encoder_attention_heads",
        "num_hidden_layers": "encoder_layers",
    }
    embedding_norm: ClassVar[bool] = False
    pre_norm: ClassVar[bool] = False
    position: ClassVar[Position]
    width, n_layers, n_heads, inner = 1024, 12, 16, 4096  # defaults of absent fields
    vocab_size: ClassVar[int]

    def read(self, fields: Fields, names: frozenset[str] = frozenset()) -> ModelConfig:
        fields.same("encoder_attention_heads", "decoder_attention_heads", self.n_heads)
        fields.same("encoder_ffn_dim", "decoder_ffn_dim", self.inner)
        fields.only("tie_word_embeddings", True)
        fields.only("share_encoder_decoder_embeddings", True)
        fields.only("normalize_before", self.pre_norm)
        fields.only("add_final_layer_norm", self.pre_norm)
        fields.only("normalize_embedding", self.embedding_norm)
        d_model = fields.whole("d_model", self.width)
        n_heads, d_head = head_size(fields, d_model, "encoder_attention_heads", self.n_heads)
        ffn = fields.choice("activation_function", "gelu", ACTIVATIONS)
        return ModelConfig(
            family="encoder-decoder",
            vocab_size=fields.whole("vocab_size", self.vocab_size),
            d_model=d_model,
            n_layers=fields.whole("encoder_layers", self.n_layers),
            n_decoder_layers=fields.whole("decoder_layers", self.n_layers),
            max_seq_len=fields.whole("max_position_embeddings", 1024),
            dropout=fields.number("dropout", 0.1),
            attention=MultiHead(n_heads=n_heads, d_head=d_head, qkv_bias=True, output_bias=True),
            position=self.position,
            norm=LayerNorm(eps=1e-5),
            ffn=ffn.replace(
                d_ff=fields.whole("encoder_ffn_dim", self.inner),
                bias=True,
                dropout=fields.number("activation_dropout", 0.0),
            ),
            placement="pre" if self.pre_norm else "post",
            final_norm=self.pre_norm,
            embedding_norm=self.embedding_norm,
            scale_embeddings=fields.flag("scale_embedding", False),
            head_bias=True,
        )

    def write(self, config: ModelConfig) -> dict[str, Any]:
        both = {"attention_heads": dividing_heads(config), "ffn_dim": d_ff(config)}
        return {
            "activation_dropout": setting(config.ffn, "dropout", 0.0),
            "activation_function": activation_name(config.ffn, ACTIVATIONS),
            "attention_dropout": config.dropout,
            "d_model": config.d_model,
            "decoder_layers": config.decoder_layers,
            "dropout": config.dropout,
            "encoder_layers": config.n_layers,
            "forced_eos_token_id": None,
            "is_encoder_decoder": True,
            "max_position_embeddings": config.max_seq_len,
            "scale_embedding": config.scale_embeddings,
            "vocab_size": config.vocab_size,
            **{f"{side}_{name}": value for side in SIDES for name, value in both.items()},
        }

    def tables(self, config: ModelConfig) -> dict[str, Tensor]:
        if not isinstance(config.position, Sinusoidal):
            return {}
        table = sinusoidal_table(config.d_model, config.max_seq_len, interleaved=False)
        return {f"model.{side}.embed_positions.weight": table.clone() for side in SIDES}

    def rules(self, config: ModelConfig) -> list[Rule]:
        tied = [*(f"model.{side}.embed_tokens" for side in SIDES), "lm_head"]
        rules = [
            Rule("embed", "model.shared", copies=tied),
            Rule("head_bias", "final_logits_bias", AsRow(), optional=True),
        ]
        for side in SIDES:
            layer, block = f"model.{side}.layers.*", f"{side}_blocks.*"
            rules += [
                Rule(f"{side}_position", f"model.{side}.embed_positions", Below(2)),
                Rule(f"{side}_ln_embed", f"model.{side}.layernorm_embedding"),
                *_attention(f"{block}.attn", f"{layer}.self_attn"),
                Rule(f"{block}.ln1", f"{layer}.self_attn_layer_norm"),
                *_attention(f"{block}.cross_attn", f"{layer}.encoder_attn"),
                Rule(f"{block}.ln_cross", f"{layer}.encoder_attn_layer_norm"),
                Rule(f"{block}.mlp.W_in", f"{layer}.fc1"),
                Rule(f"{block}.mlp.W_out", f"{layer}.fc2"),
                Rule(f"{block}.ln2", f"{layer}.final_layer_norm"),
                Rule(f"{side}_ln_final", f"model.{side}.layer_norm"),
            ]
        return rules


class Bart(_FairseqLike):
    """Lewis et al. 2020. Its positions are learned, and the first one is in the third row of the table."""

    title = "BART"
    model_type = "bart"
    embedding_norm = True
    vocab_size = 50265
    position = Learned()

    def class_name(self, config: ModelConfig) -> str:
        return "BartForConditionalGeneration"


class Marian(_FairseqLike):
    """Junczys-Dowmunt et al. 2018: as Vaswani et al. 2017, with all sines before all cosines."""

    title = "Marian"
    model_type = "marian"
    vocab_size = 58101
    position = Sinusoidal(interleaved=False)
    ignored = (r"model\.(encoder|decoder)\.embed_positions\.weight",)  # a table of constants

    def class_name(self, config: ModelConfig) -> str:
        return "MarianMTModel"

    def read(self, fields: Fields, names: frozenset[str] = frozenset()) -> ModelConfig:
        fields.same("vocab_size", "decoder_vocab_size")
        return super().read(fields, names)

    def write(self, config: ModelConfig) -> dict[str, Any]:
        return super().write(config) | {
            "decoder_vocab_size": config.vocab_size,
            "share_encoder_decoder_embeddings": True,
        }


class Pegasus(_FairseqLike):
    """Zhang et al. 2020: as Marian, but with norms before the sub-layers and after the last block."""

    title = "Pegasus"
    model_type = "pegasus"
    pre_norm = True
    vocab_size = 50265
    position = Sinusoidal(interleaved=False)
    ignored = Marian.ignored

    def class_name(self, config: ModelConfig) -> str:
        return "PegasusForConditionalGeneration"

    def constants(self, config: ModelConfig) -> dict[str, Tensor]:
        return self.tables(config)


def _attention(ours: str, theirs: str) -> list[Rule]:
    names = {"Q": "q_proj", "K": "k_proj", "V": "v_proj", "O": "out_proj"}
    return [Rule(f"{ours}.W_{m}", f"{theirs}.{name}") for m, name in names.items()]
