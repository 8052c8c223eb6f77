"""The models: three arrangements of the same stack of blocks.

    Decoder         tokens -> stack, causal -> head                      the next token (GPT)
    Encoder         tokens -> stack -> head                              masked tokens, or a class (BERT)
    EncoderDecoder  source -> stack -> memory                            the next token, given a source
                    tokens -> stack, causal, that reads memory -> head

    stack           embed -> + positions -> norm -> dropout -> block after block -> norm

Shapes: B batch, T positions, S positions of the source, D d_model, V vocabulary, C classes.
"""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from clearformer.errors import ConfigError, UserError
from clearformer.hooks import HookedModule, HookPoint
from clearformer.model import fast
from clearformer.model.arguments import (
    check_device,
    check_ids,
    check_length,
    check_padding,
    check_same_rows,
    check_token_types,
    check_tokens,
)
from clearformer.model.block import Block, EncoderOutput
from clearformer.model.cache import Cache
from clearformer.model.config import ModelConfig
from clearformer.model.fast import dropout
from clearformer.model.masks import Mask
from clearformer.model.norms import NoNorm
from clearformer.model.positions import Positions, Sizes, build_positions
from clearformer.model.shapes import LastVectors, Logits, Padding, Source, SourcePadding, Tokens, Vectors


class Stack(NamedTuple):
    """The parts of one stack, each an attribute of the model, and the forward pass through them."""

    position: Positions
    ln_embed: nn.Module
    blocks: nn.ModuleList
    ln_final: nn.Module
    hook_embed: HookPoint
    hook_pos_embed: HookPoint | None

    def run(
        self,
        x: Vectors,
        mask: Mask,
        p_dropout: float = 0.0,
        cache: Cache | None = None,
        memory: EncoderOutput | None = None,
        last_only: bool = False,
    ) -> LastVectors:
        """Return the residual stream after the final norm; `x` holds the tokens' vectors."""
        x = self.hook_embed(x)
        vectors = self.position.embed(mask.q_pos)
        if vectors is not None:
            vectors = vectors.to(x.dtype).expand_as(x)
            x = x + (vectors if self.hook_pos_embed is None else self.hook_pos_embed(vectors))
        x = dropout(self.ln_embed(x), p_dropout)
        for i, block in enumerate(self.blocks):
            x = block(x, mask, self.position, cache.layers[i] if cache else None, memory)
        return self.ln_final(x[:, -1:] if last_only else x)

    def new_cache(self) -> Cache:
        """Return an empty cache for these blocks."""
        return Cache([block.new_cache() for block in self.blocks if isinstance(block, Block)])


