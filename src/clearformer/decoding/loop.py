"""The decoding loop: read the prompts, choose a token for each, read these tokens, choose again.

    prefill -> choose -> decode -> choose -> decode -> ...

Shapes: B unfinished rows, V vocabulary.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearformer.decoding.arguments import check_kind, check_whole
from clearformer.decoding.decode_state import (
    DecodeState,
    GenerativeModel,
    Prefill,
    device_of,
    room_for_drafts,
)
from clearformer.decoding.inference import evaluating
from clearformer.decoding.lookup import Lookup, check_lookup
from clearformer.decoding.samplers import Sampling, draw
from clearformer.errors import NonFiniteError, UserError

NOT_FINITE = "the model's logits are not finite numbers; use an earlier checkpoint"

MOST_NEW_TOKENS = 2**31 - 1

FinishReason = Literal["length", "eos", "stop"]

Stop = Callable[[int, int], bool]
"""Called with every new token as (row, token), once and in order; returns whether the row ends with it."""

Look = Callable[[int, Float[Tensor, " V"], Sequence[int]], None]
"""Called before every choice of a token as (row, the model's logits, the row's tokens so far)."""


@dataclass(frozen=True)
class NewToken:
    """One generated token.

    Attributes:
        row: The index of the prompt that it continues.
        token: Its id.
        logprob: Its log-probability in nats by the model itself, before temperature and filters.
        finish_reason: Why the row ends here: enough tokens, <eos>, or a stop; None if it does not.
    """

    row: int
    token: int
    logprob: float
    finish_reason: FinishReason | None


@dataclass(frozen=True)
class Completion:
    """The tokens generated for one prompt; the fields are those of `NewToken`."""

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
    lookup: int = 0,
) -> Iterator[NewToken]:
    """Continue all prompts, yielding one token of each row per step; finished rows leave the batch.

    A row's tokens depend on its own prompt and stream alone, not on the other rows, and are the same with and without
    the cache (up to the rounding of scores that are nearly equal). Where a row outgrows the model's context, the model
    reads only its end: see `context_start`.

    Args:
        model: In evaluation mode until the last token, and then in its previous mode again.
        prompts: Token ids, at least one in each prompt.
        max_new_tokens: The most tokens to add to each prompt.
        sampling: How tokens are chosen.
        streams: The random numbers of each prompt; see `random_stream`.
        eos_id: The token that ends a row.
        stop: Any other condition that ends a row.
        use_cache: Whether to keep keys and values, or to read each sequence whole for every token.
        sources: What an encoder-decoder reads for each prompt; a prompt is then the beginning of its target, such as
            <bos>.
        compiled: Whether the step for a new token is compiled; see `decoding.fast.compiling`.
        look: Called before every choice.
        known: The result of reading the prompts, if they were read before.
        lookup: The longest draft looked up in each row and read at once; 0: none. The tokens are the same, but a step
            may yield several of a row. See `decoding.lookup`.

    Raises:
        UserError: a prompt is empty, `max_new_tokens` is less than 1, sources are missing or not wanted, or `lookup`
            is out of range or conflicts with `use_cache`, `compiled` or the model's cache.
        NonFiniteError: the model's scores are not finite.
    """
    check_prompts(prompts, max_new_tokens)
    check_lookup(model, lookup, use_cache, compiled)
    check_kind("sampling", sampling, Sampling)
    texts = [
        _Text(row, [int(token) for token in prompt], max_new_tokens, streams[row], lookup)
        for row, prompt in enumerate(prompts)
    ]
    if not texts:
        return
    with evaluating(model) as threads:
        state = DecodeState(model, score_tokens, sources, use_cache, compiled, known)
        while texts:
            threads.adapt()
            drafts = [text.draft(model.config.max_seq_len) for text in texts]
            in_turn = texts
            for scores in state.check([text.tokens for text in texts], drafts):
                if len(in_turn) < len(texts):
                    scores = scores.of([i for i, text in enumerate(texts) if text.follows_draft])
                if look is not None:
                    for text, logits in zip(in_turn, scores.logits, strict=True):
                        look(text.row, logits, text.tokens)
                for text, token, logprob in zip(in_turn, *_choose(scores, in_turn, sampling), strict=True):
                    text.add(token)
                    reason = _finish_reason(token == eos_id, stop(text.row, token), text.n_left == 0)
                    if reason is not None:
                        text.end()
                    yield NewToken(text.row, token, logprob, reason)
                in_turn = [text for text in in_turn if text.follows_draft]
                if not in_turn:
                    break
            state.keep([text.lookup.n_right for text in texts])
            active = [i for i, text in enumerate(texts) if text.goes_on]
            if active and len(active) < len(texts):
                state.reorder(torch.tensor(active, dtype=torch.long, device=device_of(model)))
            texts = [texts[i] for i in active]


class _Text:
    """One row of the batch: a prompt and the tokens generated so far."""

    def __init__(
        self, row: int, prompt: Sequence[int], n_left: int, stream: np.random.Generator, longest_draft: int
    ) -> None:
        self.row, self.n_left, self.stream = row, n_left, stream
        self.lookup = Lookup(prompt, longest_draft)
        self.tokens = self.lookup.tokens
        self.distinct = set(self.tokens)
        self.goes_on = self.follows_draft = True

    def draft(self, max_seq_len: int) -> list[int]:
        """Return a draft of the next tokens, no longer than `max_new_tokens` and the model's context allow."""
        return self.lookup.draft(min(self.n_left - 1, room_for_drafts(len(self.tokens), max_seq_len)))

    def add(self, token: int) -> None:
        """Append the next token."""
        self.n_left -= 1
        self.distinct.add(token)
        self.follows_draft = self.lookup.add(token)

    def end(self) -> None:
        """End the row."""
        self.goes_on = self.follows_draft = False


