"""BERT: an encoder with post-norm, learned positions and token types; the masked head has a dense layer."""

from collections.abc import Mapping
from typing import Any, ClassVar

from clearformer.errors import shown
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
from clearformer.interop.mapping.tensors import Rule
from clearformer.model import ModelConfig
from clearformer.model.attention import MultiHead
from clearformer.model.config import Family
from clearformer.model.norms import LayerNorm
from clearformer.model.positions import Learned

MASKED, CLASSIFIER = "BertForMaskedLM", "BertForSequenceClassification"
READ = (MASKED, CLASSIFIER, "BertForPreTraining", "BertModel")


class Bert(Architecture):
    """Devlin et al. 2019: masked language models, and classifiers that read the first token."""

    title = "BERT"
    model_type = "bert"
    family: ClassVar[Family] = "encoder"
    prefix = "bert."
    older_names: ClassVar[Mapping[str, str]] = {
        "LayerNorm.weight": "LayerNorm.gamma",
        "LayerNorm.bias": "LayerNorm.beta",
    }
    # A table of constants, and the heads of the task on pairs of sentences.
    ignored = (
        r"bert\.embeddings\.position_ids",
        r"bert\.pooler\.dense\.(weight|bias)",
        r"cls\.seq_relationship\.(weight|bias)",
    )

    def class_name(self, config: ModelConfig) -> str:
        return MASKED if config.n_classes is None else CLASSIFIER

    def read(self, fields: Fields, names: frozenset[str] = frozenset()) -> ModelConfig:
        named = fields.get("architectures", [])
        # The tensors of other heads, of a classifier of tokens, say, may have the same names.
        if not isinstance(named, list) or any(each not in READ for each in named):
            fields.refuse("architectures", f"clearformer reads {', '.join(READ)}; got {shown(named)}")
        fields.only("is_decoder", False)
        fields.only("add_cross_attention", False)
        fields.only("tie_word_embeddings", True)
        fields.only("position_embedding_type", "absolute")
        d_model = fields.whole("hidden_size", 768)
        n_heads, d_head = head_size(fields, d_model, "num_attention_heads", 12)
        n_classes = _n_classes(fields) if "classifier.weight" in names or _classifies(fields) else None
        ffn = fields.choice("hidden_act", "gelu", ACTIVATIONS)
        if n_classes is None:
            fields.only("hidden_act", "gelu")  # the head uses it too
        return ModelConfig(
            family="encoder",
            vocab_size=fields.whole("vocab_size", 30522),
            d_model=d_model,
            n_layers=fields.whole("num_hidden_layers", 12),
            max_seq_len=fields.whole("max_position_embeddings", 512),
            dropout=fields.number("hidden_dropout_prob", 0.1),
            attention=MultiHead(n_heads=n_heads, d_head=d_head, qkv_bias=True, output_bias=True),
            position=Learned(),
            norm=LayerNorm(eps=fields.positive("layer_norm_eps", 1e-12)),
            ffn=ffn.replace(d_ff=fields.whole("intermediate_size", 3072), bias=True),
            placement="post",
            final_norm=False,
            embedding_norm=True,
            n_token_types=fields.whole("type_vocab_size", 2),
            n_classes=n_classes,
            masked_head="transform" if n_classes is None else "none",
            head_bias=n_classes is None,
        )

    def write(self, config: ModelConfig) -> dict[str, Any]:
        classes = {} if config.n_classes is None else {"num_labels": config.n_classes}
        return {
            "architectures": [self.class_name(config)],
            "attention_probs_dropout_prob": config.dropout,
            "hidden_act": "gelu" if config.n_classes is None else activation_name(config.ffn, ACTIVATIONS),
            "hidden_dropout_prob": config.dropout,
            "hidden_size": config.d_model,
            "intermediate_size": d_ff(config),
            "layer_norm_eps": norm_eps(config.norm, 1e-12),
            "max_position_embeddings": config.max_seq_len,
            "num_attention_heads": dividing_heads(config),
            "num_hidden_layers": config.n_layers,
            "type_vocab_size": max(1, config.n_token_types),
            "vocab_size": config.vocab_size,
            **classes,
        }

    def rules(self, config: ModelConfig) -> list[Rule]:
        embeddings, layer, block = "bert.embeddings", "bert.encoder.layer.*", "blocks.*"
        attention = {"Q": "query", "K": "key", "V": "value"}
        head = "cls.predictions"
        return [
            Rule("embed", f"{embeddings}.word_embeddings", copies=[f"{head}.decoder"]),
            Rule("position", f"{embeddings}.position_embeddings"),
            Rule("token_types", f"{embeddings}.token_type_embeddings"),
            Rule("ln_embed", f"{embeddings}.LayerNorm"),
            *(Rule(f"{block}.attn.W_{m}", f"{layer}.attention.self.{name}") for m, name in attention.items()),
            Rule(f"{block}.attn.W_O", f"{layer}.attention.output.dense"),
            Rule(f"{block}.ln1", f"{layer}.attention.output.LayerNorm"),
            Rule(f"{block}.mlp.W_in", f"{layer}.intermediate.dense"),
            Rule(f"{block}.mlp.W_out", f"{layer}.output.dense"),
            Rule(f"{block}.ln2", f"{layer}.output.LayerNorm"),
            Rule("masked_head.dense", f"{head}.transform.dense"),
            Rule("masked_head.ln", f"{head}.transform.LayerNorm"),
            Rule("head_bias", f"{head}.bias", copies=[f"{head}.decoder.bias"]),
            Rule("pooler", "bert.pooler.dense"),
            Rule("classifier", "classifier"),
        ]


def _classifies(fields: Fields) -> bool:
    return fields.get("architectures", []) == [CLASSIFIER]


def _n_classes(fields: Fields) -> int:
    """Return the number of classes: of their names, or else `num_labels`; transformers' default is two."""
    fields.only("problem_type", "single_label_classification")
    names = fields.get("id2label")
    n_classes = len(names) if isinstance(names, dict) and names else fields.whole("num_labels", 2)
    if n_classes < 2:
        fields.refuse("num_labels", "a clearformer classifier has at least two classes; got 1")
    return n_classes
