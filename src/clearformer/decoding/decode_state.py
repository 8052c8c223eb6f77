"""The state of decoding: sequences are read whole once, and then one token at a time.

    prefill -> decode -> decode -> ...

An encoder-decoder's sequences here are its targets; the sources are encoded once, beforehand.

Shapes: B sequences, T positions, S positions of a source, V vocabulary.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Generic, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clearformer.decoding.fast.compiling import (
    LEAST_ROOM,
    LogitsFunction,
    ResultT,
    Step,
    compiled_step,
    packed_weights,
    read_each,
    read_tokens,
)
from clearformer.errors import UserError
from clearformer.hooks import has_any_hooks, is_any_open
from clearformer.model import Cache, Decoder, EncoderDecoder, EncoderOutput
from clearformer.model.fast import PackedWeights

PADDING_TOKEN = 0  # any token: padding is masked

GenerativeModel = Decoder | EncoderDecoder
"""A model that generates text token by token."""


class Prefill(NamedTuple):
    """The result of reading a batch of sequences.

    Attributes:
        logits: The logits of the token after each sequence [B V].
        cache: The keys and values of the whole sequences; decoding on from here writes to it.
    """

    logits: Float[Tensor, "B V"]
    cache: Cache


class DecodeState(Generic[ResultT]):
    """The cache of a batch of sequences, each of which grows by a token per call.

    `prefill` and `decode` apply `logits_function`, which is compiled with the model, to the next tokens' logits. If the
    sequences were read before (`known`), the first call of `advance` uses that result.
    """

    def __init__(
        self,
        model: GenerativeModel,
        logits_function: LogitsFunction[ResultT],
        sources: Sequence[Sequence[int]] | None = None,
        use_cache: bool = True,
        compiled: bool = False,
        known: Prefill | None = None,
    ) -> None:
        self._model, self._logits_function = model, logits_function
        self._device = model.embed.weight.device
        self._use_cache, self._compiled = use_cache, compiled
        self._step: Step[ResultT] = read_tokens
        self._cache: Cache | None = None
        self._known = known
        self._memory = read_sources(model, sources)
        self._n_drafted = 0
        self._packed: PackedWeights | None = None  # held for as long as decoding goes on

    def advance(self, texts: Sequence[Sequence[int]]) -> ResultT:
        """Return `logits_function` of the logits after each sequence, reading only tokens not yet in the cache."""
        if self._known is not None:
            (logits, self._cache), self._known = self._known, None
            return self._logits_function(logits)
        if self.can_decode([len(text) for text in texts]):
            return self.decode(torch.tensor([text[-1] for text in texts], device=self._device))
        return self.prefill(texts)

    def check(self, texts: Sequence[Sequence[int]], drafts: Sequence[Sequence[int]]) -> Iterator[ResultT]:
        """Yield `logits_function` of the logits after each sequence, then after it and one draft token, and so on.

        Drafts may differ in length. Call `keep` afterwards with the number of correct tokens of each. Where the
        sequences have to be read whole, only the first result is yielded.
        """
        self._n_drafted = 0
        if self._known is not None or not any(drafts) or not self.can_decode([len(text) for text in texts]):
            return iter([self.advance(texts)])
        rows = [[text[-1], *draft] for text, draft in zip(texts, drafts, strict=True)]
        return map(self._logits_function, self._read_drafts(rows).unbind(1))

    def keep(self, n_right: Sequence[int]) -> None:
        """Drop all but the first `n_right` tokens of each draft that the last `check` read."""
        if self._n_drafted:
            self._forget_wrong(n_right)

    @torch.inference_mode()
    def _read_drafts(self, rows: Sequence[Sequence[int]]) -> Float[Tensor, "B T V"]:
        assert self._cache is not None
        tokens, padding = padded(rows, self._device, "right")
        self._n_drafted = tokens.shape[1] - 1
        self._cache.hold()
        return read_each(self._model, *self._with_memory(tokens), padding, self._cache)

    @torch.inference_mode()
    def _forget_wrong(self, n_right: Sequence[int]) -> None:
        assert self._cache is not None
        places = torch.arange(1 + self._n_drafted, device=self._device)
        self._cache.keep(places <= torch.tensor(n_right, device=self._device).unsqueeze(1))

    def can_decode(self, lengths: Sequence[int]) -> bool:
        """Whether all but the newest token of each sequence are in the cache, at positions that are still right.

        A cache that is as long as the model's context, of padding where longer sequences have ended, is full.
        """
        limit = self._model.config.max_seq_len
        if self._cache is None or self._cache.length >= limit:
            return False
        return all(context_start(n, limit) == context_start(n - 1, limit) for n in lengths)

    @torch.inference_mode()
    def prefill(self, texts: Sequence[Sequence[int]]) -> ResultT:
        """Read the part of each sequence that fits the model's context; see `context_start`."""
        self._cache = self._model.new_cache() if self._use_cache else None
        if (
            self._compiled and self._step is read_tokens
        ):  # compiled once, for the number of sequences at the start
            self._step = compiled_step(self._model, len(texts))
            self._packed = packed_weights(self._model, len(texts))
        limit = self._model.config.max_seq_len
        read = [tuple(text[context_start(len(text), limit) :]) for text in texts]
        if self._memory is not None:
            return self._read(read_tokens, self._logits_function, *padded(read, self._device))
        unique = {text: i for i, text in enumerate(dict.fromkeys(read))}
        rows = torch.tensor([unique[text] for text in read], device=self._device)
        tokens, padding = padded(list(unique), self._device)
        if len(unique) == len(read):
            return self._read(read_tokens, self._logits_function, tokens, padding)
        result = self._read(read_tokens, lambda logits: self._logits_function(logits[rows]), tokens, padding)
        self.reorder(rows)
        return result

    @torch.inference_mode()
    def decode(self, newest: Int[Tensor, " B"]) -> ResultT:
        """Read one more token of each sequence."""
        if self._compiled and self._cache is not None:
            room = max(self._cache.length + 1, LEAST_ROOM)
            self._cache.make_room(min(room, self._model.config.max_seq_len))
        if is_any_open() and has_any_hooks(self._model):
            # A compiled step does not notice them, and one on a GPU keeps a mask of its own: until the texts are read
            # anew, it is not used again.
            self._step = read_tokens
        return self._read(self._step, self._logits_function, newest.unsqueeze(1))

    @torch.inference_mode()
    def reorder(self, rows: Int[Tensor, " N"]) -> None:
        """Keep the given rows, in that order (repeats allowed)."""
        if self._cache is not None:
            self._cache.select(rows)
        if self._memory is not None:
            self._memory = self._memory.select(rows)

    def _read(
        self,
        step: Step[ResultT],
        logits_function: LogitsFunction[ResultT],
        tokens: Int[Tensor, "B T"],
        padding: Bool[Tensor, "B T"] | None = None,
    ) -> ResultT:
        return step(self._model, logits_function, *self._with_memory(tokens), padding, self._cache)

    def _with_memory(self, tokens: Int[Tensor, "B T"]) -> tuple[Any, ...]:
        return (tokens,) if self._memory is None else (tokens, self._memory)