def collect(new_tokens: Iterable[NewToken], n_rows: int) -> list[Completion]:
    """Collect the tokens that `generate_tokens` yields into one completion per prompt."""
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
        logits: The logits [B V].
        totals: Their logsumexp [B].
        highest: The highest logit of each row [B].
        likeliest: The token that has it [B].
    """

    logits: Float[Tensor, "B V"]
    totals: Float[Tensor, " B"]
    highest: Float[Tensor, " B"]
    likeliest: Int[Tensor, " B"]

    def of(self, rows: list[int]) -> "Scores":
        """Return the scores of some rows."""
        return Scores(*(field[rows] for field in self))


def score_tokens(logits: Float[Tensor, "B V"]) -> Scores:
    """Return the logits with their normaliser and maximum, from which the next tokens are chosen."""
    highest, likeliest = logits.max(-1)
    return Scores(logits, logits.logsumexp(-1), highest, likeliest)


def _choose(scores: Scores, texts: Sequence[_Text], sampling: Sampling) -> tuple[list[int], list[float]]:
    """Choose a token for each row; returns the tokens and their log-probabilities by the model."""
    totals = scores.totals.tolist()
    if not all(map(math.isfinite, totals)):  # not so where a score is NaN or +inf
        raise NonFiniteError(NOT_FINITE)
    tokens, token_scores = scores.likeliest, scores.highest
    if not sampling.takes_likeliest:
        adjusted = sampling.adjust(scores.logits, [text.distinct for text in texts])
        streams = [text.stream for text in texts]
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


def check_max_new_tokens(max_new_tokens: int) -> None:
    """Raise UserError if the most tokens to add are not a whole number from 1 to `MOST_NEW_TOKENS`."""
    check_whole("max_new_tokens", max_new_tokens)
    if not 1 <= max_new_tokens <= MOST_NEW_TOKENS:
        raise UserError(f"max_new_tokens: from 1 to {MOST_NEW_TOKENS:,}; got {max_new_tokens}")


def check_prompts(prompts: Sequence[Sequence[int] | np.ndarray], max_new_tokens: int) -> None:
    """Check that no prompt is empty and that `max_new_tokens` is in range.

    Raises:
        UserError: a prompt is empty, or `max_new_tokens` is not a whole number from 1 to `MOST_NEW_TOKENS`.
    """
    check_max_new_tokens(max_new_tokens)
    for i, prompt in enumerate(prompts):
        if len(prompt) == 0:
            raise UserError(f"prompt {i} is empty: give at least one token, such as <bos>")
