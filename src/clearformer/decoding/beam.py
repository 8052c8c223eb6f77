"""Beam search: the continuations with the best score, as far as K beams find them.

At every step each of a row's K beams is continued by every token of the vocabulary. The likeliest unfinished
continuations are the next K beams; finished ones are set aside with their scores, and the best K of these are kept. A
row is done when no beam can overtake what it has set aside. (Lecture 004; Sutskever et al. 2014, 3.2.)

Steps, ties and stopping are those of Hugging Face's `generate(num_beams=K)`, so that the same settings give the same
texts.

Shapes: B unfinished rows, K beams, C candidates, L new tokens so far, V vocabulary.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor

from clearformer.config import Spec, resolve
from clearformer.decoding.arguments import check_kind, check_whole
from clearformer.decoding.decode_state import DecodeState, GenerativeModel, Prefill, device_of
from clearformer.decoding.inference import evaluating
from clearformer.decoding.loop import NOT_FINITE, check_max_new_tokens, check_prompts
from clearformer.errors import NonFiniteError, UserError, count, worded_for

# --- settings ---------------------------------------------------------------------------------------------


class HuggingFaceLength(Spec):
    """score = log P / n^alpha for n new tokens: with alpha 0 the sum of all log-probabilities, with 1 their mean."""

    own_kinds: ClassVar[bool] = False

    kind: Literal["hf"] = "hf"
    alpha: float = Field(default=1.0, ge=-10, le=10)

    def divisor(self, n_tokens: int) -> float:
        """Return the divisor of log P."""
        return n_tokens**self.alpha


class GNMTLength(Spec):
    """score = log P / ((5 + n) / 6)^alpha, which differs less between short texts (Wu et al. 2016, equation 14)."""

    own_kinds: ClassVar[bool] = False

    kind: Literal["gnmt"] = "gnmt"
    alpha: float = Field(default=0.6, ge=-10, le=10)

    def divisor(self, n_tokens: int) -> float:
        """Return the divisor of log P."""
        return ((5 + n_tokens) / 6) ** self.alpha


LengthPenalty = Annotated[HuggingFaceLength | GNMTLength, Field(discriminator="kind")]


class BeamSearch(Spec):
    """The settings of a beam search.

    Attributes:
        beams: K, the number of continuations held at once; 1 is greedy.
        length_penalty: The divisor of a continuation's log-probability, which every token lowers; with an exponent
            above 0 it favours longer ones.
        early_stopping: When a row that has set K continuations aside is done. `True`: at once. `False`: when the best
            beam, scored at its present length, is no better than the worst of them. `never`: when it could not
            become better at any length. With one beam it has no effect.
    """

    beams: int = Field(default=5, ge=1, le=100_000)
    length_penalty: LengthPenalty = HuggingFaceLength()
    early_stopping: bool | Literal["never"] = False

    @property
    def ends_when_full(self) -> bool:
        """Whether a row is done as soon as K continuations are set aside."""
        return self.early_stopping is True or self.beams == 1


def search_settings(
    beams: int, length_penalty: float, kind: str, early_stopping: bool | Literal["never"]
) -> BeamSearch:
    """Return a `BeamSearch` of the given settings.

    Raises:
        ConfigError: a setting is out of range.
    """
    penalty = {"kind": kind, "alpha": length_penalty}
    with worded_for({"length_penalty.kind": "length_penalty_kind", "length_penalty.alpha": "length_penalty"}):
        return resolve(
            BeamSearch, {"beams": beams, "length_penalty": penalty, "early_stopping": early_stopping}
        )


def check_n_best(n_best: Any, search: BeamSearch) -> None:
    """Raise UserError unless a search can return so many continuations of a prompt."""
    check_whole("n_best", n_best)
    if not 1 <= n_best <= search.beams:
        raise UserError(f"n_best: from 1 to the number of beams, {search.beams}; got {n_best}")


@dataclass(frozen=True)
class Hypothesis:
    """One of the continuations that a search returns.

    Attributes:
        tokens: The new tokens, including <eos> if it ends with one.
        logprob: The log-probability of all of them, in nats.
        score: The log-probability divided by the length penalty; continuations are ranked by it.
    """

    tokens: list[int]
    logprob: float
    score: float


@dataclass(frozen=True)
class Candidate:
    """A beam continued by one token.

    Attributes:
        beam: The index of the beam among those that the previous step kept, best first; 0 in the first step.
        token: The new token.
        logprob: The log-probability of all new tokens so far, in nats.
        score: The log-probability divided by the length penalty.
    """

    beam: int
    token: int
    logprob: float
    score: float


class BeamStep(NamedTuple):
    """One step of a search, for one prompt.

    Attributes:
        kept: The next beams, best first.
        ended: Continuations that end here; they are set aside unless K better ones are.
    """

    kept: list[Candidate]
    ended: list[Candidate]


Look = Callable[[int, BeamStep], None]
"""Called after every step, once for each unfinished prompt, with the prompt's index and the result of the step."""


