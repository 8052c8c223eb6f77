"""The names of a model's weights: they stand in people's files, so changing one is breaking."""

import re
from typing import Any

import pytest
import torch

from clearformer.model import ModelConfig, build
from clearformer.model.attention import MultiHead, Shared
from clearformer.model.feedforward import GELU, ReLU, SwiGLU
from clearformer.model.norms import LayerNorm, RMSNorm
from clearformer.model.positions import ALiBi, Learned, RoPE, Sinusoidal
from clearformer.model.relative_positions import Relative

GPT_LIKE = """
embed.weight
position.weight
blocks.0.ln1.weight
blocks.0.ln1.bias
blocks.0.attn.W_Q.weight
blocks.0.attn.W_Q.bias
blocks.0.attn.W_K.weight
blocks.0.attn.W_K.bias
blocks.0.attn.W_V.weight
blocks.0.attn.W_V.bias
blocks.0.attn.W_O.weight
blocks.0.attn.W_O.bias
blocks.0.mlp.W_in.weight
blocks.0.mlp.W_in.bias
blocks.0.mlp.W_out.weight
blocks.0.mlp.W_out.bias
blocks.0.ln2.weight
blocks.0.ln2.bias
ln_final.weight
ln_final.bias
"""

LLAMA_LIKE = """
embed.weight
ln_embed.weight
blocks.0.ln1.weight
blocks.0.attn.W_Q.weight
blocks.0.attn.W_K.weight
blocks.0.attn.W_V.weight
blocks.0.attn.W_O.weight
blocks.0.attn.q_norm.weight
blocks.0.attn.k_norm.weight
blocks.0.mlp.W_gate.weight
blocks.0.mlp.W_in.weight
blocks.0.mlp.W_out.weight
blocks.0.ln2.weight
ln_final.weight
head.weight
head.bias
"""

SHARED = """
embed.weight
blocks.0.attn.W.weight
blocks.0.mlp.W_in.weight
blocks.0.mlp.W_in.bias
blocks.0.mlp.W_out.weight
blocks.0.mlp.W_out.bias
"""


BERT_LIKE = """
embed.weight
token_types.weight
position.weight
ln_embed.weight
ln_embed.bias
blocks.0.attn.W_Q.weight
blocks.0.attn.W_Q.bias
blocks.0.attn.W_K.weight
blocks.0.attn.W_K.bias
blocks.0.attn.W_V.weight
blocks.0.attn.W_V.bias
blocks.0.attn.W_O.weight
blocks.0.attn.W_O.bias
blocks.0.ln1.weight
blocks.0.ln1.bias
blocks.0.mlp.W_in.weight
blocks.0.mlp.W_in.bias
blocks.0.mlp.W_out.weight
blocks.0.mlp.W_out.bias
blocks.0.ln2.weight
blocks.0.ln2.bias
"""

MASKED_HEAD = """
masked_head.dense.weight
masked_head.dense.bias
masked_head.ln.weight
masked_head.ln.bias
head_bias
"""

CLASSIFIER = """
pooler.weight
pooler.bias
classifier.weight
classifier.bias
"""

MARIAN_LIKE = """
embed.weight
head_bias
encoder_blocks.0.attn.W_Q.weight
encoder_blocks.0.attn.W_K.weight
encoder_blocks.0.attn.W_V.weight
encoder_blocks.0.attn.W_O.weight
encoder_blocks.0.ln1.weight
encoder_blocks.0.ln1.bias
encoder_blocks.0.mlp.W_in.weight
encoder_blocks.0.mlp.W_in.bias
encoder_blocks.0.mlp.W_out.weight
encoder_blocks.0.mlp.W_out.bias
encoder_blocks.0.ln2.weight
encoder_blocks.0.ln2.bias
decoder_blocks.0.attn.W_Q.weight
decoder_blocks.0.attn.W_K.weight
decoder_blocks.0.attn.W_V.weight
decoder_blocks.0.attn.W_O.weight
decoder_blocks.0.ln1.weight
decoder_blocks.0.ln1.bias
decoder_blocks.0.cross_attn.W_Q.weight
decoder_blocks.0.cross_attn.W_K.weight
decoder_blocks.0.cross_attn.W_V.weight
decoder_blocks.0.cross_attn.W_O.weight
decoder_blocks.0.ln_cross.weight
decoder_blocks.0.ln_cross.bias
decoder_blocks.0.mlp.W_in.weight
decoder_blocks.0.mlp.W_in.bias
decoder_blocks.0.mlp.W_out.weight
decoder_blocks.0.mlp.W_out.bias
decoder_blocks.0.ln2.weight
decoder_blocks.0.ln2.bias
"""

