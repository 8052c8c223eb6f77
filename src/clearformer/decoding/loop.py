"""Tokens one after the other: read the texts, choose a token for each, read those tokens, choose again.

    prefill -> choose -> decode -> choose -> decode -> ...

Shapes: B the texts that still go on, V vocabulary.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearformer.decoding.arguments import check_whole
from clearformer.decoding.decode_state import DecodeState, GenerativeModel, Prefill, device_of
from clearformer.decoding.inference import evaluating
from clearformer.decoding.samplers import Sampling, draw
from clearformer.errors import NonFiniteError, UserError

NOT_FINITE = "the model's scores are not finite numbers; use a checkpoint from before they were not"

MOST_NEW_TOKENS = 2**31 - 1

FinishReason = Literal["length", "eos", "stop"]

Stop = Callable[[int, int], bool]
"""Called with every new token as (row, token), once and in order; returns whether the row ends with it."""

Look = Callable[[int, Float[Tensor, " V"], Sequence[int]], None]
"""Called before every choice of a token as (row, the model's logits of it, the row's text so far)."""


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
    model: GenerativeModel,
    prompts: Sequence[Sequence[int] | np.ndarray],
    max_new_tokens: int,
    sampling: Sampling,
    streams: Sequence[np.random.Generator],
    eos_id: int | None = None,
    stop: Stop = lambda *_: False,
    use_cache: bool = True,
    sources: Sequence[Sequence[int]] | None = None,
    compiled: bool = False,
    look: Look | None = None,
    known: Prefill | None = None,
) -> Iterator[NewToken]:
    """Continue every prompt, yielding a token of each in turn; rows that have ended leave the batch.

    A row's tokens depend on its own prompt and stream alone, not on the rows beside it, and are the same with and
    without the cache (up to the rounding of scores that are nearly equal). Where a text outgrows the model's
    positions, the model reads its end: see `context_start`.

    Args:
        model: In evaluation mode until the last token; afterwards in the mode it was in.
        prompts: Token ids, at least one in each prompt.
        max_new_tokens: Tokens to add to each prompt, at most.
        sampling: How tokens are chosen.
        streams: Random numbers for each prompt; see `random_stream`.
        eos_id: The token that ends a text.
        stop: What else ends a text.
        use_cache: Whether keys and values are kept from token to token, or the whole text is read every time.
        sources: Of an encoder-decoder, what it reads for each prompt; a prompt is then the beginning of what it
            writes, such as <bos>.
        compiled: Whether the step for a new token is compiled; see `decoding.fast.compiling`.
        look: Who looks at what each token is chosen by.
        known: What was made of the prompts, where they were read before.

    Raises:
        UserError: a prompt is empty, or `max_new_tokens` is less than 1; or there are no sources and must be.
        NonFiniteError: the model's scores are not numbers.
    """
    check_prompts(prompts, max_new_tokens)
    texts = [[int(token) for token in prompt] for prompt in prompts]
    rows = list(range(len(texts)))
    if not rows:
        return
    with evaluating(model):
        state = DecodeState(model, score_tokens, sources, use_cache, compiled, known)
        for n_new in range(1, max_new_tokens + 1):
            if not rows:
                return
            reading = [texts[row] for row in rows]
            scores = state.advance(reading)
            if look is not None:
                for row, logits, text in zip(rows, scores.logits, reading, strict=True):
                    look(row, logits, text)
            tokens, logprobs = _choose(scores, reading, sampling, [streams[row] for row in rows])
            active = []
            for i, (row, token, logprob) in enumerate(zip(rows, tokens, logprobs, strict=True)):
                texts[row].append(token)
                reason = _finish_reason(token == eos_id, stop(row, token), n_new == max_new_tokens)
                if reason is None:
                    active.append(i)
                yield NewToken(row, token, logprob, reason)
            if len(active) < len(rows):
                rows = [rows[i] for i in active]
                state.reorder(torch.tensor(active, dtype=torch.long, device=device_of(model)))


def collect(new_tokens: Iterable[NewToken], n_rows: int) -> list[Completion]:
    """The tokens that `generate_tokens` yields, put together for each of its prompts."""
    rows: list[list[NewToken]] = [[] for _ in range(n_rows)]
    for new in new_tokens:
        rows[new.row].append(new)
    return [
        Completion(
            [new.token for new in row], [new.logprob for new in row], row[-1].finish_reason or "length"
        )
        for row in rows
    ]


# --- choosing ---------------------------------------------------------------------------------------------


class Scores(NamedTuple):
    """The model's scores of the next tokens.

    Attributes:
        logits: Of every token [B V].
        totals: The logarithms of their exponentials' sums [B].
        highest: Each text's highest score [B].
        likeliest: The token that has it [B].
    """

    logits: Float[Tensor, "B V"]
    totals: Float[Tensor, " B"]
    highest: Float[Tensor, " B"]
    likeliest: Int[Tensor, " B"]


def score_tokens(logits: Float[Tensor, "B V"]) -> Scores:
    """The logits with their normaliser and their highest, by which the next tokens are chosen."""
    highest, likeliest = logits.max(-1)
    return Scores(logits, logits.logsumexp(-1), highest, likeliest)


def _choose(
    scores: Scores,
    texts: Sequence[Sequence[int]],
    sampling: Sampling,
    streams: Sequence[np.random.Generator],
) -> tuple[list[int], list[float]]:
    """A token for each text, and its log-probability by the model."""
    totals = scores.totals.tolist()
    if not all(map(math.isfinite, totals)):  # as they are not where a score is NaN or +inf
        raise NonFiniteError(NOT_FINITE)
    tokens, token_scores = scores.likeliest, scores.highest
    if not sampling.takes_likeliest:
        adjusted = sampling.adjust(scores.logits, texts)
        tokens = adjusted.argmax(-1) if sampling.greedy else draw(adjusted, streams).to(adjusted.device)
        token_scores = scores.logits.gather(1, tokens.unsqueeze(1)).squeeze(1)
    logprobs = [score - total for score, total in zip(token_scores.tolist(), totals, strict=True)]
    return tokens.tolist(), logprobs


def _finish_reason(is_eos: bool, stops: bool, is_last: bool) -> FinishReason | None:
    if is_eos:
        return "eos"
    if stops:
        return "stop"
    return "length" if is_last else None


def check_prompts(prompts: Sequence[Sequence[int] | np.ndarray], max_new_tokens: int) -> None:
    """Check that every prompt has a token and that some are to be added.

    Raises:
        UserError: a prompt is empty, or `max_new_tokens` is less than 1 or more than can be counted.
    """
    check_whole("max_new_tokens", max_new_tokens)
    if not 1 <= max_new_tokens <= MOST_NEW_TOKENS:
        raise UserError(f"max_new_tokens: from 1 to {MOST_NEW_TOKENS:,}; got {max_new_tokens}")
    for i, prompt in enumerate(prompts):
        if len(prompt) == 0:
            raise UserError(f"prompt {i} is empty: a model continues at least one token, such as <bos>")