@torch.inference_mode()
def read_sources(model: GenerativeModel, sources: Sequence[Sequence[int]] | None) -> EncoderOutput | None:
    """Return the encoder's output for the sources, or None if the model is a decoder.

    Raises:
        UserError: an encoder-decoder was given no sources, or a decoder was given some.
    """
    if isinstance(model, Decoder):
        if sources is not None:
            raise UserError("a decoder takes no sources: give only prompts")
        return None
    if sources is None:
        raise UserError("an encoder-decoder needs a source: give one for each text")
    return model.encode(*padded(sources, device_of(model)))


def context_start(n_tokens: int, max_seq_len: int) -> int:
    """Return the index of the first of n tokens that the model reads: 0 while all of them fit, later otherwise.

    It is the lowest multiple of M // 2 that leaves at most M tokens, for a model of M positions. A start that moved
    with every token would shift every position, and no key or value could be kept. This one makes the model read the
    sequence again only once in M // 2 tokens, and leaves it M // 2 tokens or more. It depends on n alone, so it is the
    same with and without a cache.
    """
    stride = max(1, max_seq_len // 2)
    n_too_many = max(0, n_tokens - max_seq_len)
    return math.ceil(n_too_many / stride) * stride


def padded(
    texts: Sequence[Sequence[int]], device: torch.device, side: Literal["left", "right"] = "left"
) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B T"] | None]:
    """Return sequences as rows padded on one side, and where their tokens are real (None: everywhere)."""
    longest = max(map(len, texts))
    fills = [[PADDING_TOKEN] * (longest - len(text)) for text in texts]
    rows = [
        [*fill, *text] if side == "left" else [*text, *fill] for fill, text in zip(fills, texts, strict=True)
    ]
    tokens = torch.tensor(rows, device=device)
    if not any(fills):
        return tokens, None
    places = torch.arange(longest, device=device)
    lengths = torch.tensor([len(text) for text in texts], device=device).unsqueeze(1)
    is_real = places >= longest - lengths if side == "left" else places < lengths
    return tokens, is_real


def room_for_drafts(n_tokens: int, max_seq_len: int) -> int:
    """Return how many tokens can follow n tokens before `context_start` moves."""
    return max_seq_len - (n_tokens - context_start(n_tokens, max_seq_len))


def device_of(model: GenerativeModel) -> torch.device:
    """Return the device of the model's weights."""
    return model.embed.weight.device