# --- the search -------------------------------------------------------------------------------------------


def beam_search(
    model: GenerativeModel,
    prompts: Sequence[Sequence[int] | np.ndarray],
    max_new_tokens: int | Sequence[int],
    search: BeamSearch,
    eos_id: int | None = None,
    n_best: int = 1,
    sources: Sequence[Sequence[int]] | None = None,
    look: Look | None = None,
    known: Prefill | None = None,
    pad_id: int | None = None,
) -> list[list[Hypothesis]]:
    """Return the best continuations of every prompt, best first.

    The result for a prompt does not depend on the other prompts (up to the rounding of scores that are nearly equal).
    It has fewer than `n_best` continuations where there are no more.

    Args:
        model: In evaluation mode during the search.
        prompts: Token ids, at least one in each.
        max_new_tokens: The most tokens to add, one number for all prompts or one for each.
        search: The settings.
        eos_id: The token that ends a continuation.
        n_best: Continuations to return for each prompt, up to the number of beams.
        sources: What an encoder-decoder reads for each prompt; see `generate_tokens`.
        look: Called after every step.
        known: The result of reading the prompts, if they were read before.
        pad_id: The padding token, which is never generated unless it is `eos_id` too.

    Raises:
        UserError: a prompt is empty, `max_new_tokens` is less than 1, or `n_best` is out of range; or an
            encoder-decoder is given no sources.
        NonFiniteError: the model's scores are not finite.
    """
    check_kind("search", search, BeamSearch)
    limits = _limits(max_new_tokens, len(prompts))
    check_prompts(prompts, min(limits, default=1))
    check_n_best(n_best, search)
    if not prompts:
        return []
    results: list[list[Hypothesis]] = [[] for _ in prompts]
    with evaluating(model) as threads, torch.inference_mode():
        state = DecodeState(model, log_probabilities, sources, known=known)
        never = None if pad_id == eos_id else pad_id
        beams = _Beams(state, prompts, limits, search, eos_id, device_of(model), look, never)
        while beams.rows:
            threads.adapt()
            for row, hypotheses in beams.step(beams.next_log_probabilities()):
                results[row] = hypotheses[:n_best]
    return results


def _limits(max_new_tokens: Any, n_prompts: int) -> list[int]:
    """Return the most new tokens of each prompt."""
    if isinstance(max_new_tokens, list | tuple):
        if len(max_new_tokens) != n_prompts:
            raise UserError(
                f"max_new_tokens: one number, or one for each of {count(n_prompts, 'prompt')}; "
                f"got {len(max_new_tokens)}"
            )
        for each in max_new_tokens:
            check_max_new_tokens(each)
        return [*max_new_tokens]
    check_max_new_tokens(max_new_tokens)
    return [max_new_tokens] * n_prompts


