"""The names of a model's weights: they stand in people's files, so changing one is breaking."""

import torch

from clearformer.model import Decoder, ModelConfig
from clearformer.model.attention import MultiHead, Shared
from clearformer.model.feedforward import GELU, ReLU, SwiGLU
from clearformer.model.norms import LayerNorm, RMSNorm
from clearformer.model.positions import ALiBi, Learned, RoPE, Sinusoidal

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


def names(config: ModelConfig) -> set[str]:
    with torch.device("meta"):
        return set(Decoder(config).state_dict())


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
