"""What a model is made of: its sizes, and one spec for each slot."""

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from clearformer.config import Spec
from clearformer.errors import ConfigError
from clearformer.model.attention import AttentionSpec, MultiHead
from clearformer.model.block import Placement
from clearformer.model.feedforward import GELU, FeedForwardSpec
from clearformer.model.init import GPT2, Init
from clearformer.model.norms import LayerNorm, Norm
from clearformer.model.positions import ALiBi, Learned, Position, RoPE


class ModelConfig(Spec):
    """A Transformer's sizes and slots.

    Attributes:
        vocab_size: V. In a run it is the tokeniser's, and need not be given.
        d_model: D, the width of the residual stream.
        max_seq_len: The longest text, in tokens, that the model reads at once.
        dropout: The part of the embeddings, attention weights and sub-layer outputs set to 0 in training.
        tie_embeddings: Whether the head is the embedding matrix itself.
        placement: Where the norms of a block stand; `none` leaves only the final one.
        final_norm: Whether a norm stands between the last block and the head.
        embedding_norm: Whether a norm stands after the embeddings (as in BLOOM and BERT).
        scale_embeddings: Whether token embeddings are multiplied by sqrt(D) (Vaswani et al. 2017, 3.4).
        residual: Whether a block adds to what it reads, or replaces it.
        head_bias: Whether an untied head has a bias.
        logit_soft_cap: Logits are cap * tanh(logits / cap), so none is larger than the cap (Gemma 2).
    """

    family: Literal["decoder"] = "decoder"
    vocab_size: PositiveInt | None = None
    d_model: PositiveInt = 128
    n_layers: PositiveInt = 4
    max_seq_len: PositiveInt = 128
    dropout: float = Field(default=0.0, ge=0, lt=1)
    tie_embeddings: bool = True
    attention: AttentionSpec = MultiHead(n_heads=4)
    position: Position = Learned()
    norm: Norm = LayerNorm()
    ffn: FeedForwardSpec = GELU()
    init: Init = GPT2()
    placement: Placement = "pre"
    final_norm: bool = True
    embedding_norm: bool = False
    scale_embeddings: bool = False
    residual: bool = True
    head_bias: bool = False
    logit_soft_cap: PositiveFloat | None = None

    @model_validator(mode="after")
    def _parts_fit(self) -> "ModelConfig":
        _, d_head = self.attention.heads(self.d_model)
        self._order_has_an_effect(d_head)
        if self.tie_embeddings and self.head_bias:
            raise ConfigError(
                "model.head_bias: a tied head has no bias; set model.tie_embeddings=false as well"
            )
        return self

    def _order_has_an_effect(self, d_head: int) -> None:
        attention, position = self.attention, self.position
        if isinstance(position, RoPE):
            if not attention.takes_rotation:
                raise ConfigError(
                    f"model.position.kind: rope turns queries and keys, and {attention.kind} attention has none; "
                    f"use sinusoidal or learned"
                )
            n_rotated = position.rotated_dims(d_head)
            if n_rotated < 2 or n_rotated % 2:
                raise ConfigError(
                    f"model.position.fraction: rope turns pairs of dimensions, and {position.fraction:g} of heads of "
                    f"{d_head} is {n_rotated}; choose a fraction or heads that give an even number"
                )
        if isinstance(position, ALiBi) and not attention.takes_bias:
            raise ConfigError(
                f"model.position.kind: alibi adds to attention scores, and {attention.kind} attention has none; "
                f"use sinusoidal or learned"
            )