class Transformer(HookedModule, ABC):
    """Base of the three models: embeddings, stacks, head and hook points.

    Their methods share these arguments:
        tokens: Token ids; for an encoder-decoder, the target's so far, from <bos> on.
        source: Token ids that an encoder-decoder's encoder reads.
        padding: True where a token is real, False where it pads a shorter row; None: all are real.
        cache: The result of `new_cache`; `tokens` then continue the sequences that it holds.
        last_only: Whether to return the vectors of the last position alone, [B 1 D].

    They raise UserError for sequences longer than `max_seq_len`, for anything but a tensor [B T] of token ids, for ids
    outside the vocabulary (not on a GPU), for a padding that is no such tensor of bools, and for a source or a cache of
    another number of rows.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        if config.vocab_size is None:
            raise ConfigError("model.vocab_size is not set; a model needs the size of its vocabulary")
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.d_model)
        self.head: fast.Linear | None = None
        self.head_bias: nn.Parameter | None = None
        self.token_types: nn.Embedding | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Logits:
        """Return the logits of `hidden`, whose arguments it takes."""
        return self.unembed(self.hidden(*args, **kwargs))

    @abstractmethod
    def hidden(self, *args: Any, **kwargs: Any) -> LastVectors:
        """Return the vectors that `forward` unembeds."""

    def unembed(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]:
        """Return the logits of vectors of the residual stream (after the final norm)."""
        logits, cap = self.uncapped_logits(x), self.config.logit_soft_cap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def uncapped_logits(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]:
        """Return the logits before the soft cap, if the model has one."""
        if self.config.scale_logits:
            x = x * self.config.d_model**-0.5
        return fast.linear(x, self.embed.weight, self.head_bias) if self.head is None else self.head(x)

    # --- parts ----------------------------------------------------------------------------------------------

    def add_stack(self, prefix: str, n_layers: int, causal: bool, cross: bool = False) -> None:
        """Create a stack's parts as attributes named after `prefix`: `encoder_blocks`, `hook_encoder_embed`."""
        config, d = self.config, self.config.d_model
        sizes = Sizes(d, *config.attention.heads(d), config.max_seq_len, causal)
        self.add_module(f"{prefix}position", build_positions(config.position, sizes))
        if config.n_token_types:
            self.token_types = nn.Embedding(config.n_token_types, d)
        norm = config.norm if config.embedding_norm else NoNorm()
        self.add_module(f"{prefix}ln_embed", norm.build(d))
        self.add_module(f"{prefix}blocks", nn.ModuleList(Block(config, cross) for _ in range(n_layers)))
        norm = config.norm if config.final_norm else NoNorm()
        self.add_module(f"{prefix}ln_final", norm.build(d))
        setattr(self, f"hook_{prefix}embed", HookPoint())
        setattr(self, f"hook_{prefix}pos_embed", HookPoint() if config.position.embeds else None)

    def stack(self, prefix: str = "") -> Stack:
        """Return the stack whose parts `add_stack` created under this prefix."""
        return Stack(
            position=getattr(self, f"{prefix}position"),
            ln_embed=getattr(self, f"{prefix}ln_embed"),
            blocks=getattr(self, f"{prefix}blocks"),
            ln_final=getattr(self, f"{prefix}ln_final"),
            hook_embed=getattr(self, f"hook_{prefix}embed"),
            hook_pos_embed=getattr(self, f"hook_{prefix}pos_embed"),
        )

    def add_head(self) -> None:
        """Create the matrix from the residual stream to the logits; with tied embeddings, only its bias, if any."""
        config = self.config
        if not config.tie_embeddings:
            self.head = fast.Linear(config.d_model, self.embed.num_embeddings, bias=config.head_bias)
        elif config.head_bias:
            self.head_bias = nn.Parameter(torch.zeros(self.embed.num_embeddings))

    @property
    def p_dropout(self) -> float:
        """The probability of dropout; 0 outside training."""
        return self.config.dropout if self.training else 0.0

    # --- reading a sequence ---------------------------------------------------------------------------------

    def read(
        self,
        tokens: Tokens,
        padding: Padding,
        causal: bool,
        prefix: str = "",
        cache: Cache | None = None,
        memory: EncoderOutput | None = None,
        last_only: bool = False,
        token_types: Tokens | None = None,
    ) -> LastVectors:
        """Return the vectors of `tokens` after one of the stacks, which may also read an encoder's `memory`."""
        check_tokens(tokens)
        check_token_types(token_types, tokens)
        check_same_rows(tokens, memory)
        x = self.token_vectors(tokens, token_types)
        if cache:
            cache.check(len(tokens))
        mask = self.mask(tokens, padding, causal, cache)
        if cache:
            cache.begin(len(tokens))
        x = self.stack(prefix).run(x, mask, self.p_dropout, cache, memory, last_only)
        if cache:
            cache.extend(tokens.shape[1], mask.padding)
        return x

    def mask(self, tokens: Tokens, padding: Padding, causal: bool, cache: Cache | None = None) -> Mask:
        """Return the mask of `tokens` after those in the cache; raises UserError where they are too many."""
        check_padding(padding, tokens)
        n_new, n_before = tokens.shape[1], cache.length if cache else 0
        whole = cache.joined_padding(n_new, padding) if cache else padding
        check_length(n_before + n_new, whole, self.config.max_seq_len)
        return Mask.of(tokens, causal, whole, n_before)

    def token_vectors(self, tokens: Tokens, token_types: Tokens | None = None) -> Vectors:
        """Return the tokens' embeddings, plus those of their token types where the model has any.

        Raises:
            UserError: the tokens are on another device than the model, or an id has no vector. On a GPU the latter ends
                in an error of CUDA instead: to look first, each step would have to wait for the device.
        """
        check_device(tokens, self.embed.weight)
        try:
            x = self.embed(tokens)
            if self.config.scale_embeddings:
                x = x * self.config.d_model**0.5
            if self.token_types is not None:
                x = x + self.token_types(torch.zeros_like(tokens) if token_types is None else token_types)
        except IndexError:
            check_ids(tokens, self.embed.num_embeddings, "token id")
            if token_types is not None:
                check_ids(token_types, self.config.n_token_types, "token type")
            raise
        return x


class Decoder(Transformer):
    """A causal language model: each position predicts the next token from those before it."""

    blocks: nn.ModuleList

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.add_stack("", config.n_layers, causal=True)
        self.add_head()

    def hidden(
        self, tokens: Tokens, padding: Padding = None, cache: Cache | None = None, last_only: bool = False
    ) -> LastVectors:
        """Return the vector of each position, from which `forward` predicts the next token; see `Transformer`."""
        return self.read(tokens, padding, causal=True, cache=cache, last_only=last_only)

    def new_cache(self) -> Cache:
        """Return an empty cache, which `forward` fills."""
        return self.stack().new_cache()


