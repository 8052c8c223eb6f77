"""Tokens one after the other: read the texts, choose a token for each, read those tokens, choose again.

    prefill -> choose -> decode_one_token -> choose -> decode_one_token -> ...

Shapes: B the texts that still go on, V vocabulary.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clearformer.errors import NonFiniteError, UserError
from clearformer.generate.mode import evaluating
from clearformer.generate.samplers import Sampling, draw
from clearformer.model import Cache, Decoder

FinishReason = Literal["length", "eos", "stop"]

Stop = Callable[[int, int], bool]
"""Told every new token as (row, token), once and in order; whether the row ends with it."""

FILLER = 0  # a token that stands where a shorter text has none; what it is makes no difference


@dataclass(frozen=True)
class NewToken:
    """One generated token.

    Attributes:
        row: Which of the prompts it continues.
        token: Its id.
        logprob: Its log-probability in nats by the model itself, before temperature and filters.
        finish_reason: Why the row ends here: enough tokens, <eos>, or a stop; None where it goes on.
    """

    row: int
    token: int
    logprob: float
    finish_reason: FinishReason | None


@dataclass(frozen=True)
class Completion:
    """All that was generated for one prompt; the fields are those of `NewToken`."""

    tokens: list[int]
    logprobs: list[float]
    finish_reason: FinishReason


def generate_tokens(
    model: Decoder,
    prompts: Sequence[Sequence[int] | np.ndarray],
    max_new_tokens: int,
    sampling: Sampling,
    streams: Sequence[np.random.Generator],
    eos_id: int | None = None,
    stop: Stop = lambda *_: False,
    use_cache: bool = True,
) -> Iterator[NewToken]:
    """Continue every prompt, yielding a token of each in turn; rows that have ended leave the batch.

    A row's tokens depend on its own prompt and stream alone, not on the rows beside it, and are the same with and
    without the cache (up to the rounding of scores that are nearly equal). Where a text outgrows the model's
    positions, the model reads its end: see `context_start`.

    Args:
        model: What continues; it is in evaluation mode until the last token, and then as it was.
        prompts: Token ids, at least one in each prompt.
        max_new_tokens: Tokens to add to each prompt, at most.
        sampling: How tokens are chosen.
        streams: Random numbers for each prompt; see `random_stream`.
        eos_id: The token that ends a text.
        stop: What else ends a text.
        use_cache: Whether keys and values are kept from token to token, or the whole text is read every time.

    Raises:
        UserError: a prompt is empty, or `max_new_tokens` is less than 1.
        NonFiniteError: the model's scores are not numbers.
    """
    _refuse_nothing_to_do(prompts, max_new_tokens)
    texts = [[int(token) for token in prompt] for prompt in prompts]
    rows = list(range(len(texts)))
    reader = _Reader(model, use_cache)
    with evaluating(model):
        for n_new in range(1, max_new_tokens + 1):
            if not rows:
                return
            reading = [texts[row] for row in rows]
            logits = reader.next_logits(reading)
            tokens, logprobs = _choose(logits, reading, sampling, [streams[row] for row in rows])
            going_on = []
            for i, (row, token, logprob) in enumerate(zip(rows, tokens, logprobs, strict=True)):
                texts[row].append(token)
                reason = _finish_reason(token == eos_id, stop(row, token), n_new == max_new_tokens)
                if reason is None:
                    going_on.append(i)
                yield NewToken(row, token, logprob, reason)
            if len(going_on) < len(rows):
                rows = [rows[i] for i in going_on]
                reader.keep(going_on)


def collect(new_tokens: Iterable[NewToken], n_rows: int) -> list[Completion]:
    """What `generate_tokens` yields, put together for each of its prompts."""
    rows: list[list[NewToken]] = [[] for _ in range(n_rows)]
    for new in new_tokens:
        rows[new.row].append(new)
    return [
        Completion(
            [new.token for new in row], [new.logprob for new in row], row[-1].finish_reason or "length"
        )
        for row in rows
    ]


def context_start(n_tokens: int, max_seq_len: int) -> int:
    """Where the model begins to read a text of n tokens: at 0 while all of it fits, and then ever later.

    The start moves in strides of half the model's length M: it is the lowest multiple of M // 2 that leaves at
    most M tokens. A start that moved with every token would shift every position, and no key or value could be
    kept; this one has the text read anew once in M // 2 tokens, and M // 2 tokens or more are always read. A
    function of n alone, it is the same with and without a cache.
    """
    stride = max(1, max_seq_len // 2)
    n_too_many = max(0, n_tokens - max_seq_len)
    return math.ceil(n_too_many / stride) * stride


# --- reading ----------------------------------------------------------------------------------------------


class _Reader:
    """Scores of the next token of some texts, each one token longer at every call."""

    def __init__(self, model: Decoder, use_cache: bool) -> None:
        self._model = model
        self._use_cache = use_cache
        self._cache: Cache | None = None
        self._starts: list[int] = []

    @torch.inference_mode()
    def next_logits(self, texts: list[list[int]]) -> Float[Tensor, "B V"]:
        starts = [context_start(len(text), self._model.config.max_seq_len) for text in texts]
        if self._cache is not None and starts == self._starts:
            return decode_one_token(self._model, [text[-1] for text in texts], self._cache)
        self._starts = starts
        self._cache = self._model.new_cache() if self._use_cache else None
        read = [text[start:] for text, start in zip(texts, starts, strict=True)]
        return prefill(self._model, read, self._cache)

    @torch.inference_mode()
    def keep(self, rows: list[int]) -> None:
        """Go on with some of the texts alone."""
        self._starts = [self._starts[row] for row in rows]
        if self._cache is not None:
            self._cache.select(torch.tensor(rows, dtype=torch.long, device=_device(self._model)))


def prefill(
    model: Decoder, texts: Sequence[Sequence[int]], cache: Cache | None = None
) -> Float[Tensor, "B V"]:
    """Scores of the token after each text, all texts read at once and each different one only once."""
    different = {text: i for i, text in enumerate(dict.fromkeys(map(tuple, texts)))}
    tokens, padding = left_padded(list(different), _device(model))
    logits = model(tokens, padding, cache, last_only=True)[:, -1]
    if len(different) == len(texts):
        return logits.float()
    rows = torch.tensor([different[tuple(text)] for text in texts], device=logits.device)
    if cache is not None:
        cache.select(rows)
    return logits[rows].float()


def decode_one_token(model: Decoder, tokens: Sequence[int], cache: Cache) -> Float[Tensor, "B V"]:
    """Scores of the token after each text that the cache holds and one token more."""
    newest = torch.tensor(tokens, device=_device(model)).unsqueeze(1)
    return model(newest, cache=cache)[:, -1].float()


def left_padded(
    texts: Sequence[Sequence[int]], device: torch.device
) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B T"] | None]:
    """Texts as rows that end together, and where their tokens are real (None: everywhere)."""
    longest = max(map(len, texts))
    rows = [[FILLER] * (longest - len(text)) + list(text) for text in texts]
    tokens = torch.tensor(rows, device=device)
    lengths = torch.tensor([len(text) for text in texts], device=device).unsqueeze(1)
    if all(len(text) == longest for text in texts):
        return tokens, None
    return tokens, torch.arange(longest, device=device) >= longest - lengths


# --- choosing ---------------------------------------------------------------------------------------------


@torch.inference_mode()
def _choose(
    logits: Float[Tensor, "B V"],
    texts: Sequence[Sequence[int]],
    sampling: Sampling,
    streams: Sequence[np.random.Generator],
) -> tuple[list[int], list[float]]:
    """A token for each text, and its log-probability by the model."""
    if not logits.isfinite().all():
        raise NonFiniteError(
            "the model's scores are not finite numbers; use a checkpoint from before they were not"
        )
    adjusted = sampling.adjust(logits, texts)
    tokens = adjusted.argmax(-1).cpu() if sampling.greedy else draw(adjusted, streams)
    logprobs = logits.log_softmax(-1).cpu().gather(1, tokens.unsqueeze(1))
    return tokens.tolist(), logprobs.squeeze(1).tolist()


def _finish_reason(is_eos: bool, stops: bool, is_last: bool) -> FinishReason | None:
    if is_eos:
        return "eos"
    if stops:
        return "stop"
    return "length" if is_last else None


def _refuse_nothing_to_do(prompts: Sequence[Sequence[int] | np.ndarray], max_new_tokens: int) -> None:
    if max_new_tokens < 1:
        raise UserError(f"max_new_tokens: at least 1; got {max_new_tokens}")
    for i, prompt in enumerate(prompts):
        if len(prompt) == 0:
            raise UserError(f"prompt {i} is empty: a model continues at least one token, such as <bos>")


def _device(model: Decoder) -> torch.device:
    return model.embed.weight.device
