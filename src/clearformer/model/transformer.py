"""The models, from the same blocks.

    tokens -> embed (+ positions) -> block 1 ... block N -> final norm -> head -> logits

Shapes: B batch, T positions, D d_model, V vocabulary.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from clearformer.errors import ConfigError, UserError
from clearformer.model.block import Block
from clearformer.model.cache import Cache
from clearformer.model.config import ModelConfig
from clearformer.model.hooks import HookPoint, Look, hook_points, hooked
from clearformer.model.masks import Mask


class Decoder(nn.Module):
    """A causal language model: each position predicts the next token from those before it."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        if config.vocab_size is None:
            raise ConfigError("model.vocab_size is not set; a model needs the number of its tokens")
        self.config = config
        n_heads, d_head = config.attention.heads(config.d_model)
        self.embed = nn.Embedding(config.vocab_size, config.d_model)
        self.position = config.position.build(config.d_model, n_heads, d_head, config.max_seq_len)
        self.ln_embed = config.norm.build(config.d_model) if config.embedding_norm else nn.Identity()
        self.blocks = nn.ModuleList(_block(config) for _ in range(config.n_layers))
        self.ln_final = config.norm.build(config.d_model) if config.final_norm else nn.Identity()
        self.head = (
            None
            if config.tie_embeddings
            else nn.Linear(config.d_model, config.vocab_size, bias=config.head_bias)
        )
        self.hook_embed, self.hook_pos_embed = HookPoint(), HookPoint()
        config.init.apply(self, config.n_layers)

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        padding: Bool[Tensor, "B T"] | None = None,
        cache: Cache | None = None,
        last_only: bool = False,
    ) -> Float[Tensor, "B _ V"]:
        """Scores of every token as the next one, after each position.

        Args:
            tokens: Token ids.
            padding: True where a token is real, False where it fills a shorter row; None: all are real.
            cache: What `new_cache` made; `tokens` then go on from the texts it holds.
            last_only: Whether only the scores after the last position are wanted, [B 1 V].

        Raises:
            UserError: the texts are longer than the model's positions.
        """
        mask = self._mask(tokens, padding, cache)
        x = self._embed(tokens, mask.q_pos)
        for i, block in enumerate(self.blocks):
            x = block(x, mask, self.position, cache.layers[i] if cache else None)
        return self.unembed(self.ln_final(x[:, -1:] if last_only else x))

    def new_cache(self) -> Cache:
        """An empty cache, to be filled by `forward`."""
        return Cache([block.new_cache() for block in self._blocks()])

    def unembed(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]:
        """Logits of vectors of the residual stream (after the final norm)."""
        logits = F.linear(x, self.embed.weight) if self.head is None else self.head(x)
        cap = self.config.logit_soft_cap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def hooked(self, looks: Mapping[str, Look]) -> AbstractContextManager[None]:
        """Let functions look at, or replace, named activations inside a `with` block; see `hooks.hooked`."""
        return hooked(self, looks)

    def run_with_cache(
        self,
        tokens: Int[Tensor, "B T"],
        padding: Bool[Tensor, "B T"] | None = None,
        names: Iterable[str] | Callable[[str], bool] | None = None,
    ) -> tuple[Float[Tensor, "B T V"], dict[str, Tensor]]:
        """Logits, and the activations at the named hook points (all of them, where no names are given).

        Shapes follow TransformerLens: q, k, v and z are [B T H Dh], scores and patterns [B H T S], the rest
        [B T D] (or F in the feed-forward network).
        """
        points = hook_points(self)
        if callable(names):
            names = [name for name in points if names(name)]
        seen: dict[str, Tensor] = {}

        def keep(name: str) -> Look:
            return lambda activation: seen.__setitem__(name, activation)

        with self.hooked({name: keep(name) for name in (points if names is None else names)}):
            logits = self(tokens, padding)
        return logits, seen

    def _blocks(self) -> Iterable[Block]:
        return (block for block in self.blocks if isinstance(block, Block))

    def _embed(self, tokens: Int[Tensor, "B T"], pos: Int[Tensor, "*#B T"]) -> Float[Tensor, "B T D"]:
        x = self.embed(tokens)
        if self.config.scale_embeddings:
            x = x * self.config.d_model**0.5
        x = self.hook_embed(x)
        vectors = self.position.embed(pos)
        if vectors is not None:
            x = x + self.hook_pos_embed(vectors.to(x.dtype).expand_as(x))
        return F.dropout(self.ln_embed(x), self.config.dropout, self.training)

    def _mask(self, tokens: Tensor, padding: Tensor | None, cache: Cache | None) -> Mask:
        n_new = tokens.shape[1]
        n_before = cache.length if cache else 0
        if cache:
            padding = cache.joined_padding(n_new, padding)
        self._refuse_too_long(n_before + n_new, padding)
        if cache:
            cache.extend(n_new, padding)
        if padding is None:
            k_pos = torch.arange(n_before + n_new, device=tokens.device)
        else:
            k_pos = (padding.cumsum(1) - 1).clamp_min(
                0
            )  # padding does not count: a text begins at 0 wherever it stands
        return Mask(q_pos=k_pos[..., n_before:], k_pos=k_pos, causal=True, padding=padding)

    def _refuse_too_long(self, n_positions: int, padding: Tensor | None) -> None:
        limit = self.config.max_seq_len
        if n_positions <= limit:
            return
        longest = n_positions if padding is None else int(padding.sum(1).max())
        if longest > limit:
            raise UserError(
                f"the text is {longest} tokens long and the model reads at most {limit} (model.max_seq_len)"
            )


def _block(config: ModelConfig) -> Block:
    return Block(
        config.d_model,
        config.attention,
        config.ffn,
        config.norm,
        config.placement,
        config.residual,
        config.dropout,
    )


def build(config: ModelConfig) -> Decoder:
    """A model of the given configuration, its weights drawn from torch's global generator."""
    return Decoder(config)