class Encoder(Transformer):
    """A model that reads a sequence in both directions, to fill in masked tokens or to classify it.

    `token_types` gives each token's segment (as in BERT); None: all are in the first.
    """

    blocks: nn.ModuleList

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.add_stack("", config.n_layers, causal=False)
        if config.n_classes is None:
            self.masked_head = MaskedHead(config) if config.masked_head == "transform" else nn.Identity()
            self.add_head()
        else:
            self.pooler = fast.Linear(config.d_model, config.d_model) if config.pooling == "first" else None
            self.classifier = fast.Linear(config.d_model, config.n_classes)
            self.hook_pooled = HookPoint()

    def forward(
        self, tokens: Tokens, padding: Padding = None, token_types: Tokens | None = None
    ) -> Float[Tensor, "B *_"]:
        """Return the logits of every position [B T V] or, if the model has classes, of each class [B C]."""
        if self.config.n_classes is None:
            return super().forward(tokens, padding, token_types)
        pooled = self.hook_pooled(self.pool(self.encode(tokens, padding, token_types), padding))
        return self.classifier(dropout(pooled, self.p_dropout))

    def hidden(self, tokens: Tokens, padding: Padding = None, token_types: Tokens | None = None) -> Vectors:
        """Return the vectors that `forward` unembeds."""
        return self.masked_head(self.encode(tokens, padding, token_types))

    def encode(self, tokens: Tokens, padding: Padding = None, token_types: Tokens | None = None) -> Vectors:
        """Return one vector per token, computed from the whole sequence (lecture 003); see `Transformer`."""
        if token_types is not None and self.token_types is None:
            raise UserError("this model has no token types (model.n_token_types=0); omit token_types")
        return self.read(tokens, padding, causal=False, token_types=token_types)

    def pool(self, x: Vectors, padding: Padding = None) -> Float[Tensor, "B D"]:
        """Return one vector per row: tanh(W x_first) (Devlin et al. 2019), or the mean over its real tokens."""
        real = torch.ones_like(x[..., 0], dtype=torch.bool) if padding is None else padding
        if self.pooler is None:
            weights = real.to(x.dtype).unsqueeze(-1)
            return (x * weights).sum(1) / weights.sum(1).clamp_min(1)
        first = real.int().argmax(1)  # rows may be padded on the left
        return torch.tanh(self.pooler(x[torch.arange(len(x), device=x.device), first]))


class MaskedHead(nn.Module):
    """norm(f(W x + b)), between an encoder and the logits (Devlin et al. 2019)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = fast.Linear(config.d_model, config.d_model)
        self.ln = config.norm.build(config.d_model)

    def forward(self, x: Vectors) -> Vectors:
        return self.ln(F.gelu(self.dense(x)))


class EncoderDecoder(Transformer):
    """A model that reads one text and writes another (Vaswani et al. 2017; lecture 002, lecture 003).

    Each position of the written text predicts the next token from those before it and from the whole source.
    """

    encoder_blocks: nn.ModuleList
    decoder_blocks: nn.ModuleList

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.add_stack("encoder_", config.n_layers, causal=False)
        self.add_stack("decoder_", config.decoder_layers, causal=True, cross=True)
        self.add_head()

    def hidden(
        self,
        source: Source,
        tokens: Tokens | None = None,
        source_padding: SourcePadding = None,
        padding: Padding = None,
    ) -> Vectors:
        """Return the vector of each of `tokens`, from which `forward` predicts the next; see `Transformer`."""
        if tokens is None:
            raise UserError("an encoder-decoder reads two texts: call model(source, tokens)")
        memory = self.encode(source, source_padding)
        return self.read(tokens, padding, True, "decoder_", memory=memory)

    def encode(self, source: Source, source_padding: SourcePadding = None) -> EncoderOutput:
        """Return the encoder's output, which the decoder reads."""
        check_tokens(source, "source")
        check_padding(source_padding, source, "source_padding")
        vectors = self.read(source, source_padding, causal=False, prefix="encoder_")
        return EncoderOutput(vectors, source_padding)

    def decode(
        self,
        tokens: Tokens,
        memory: EncoderOutput,
        padding: Padding = None,
        cache: Cache | None = None,
        last_only: bool = False,
    ) -> Logits:
        """Return the logits of the next token after each one, or after the last one only.

        A cache keeps the keys and values of the `memory` it was first used with: another source needs another cache.
        """
        return self.unembed(self.read(tokens, padding, True, "decoder_", cache, memory, last_only))

    def new_cache(self) -> Cache:
        """Return an empty cache, which `decode` fills."""
        return self.stack("decoder_").new_cache()