class _Beams:
    """The unfinished rows, with their beams and the continuations that each has set aside.

    Attributes:
        rows: The index of the prompt that each row continues.
        never: The token that no beam is continued by.
        n_new: The number of new tokens so far.
        logprobs: The log-probabilities of the beams, best first [B K]; -inf where there are fewer than K.
        tokens: The new tokens of each beam [B K L].
        closed_scores: The scores of the continuations set aside, best first [B K]; -inf where there are fewer.
        closed_logprobs: Their log-probabilities [B K].
        closed_lengths: The number of their new tokens [B K].
        closed_tokens: Their new tokens [B K L], padded on the right.
    """

    def __init__(
        self,
        state: DecodeState[Float[Tensor, "BK V"]],
        prompts: Sequence[Sequence[int] | np.ndarray],
        limits: Sequence[int],
        search: BeamSearch,
        eos_id: int | None,
        device: torch.device,
        look: Look | None = None,
        never: int | None = None,
    ) -> None:
        self.state, self.search, self.look, self.never = state, search, look, never
        self.eos_id = -1 if eos_id is None else eos_id  # no token is -1
        self.prompts = [[int(token) for token in prompt] for prompt in prompts]
        self.rows, self.n_new = list(range(len(prompts))), 0
        self.limits = torch.tensor(limits, device=device)
        divisors = [search.length_penalty.divisor(limit) for limit in limits]
        self.last_divisors = torch.tensor(divisors, device=device)
        self.logprobs = torch.zeros(len(prompts), 1, device=device)  # at first, one empty beam
        self.tokens = torch.zeros(len(prompts), 1, 0, dtype=torch.long, device=device)
        self.closed_scores = self.logprobs.new_full((len(prompts), search.beams), -math.inf)
        self.closed_logprobs = self.closed_scores
        self.closed_lengths = self.closed_scores.long()
        self.closed_tokens = self.tokens.expand(-1, search.beams, -1)

    def next_log_probabilities(self) -> Float[Tensor, "BK V"]:
        """Return the log-probabilities of the token after each beam."""
        lengths = [len(self.prompts[row]) + self.n_new for row in self.rows]
        if self.n_new and self.state.can_decode(lengths):
            return self.state.decode(self.tokens[:, :, -1].flatten())
        beams = zip(self.rows, self.tokens.tolist(), strict=True)
        return self.state.advance([self.prompts[row] + new for row, texts in beams for new in texts])

    def step(self, next_logprobs: Float[Tensor, "BK V"]) -> list[tuple[int, list[Hypothesis]]]:
        """Continue every beam by a token; returns the prompts that are done, with their hypotheses."""
        self.n_new += 1
        if self.never is not None:
            next_logprobs[:, self.never] = -math.inf
        n_beams = self.logprobs.shape[1]
        logprobs, parents, newest = self._candidates(next_logprobs)
        tokens = torch.cat([gather(self.tokens, parents), newest.unsqueeze(2)], dim=2)
        ends = (self.limits == self.n_new).unsqueeze(1) | (newest == self.eos_id)
        self._set_aside(logprobs, tokens, ends)
        self.logprobs, chosen = best(logprobs.masked_fill(ends, -math.inf), self.search.beams)
        self.tokens = gather(tokens, chosen)
        if self.look is not None:
            for i, row in enumerate(self.rows):
                self.look(row, self._step_of(logprobs[i], parents[i], newest[i], ends[i], chosen[i]))
        # Only one transfer from the device per step, because it waits for all kernels.
        done, broken = torch.stack([self._done(), logprobs.isnan().any(1)]).tolist()
        if any(broken):
            raise NonFiniteError(NOT_FINITE)
        finished = self._hypotheses([i for i, is_done in enumerate(done) if is_done])
        first_beams = n_beams * torch.arange(len(done), device=parents.device).unsqueeze(1)
        active = [i for i, is_done in enumerate(done) if not is_done]
        self._select(active, first_beams + parents.gather(1, chosen))
        return finished

    def _candidates(
        self, next_logprobs: Float[Tensor, "BK V"]
    ) -> tuple[Float[Tensor, "B C"], Int[Tensor, "B C"], Int[Tensor, "B C"]]:
        """Return the likeliest continuations of each row: log-probabilities, the beams they continue, new tokens.

        There are 2 K of them, so that K are left if K of them end.
        """
        n_rows, n_beams = self.logprobs.shape
        continued = self.logprobs.unsqueeze(2) + next_logprobs.view(n_rows, n_beams, -1)
        logprobs, places = best(continued.flatten(1), 2 * self.search.beams)
        vocab_size = next_logprobs.shape[1]
        return logprobs, places // vocab_size, places % vocab_size

    def _set_aside(
        self, logprobs: Float[Tensor, "B C"], tokens: Int[Tensor, "B C L"], ends: Bool[Tensor, "B C"]
    ) -> None:
        """Set aside the candidates that end, and keep the best K of all that are set aside.

        Only the K likeliest candidates count.
        """
        n_beams = self.search.beams
        logprobs, tokens, ends = logprobs[:, :n_beams], tokens[:, :n_beams], ends[:, :n_beams]
        scores = (logprobs / self.search.length_penalty.divisor(self.n_new)).masked_fill(~ends, -math.inf)
        lengths = torch.full_like(logprobs, self.n_new, dtype=torch.long)
        self.closed_scores, kept = best(torch.cat([self.closed_scores, scores], dim=1), n_beams)
        self.closed_logprobs = torch.cat([self.closed_logprobs, logprobs], dim=1).gather(1, kept)
        self.closed_lengths = torch.cat([self.closed_lengths, lengths], dim=1).gather(1, kept)
        closed_tokens = F.pad(self.closed_tokens, (0, 1))  # as long as the new ones
        self.closed_tokens = gather(torch.cat([closed_tokens, tokens], dim=1), kept)

    def _step_of(
        self,
        logprobs: Float[Tensor, " C"],
        parents: Int[Tensor, " C"],
        newest: Int[Tensor, " C"],
        ends: Bool[Tensor, " C"],
        chosen: Int[Tensor, " K"],
    ) -> BeamStep:
        """Return one row's step, for `look`."""
        divisor = self.search.length_penalty.divisor(self.n_new)
        columns = zip(parents.tolist(), newest.tolist(), logprobs.tolist(), strict=True)
        candidates = [Candidate(beam, token, logprob, logprob / divisor) for beam, token, logprob in columns]
        has_ended = [
            end and each.logprob > -math.inf for end, each in zip(ends.tolist(), candidates, strict=True)
        ]
        goes_on = [not end for end in ends.tolist()]
        return BeamStep(
            [candidates[i] for i in chosen.tolist() if goes_on[i] and candidates[i].logprob > -math.inf],
            [each for each, end in list(zip(candidates, has_ended, strict=True))[: self.search.beams] if end],
        )

    def _done(self) -> Bool[Tensor, " B"]:
        """Return True for each row that cannot or need not go on."""
        likeliest, worst = self.logprobs[:, 0], self.closed_scores[:, -1]
        enough = worst > -math.inf
        if not self.search.ends_when_full:
            enough &= self._best_score(likeliest) <= worst
        return enough | (likeliest == -math.inf)

    def _best_score(self, likeliest: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """Return the best score that each row may still reach, as `early_stopping` estimates it."""
        if self.search.early_stopping == "never" and self.search.length_penalty.alpha > 0:
            return likeliest / self.last_divisors  # log P < 0, so the largest divisor gives the best score
        return likeliest / self.search.length_penalty.divisor(self.n_new)

    def _hypotheses(self, done: list[int]) -> list[tuple[int, list[Hypothesis]]]:
        """Return the prompts of the given rows, with the hypotheses that each row has set aside."""
        columns = (self.closed_tokens, self.closed_lengths, self.closed_logprobs, self.closed_scores)
        rows = zip(*(column[done].tolist() for column in columns), strict=True)
        return [
            (
                self.rows[i],
                [
                    Hypothesis(tokens[:length], logprob, score)
                    for tokens, length, logprob, score in zip(*row, strict=True)
                    if score > -math.inf
                ],
            )
            for i, row in zip(done, rows, strict=True)
        ]

    def _select(self, active: list[int], parents: Int[Tensor, "B K"]) -> None:
        """Keep the active rows; `parents` are the state's rows that their beams continue."""
        self.rows = [self.rows[i] for i in active]
        if not active:
            return
        rows = torch.tensor(active, device=parents.device)
        self.state.reorder(parents[rows].flatten())
        if len(active) < len(parents):
            self.limits, self.last_divisors = self.limits[rows], self.last_divisors[rows]
            self.logprobs, self.tokens = self.logprobs[rows], self.tokens[rows]
            self.closed_scores, self.closed_logprobs = self.closed_scores[rows], self.closed_logprobs[rows]
            self.closed_lengths, self.closed_tokens = self.closed_lengths[rows], self.closed_tokens[rows]


def log_probabilities(logits: Float[Tensor, "*B V"]) -> Float[Tensor, "*B V"]:
    """Return the log-probability of every token, in nats."""
    return logits.log_softmax(-1)


def best(scores: Float[Tensor, "B N"], k: int) -> tuple[Float[Tensor, "B K"], Int[Tensor, "B K"]]:
    """Return the k highest scores of each row (or all, if fewer), highest first, and their indices."""
    highest = scores.topk(min(k, scores.shape[1]))
    return highest.values, highest.indices


def gather(tokens: Int[Tensor, "B N L"], texts: Int[Tensor, "B K"]) -> Int[Tensor, "B K L"]:
    """Return the given sequences of each row."""
    return tokens.gather(1, texts.unsqueeze(2).expand(-1, -1, tokens.shape[2]))