OUTSIDE_THE_BLOCKS_OF_T5 = """
embed.weight
head.weight
encoder_position.weight
encoder_ln_embed.weight
encoder_ln_final.weight
decoder_position.weight
decoder_ln_embed.weight
decoder_ln_final.weight
"""


def names(config: ModelConfig) -> set[str]:
    with torch.device("meta"):
        return set(build(config).state_dict())


def test_a_gpt() -> None:
    config = ModelConfig(
        vocab_size=13,
        n_layers=1,
        attention=MultiHead(n_heads=2, qkv_bias=True, output_bias=True),
        position=Learned(),
        norm=LayerNorm(),
        ffn=GELU(),
    )
    assert names(config) == set(GPT_LIKE.split())


def test_a_llama_with_every_option() -> None:
    config = ModelConfig(
        vocab_size=13,
        n_layers=1,
        attention=MultiHead(n_heads=2, qk_norm=RMSNorm()),
        position=RoPE(),
        norm=RMSNorm(),
        ffn=SwiGLU(),
        embedding_norm=True,
        tie_embeddings=False,
        head_bias=True,
    )
    assert names(config) == set(LLAMA_LIKE.split())


def test_one_matrix_on_both_sides() -> None:
    config = ModelConfig(
        vocab_size=13, n_layers=1, attention=Shared(), position=Sinusoidal(), placement="none", final_norm=False,
        ffn=ReLU(),
    )  # fmt: skip
    assert names(config) == set(SHARED.split())


def test_tables_of_positions_are_not_saved() -> None:
    """They follow from the configuration, and a longer context would need others."""
    attention = MultiHead(n_heads=2)
    for position in (Sinusoidal(), RoPE(), ALiBi()):
        config = ModelConfig(vocab_size=13, n_layers=1, attention=attention, position=position)
        assert not [name for name in names(config) if name.startswith("position")]


def test_layers_are_numbered_from_zero() -> None:
    three = names(ModelConfig(vocab_size=13, n_layers=3))
    assert {name.split(".")[1] for name in three if name.startswith("blocks")} == {"0", "1", "2"}


@pytest.mark.parametrize(
    ("head", "parts"),
    [
        ({"masked_head": "transform", "head_bias": True}, MASKED_HEAD),
        ({"n_classes": 3}, CLASSIFIER),
        ({"n_classes": 3, "pooling": "mean"}, CLASSIFIER.replace("pooler.weight\npooler.bias", "")),
    ],
)
def test_a_bert(head: dict[str, Any], parts: str) -> None:
    config = ModelConfig(
        family="encoder",
        vocab_size=13,
        n_layers=1,
        attention=MultiHead(n_heads=2, qkv_bias=True, output_bias=True),
        position=Learned(),
        placement="post",
        final_norm=False,
        embedding_norm=True,
        n_token_types=2,
        **head,
    )
    assert names(config) == {*BERT_LIKE.split(), *parts.split()}


def test_a_marian() -> None:
    config = ModelConfig(
        family="encoder-decoder",
        vocab_size=13,
        n_layers=1,
        attention=MultiHead(n_heads=2),
        position=Sinusoidal(interleaved=False),
        ffn=ReLU(),
        placement="post",
        final_norm=False,
        head_bias=True,
    )
    assert names(config) == set(MARIAN_LIKE.split())


def test_a_t5_and_its_two_stacks() -> None:
    config = ModelConfig(
        family="encoder-decoder",
        vocab_size=13,
        n_layers=2,
        n_decoder_layers=3,
        attention=MultiHead(n_heads=2),
        position=Relative(),
        norm=RMSNorm(),
        embedding_norm=True,
        tie_embeddings=False,
    )
    found = names(config)
    in_blocks = re.compile(r"(encoder|decoder)_blocks\.(\d)\.")
    assert {name for name in found if not in_blocks.match(name)} == set(OUTSIDE_THE_BLOCKS_OF_T5.split())
    blocks = {match.groups() for name in found if (match := in_blocks.match(name))}
    assert blocks == {("encoder", "0"), ("encoder", "1"), *(("decoder", str(i)) for i in range(3))}
