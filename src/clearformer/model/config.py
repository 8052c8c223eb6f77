"""A model's configuration: its sizes and one spec per slot."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from clearformer.config import Spec
from clearformer.errors import ConfigError
from clearformer.model.attention import Dot, Last, Mean, MultiHead, Shared
from clearformer.model.feedforward import GELU, FeedForwardSpec, NoFeedForward
from clearformer.model.init import GPT2, Init
from clearformer.model.linear_attention import Linear
from clearformer.model.norms import LayerNorm, Norm
from clearformer.model.positions import ALiBi, Learned, NoPositions, RoPE, Sinusoidal
from clearformer.model.relative_positions import Relative

Family = Literal["decoder", "encoder", "encoder-decoder"]
Placement = Literal["pre", "post", "none"]
Attention = Annotated[Last | Mean | Dot | Shared | MultiHead | Linear, Field(discriminator="kind")]
Position = Annotated[
    NoPositions | Sinusoidal | Learned | RoPE | ALiBi | Relative, Field(discriminator="kind")
]

OF_ONE_FAMILY: dict[str, Family] = {
    "n_decoder_layers": "encoder-decoder",
    "n_token_types": "encoder",
    "masked_head": "encoder",
    "n_classes": "encoder",
    "pooling": "encoder",
}


class ModelConfig(Spec):
    """A Transformer's sizes and slots.

    Attributes:
        family: The arrangement of the blocks; see `model/transformer.py`.
        vocab_size: V. In a run it is taken from the tokenizer and need not be given.
        d_model: D, the width of the residual stream.
        n_layers: Number of blocks; in an encoder-decoder, of the encoder's.
        n_decoder_layers: Number of blocks of an encoder-decoder's decoder; by default as many as the encoder has.
        max_seq_len: The longest sequence, in tokens, that the model reads.
        dropout: The fraction of the embeddings, attention weights (not linear attention's, which are never formed) and
            sub-layer outputs set to 0 in training; of a classifier, of its pooled vector too.
        tie_embeddings: Whether the head (LM head, unembedding) is the embedding matrix itself.
        attention: The kind of attention and its settings; see `model/attention.py`.
        position: How the model learns the order of tokens; see `model/positions.py`.
        norm: The kind of norm; see `model/norms.py`.
        ffn: The feed-forward network; see `model/feedforward.py`.
        init: How the weights are drawn; see `model/init.py`.
        placement: Where a block's norms are; `none` leaves the final one, and that of the embeddings if it is set.
        final_norm: Whether there is a norm between the last block and the head.
        embedding_norm: Whether there is a norm after the embeddings (as in BLOOM and BERT), of the kind `norm`.
        scale_embeddings: Whether token embeddings are multiplied by sqrt(D) (Vaswani et al. 2017, 3.4;
            lecture 002, section 4.1).
        residual: Whether a sub-layer's output is added to the residual stream or replaces it.
        parallel: Whether attention and feed-forward both read the block's input (GPT-NeoX).
        head_bias: Whether the head has a bias. This and the next two are of the tokens' logits, which a classifier,
            whatever run its settings come from, has not.
        scale_logits: Whether logits are divided by sqrt(D) (T5, where embeddings are tied).
        logit_soft_cap: Logits are cap * tanh(logits / cap), so none is larger than the cap (Gemma 2).
        n_token_types: The number of an encoder's token types (BERT's segments); 0: none.
        masked_head: The layer between an encoder and its logits: none, or BERT's norm(gelu(W x)).
        n_classes: C, the classes of an encoder that classifies. In a run it is taken from the labels.
        pooling: The vector that an encoder classifies: tanh(W x) of the first token, or the mean of all.
    """

    family: Family = "decoder"
    vocab_size: PositiveInt | None = None
    d_model: PositiveInt = 128
    n_layers: PositiveInt = 4
    n_decoder_layers: PositiveInt | None = None
    max_seq_len: PositiveInt = 128
    dropout: float = Field(default=0.0, ge=0, lt=1)
    tie_embeddings: bool = True
    attention: Attention = MultiHead(n_heads=4)
    position: Position = Learned()
    norm: Norm = LayerNorm()
    ffn: FeedForwardSpec = GELU()
    init: Init = GPT2()
    placement: Placement = "pre"
    final_norm: bool = True
    embedding_norm: bool = False
    scale_embeddings: bool = False
    residual: bool = True
    parallel: bool = False
    head_bias: bool = False
    scale_logits: bool = False
    logit_soft_cap: PositiveFloat | None = None
    n_token_types: NonNegativeInt = 0
    masked_head: Literal["none", "transform"] = "none"
    n_classes: PositiveInt | None = None
    pooling: Literal["first", "mean"] = "first"

    @property
    def decoder_layers(self) -> int:
        """The number of blocks of an encoder-decoder's decoder."""
        return self.n_decoder_layers or self.n_layers

    @property
    def n_stacks(self) -> int:
        """The number of stacks, each of which reads its own sequence."""
        return 2 if self.family == "encoder-decoder" else 1

    @model_validator(mode="after")
    def _parts_fit(self) -> "ModelConfig":
        _, d_head = self.attention.heads(self.d_model)
        self._check_order_has_an_effect()
        self._check_settings_have_an_effect()
        self.position.check_heads(d_head)
        for key, family in OF_ONE_FAMILY.items():
            if self.family != family and getattr(self, key) != type(self).model_fields[key].default:
                raise ConfigError(
                    f"model.{key}: only an {family} has this setting; model.family is {self.family}"
                )
        if self.family == "encoder-decoder" and not self.attention.reads_another_text:
            raise ConfigError(
                f"model.attention.kind: {self.attention.kind} attention cannot read another text, which an "
                f"encoder-decoder needs; choose multihead"
            )
        return self

    def _check_order_has_an_effect(self) -> None:
        attention, position = self.attention, self.position
        for acts, taken, action in (
            (position.rotates, attention.takes_rotation, "rotates queries and keys"),
            (position.adds_bias, attention.takes_bias, "adds to attention scores"),
        ):
            if acts and not taken:
                raise ConfigError(
                    f"model.position.kind: {position.kind} {action}, but {attention.kind} attention has none; "
                    f"use sinusoidal or learned"
                )

    def _check_settings_have_an_effect(self) -> None:
        if self.init.zero_outputs and not self.residual:
            raise ConfigError(
                "model.init.zero_outputs: without residuals the blocks would put out 0 for ever, and learn nothing; "
                "set model.init.zero_outputs=false or model.residual=true"
            )
        if self.parallel and not self.residual and not isinstance(self.ffn, NoFeedForward):
            raise ConfigError(
                "model.parallel: without residuals the network's output replaces that of attention, which it does not "
                "read; set model.parallel=false or model.residual=true"
            )
