"""Beam search: the continuations with the best score, as far as K beams find them.

At every step each of a row's K beams is continued by every token of the vocabulary. The likeliest of these that
go on are the next K beams; those that end are set aside with their scores, and the best K of them are kept. A row
is done when no beam can overtake what it has set aside. (Lecture 004; Sutskever et al. 2014, 3.2.)

Steps, ties and stopping are those of Hugging Face's `generate(num_beams=K)`, so that the same settings give the same
texts.

Shapes: B rows that still go on, K beams, C candidates, L the most new tokens, V vocabulary.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor

from clearformer.config import Spec, resolve
from clearformer.decoding.arguments import check_whole
from clearformer.decoding.decode_state import DecodeState, GenerativeModel, Prefill, device_of
from clearformer.decoding.inference import evaluating
from clearformer.decoding.loop import NOT_FINITE, check_prompts
from clearformer.errors import NonFiniteError, UserError

# --- settings ---------------------------------------------------------------------------------------------


class HuggingFaceLength(Spec):
    """score = log P / n^alpha for a text of n tokens: at 0 the sum of all log-probabilities, at 1 their mean."""

    kind: Literal["hf"] = "hf"
    alpha: float = Field(default=1.0, ge=-10, le=10)

    def divisor(self, n_tokens: int) -> float:
        """The number that log P is divided by."""
        return n_tokens**self.alpha


class GNMTLength(Spec):
    """score = log P / ((5 + n) / 6)^alpha, which distinguishes short texts less (Wu et al. 2016, equation 14)."""

    kind: Literal["gnmt"] = "gnmt"
    alpha: float = Field(default=0.6, ge=-10, le=10)

    def divisor(self, n_tokens: int) -> float:
        """The number that log P is divided by."""
        return ((5 + n_tokens) / 6) ** self.alpha


LengthPenalty = Annotated[HuggingFaceLength | GNMTLength, Field(discriminator="kind")]


class BeamSearch(Spec):
    """How far and how long to search.

    Attributes:
        beams: K, the texts held at once; with 1 of them the search is greedy.
        length_penalty: What a text's log-probability is divided by, for every token makes it lower: more than 0
            favours longer texts.
        early_stopping: When K texts are set aside, a row is done: `True` at once; `False` when the best beam, scored
            at its present length, is no better than the worst of them; `never` when it could not become better at
            any length. With one beam it has no part.
    """

    beams: int = Field(default=5, ge=1, le=100_000)
    length_penalty: LengthPenalty = HuggingFaceLength()
    early_stopping: bool | Literal["never"] = False

    @property
    def ends_when_full(self) -> bool:
        """Whether as many texts set aside as there are beams are enough."""
        return self.early_stopping is True or self.beams == 1


def search_settings(
    beams: int, length_penalty: float, kind: str, early_stopping: bool | Literal["never"]
) -> BeamSearch:
    """The settings, given one by one.

    Raises:
        ConfigError: one of them is out of its range.
    """
    penalty = {"kind": kind, "alpha": length_penalty}
    return resolve(BeamSearch, {"beams": beams, "length_penalty": penalty, "early_stopping": early_stopping})


@dataclass(frozen=True)
class Hypothesis:
    """One of the texts that a search returns.

    Attributes:
        tokens: What was added to the prompt, <eos> included where the text came to its end.
        logprob: The log-probability of all of them, in nats.
        score: What texts are ranked by: the log-probability over the length penalty.
    """

    tokens: list[int]
    logprob: float
    score: float


@dataclass(frozen=True)
class Candidate:
    """A beam continued by one token.

    Attributes:
        beam: Which of the beams that the step before kept, the best of them 0; the prompt itself, in the first step.
        token: The newest.
        logprob: The log-probability of all that was added to the prompt, in nats.
        score: That over the length penalty at its length.
    """

    beam: int
    token: int
    logprob: float
    score: float


class BeamStep(NamedTuple):
    """One step of a search, for one prompt.

    Attributes:
        kept: The beams that the search goes on with, the best first.
        ended: Those that come to their end and are set aside, unless K better ones are.
    """

    kept: list[Candidate]
    ended: list[Candidate]


Look = Callable[[int, BeamStep], None]
"""Called after every step with the number of a prompt that it continued, and what was made of its beams."""


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
    """The best continuations of every prompt, the best first.

    The result for a prompt does not depend on the prompts beside it (up to the rounding of scores that are nearly
    equal). There are fewer than `n_best` where there are no more continuations.

    Args:
        model: In evaluation mode meanwhile.
        prompts: Token ids, at least one in each.
        max_new_tokens: Tokens to add to each prompt at most, or to each its own number.
        search: How far and how long to search.
        eos_id: The token that ends a text.
        n_best: Texts for each prompt, up to the number of beams.
        sources: What an encoder-decoder reads for each prompt; see `generate_tokens`.
        look: Who looks at every step.
        known: What was made of the prompts, where they were read before.
        pad_id: The token that fills rows up, which stands for nothing and is never written; unless it is `eos_id` too.

    Raises:
        UserError: a prompt is empty, `max_new_tokens` is less than 1, or `n_best` is out of range; or an
            encoder-decoder is given no sources.
        NonFiniteError: the model's scores are not numbers.
    """
    limits = _limits(max_new_tokens, len(prompts))
    check_prompts(prompts, min(limits, default=1))
    check_whole("n_best", n_best)
    if not 1 <= n_best <= search.beams:
        raise UserError(f"n_best: from 1 to the number of beams, {search.beams}; got {n_best}")
    if not prompts:
        return []
    results: list[list[Hypothesis]] = [[] for _ in prompts]
    with evaluating(model), torch.inference_mode():
        state = DecodeState(model, log_probabilities, sources, known=known)
        never = None if pad_id == eos_id else pad_id
        beams = _Beams(state, prompts, limits, search, eos_id, device_of(model), look, never)
        while beams.rows:
            for row, hypotheses in beams.step(beams.next_log_probabilities()):
                results[row] = hypotheses[:n_best]
    return results


def _limits(max_new_tokens: Any, n_prompts: int) -> list[int]:
    """How many tokens each prompt may be given."""
    if isinstance(max_new_tokens, list | tuple):
        return [*max_new_tokens]
    check_whole("max_new_tokens", max_new_tokens)
    return [max_new_tokens] * n_prompts


class _Beams:
    """The rows that still go on, with their beams and what each has set aside.

    Attributes:
        rows: Which prompt each row continues.
        never: The token that no beam is continued by.
        n_new: How many tokens the beams have added.
        logprobs: Of each beam, the best first [B K]; -inf where there are fewer continuations than beams.
        tokens: The new tokens of each beam [B K L].
        closed_scores: Of the texts set aside, the best first [B K]; -inf where there are fewer.
        closed_logprobs: Their log-probabilities [B K].
        closed_lengths: How many tokens they have [B K].
        closed_tokens: Their new tokens [B K L].
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
        self.logprobs = torch.zeros(len(prompts), 1, device=device)  # at first, one beam with nothing in it
        self.tokens = torch.zeros(len(prompts), 1, max(limits), dtype=torch.long, device=device)
        self.closed_scores = self.logprobs.new_full((len(prompts), search.beams), -math.inf)
        self.closed_logprobs = self.closed_scores
        self.closed_lengths = self.closed_scores.long()
        self.closed_tokens = self.tokens.expand(-1, search.beams, -1)

    def next_log_probabilities(self) -> Float[Tensor, "BK V"]:
        """Log-probabilities of the token after each beam."""
        lengths = [len(self.prompts[row]) + self.n_new for row in self.rows]
        if self.n_new and self.state.can_decode(lengths):
            return self.state.decode(self.tokens[:, :, self.n_new - 1].flatten())
        beams = zip(self.rows, self.tokens[:, :, : self.n_new].tolist(), strict=True)
        return self.state.advance([self.prompts[row] + new for row, texts in beams for new in texts])

    def step(self, next_logprobs: Float[Tensor, "BK V"]) -> list[tuple[int, list[Hypothesis]]]:
        """Continue every beam by a token; returns the rows that are done, with their hypotheses."""
        self.n_new += 1
        if self.never is not None:
            next_logprobs[:, self.never] = -math.inf
        n_beams = self.logprobs.shape[1]
        logprobs, parents, newest = self._candidates(next_logprobs)
        tokens = gather(self.tokens, parents)
        tokens[:, :, self.n_new - 1] = newest
        ends = (self.limits == self.n_new).unsqueeze(1) | (newest == self.eos_id)
        self._set_aside(logprobs, tokens, ends)
        self.logprobs, chosen = best(logprobs.masked_fill(ends, -math.inf), self.search.beams)
        self.tokens = gather(tokens, chosen)
        if self.look is not None:
            for i, row in enumerate(self.rows):
                self.look(row, self._step_of(logprobs[i], parents[i], newest[i], ends[i], chosen[i]))
        # One transfer from the device a step: it waits for all kernels.
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
        """The likeliest continuations of each row: log-probabilities, the beams they continue, newest tokens.

        Twice as many as beams: should K of them end, K others go on.
        """
        n_rows, n_beams = self.logprobs.shape
        continued = self.logprobs.unsqueeze(2) + next_logprobs.view(n_rows, n_beams, -1)
        logprobs, places = best(continued.flatten(1), 2 * self.search.beams)
        vocab_size = next_logprobs.shape[1]
        return logprobs, places // vocab_size, places % vocab_size

    def _set_aside(
        self, logprobs: Float[Tensor, "B C"], tokens: Int[Tensor, "B C L"], ends: Bool[Tensor, "B C"]
    ) -> None:
        """Put the texts that end among those set aside, and keep the best of these.

        A text that K other candidates are likelier than does not count.
        """
        n_beams = self.search.beams
        logprobs, tokens, ends = logprobs[:, :n_beams], tokens[:, :n_beams], ends[:, :n_beams]
        scores = (logprobs / self.search.length_penalty.divisor(self.n_new)).masked_fill(~ends, -math.inf)
        lengths = torch.full_like(logprobs, self.n_new, dtype=torch.long)
        self.closed_scores, kept = best(torch.cat([self.closed_scores, scores], dim=1), n_beams)
        self.closed_logprobs = torch.cat([self.closed_logprobs, logprobs], dim=1).gather(1, kept)
        self.closed_lengths = torch.cat([self.closed_lengths, lengths], dim=1).gather(1, kept)
        self.closed_tokens = gather(torch.cat([self.closed_tokens, tokens], dim=1), kept)

    def _step_of(
        self,
        logprobs: Float[Tensor, " C"],
        parents: Int[Tensor, " C"],
        newest: Int[Tensor, " C"],
        ends: Bool[Tensor, " C"],
        chosen: Int[Tensor, " K"],
    ) -> BeamStep:
        """One row's step, told to whoever looks."""
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
        """Whether a row cannot go on, or need not."""
        likeliest, worst = self.logprobs[:, 0], self.closed_scores[:, -1]
        enough = worst > -math.inf
        if not self.search.ends_when_full:
            enough &= self._best_score(likeliest) <= worst
        return enough | (likeliest == -math.inf)

    def _best_score(self, likeliest: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """The best score that a row may still come to, as `early_stopping` reckons."""
        if self.search.early_stopping == "never" and self.search.length_penalty.alpha > 0:
            return likeliest / self.last_divisors  # longer texts have more of a log-probability below 0
        return likeliest / self.search.length_penalty.divisor(self.n_new)

    def _hypotheses(self, done: list[int]) -> list[tuple[int, list[Hypothesis]]]:
        """The hypotheses that the rows that are done have set aside."""
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
        """Go on with some of the rows; `parents` are the texts in the state that their beams continue."""
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
    """The log-probability of every token, in nats."""
    return logits.log_softmax(-1)


def best(scores: Float[Tensor, "B N"], k: int) -> tuple[Float[Tensor, "B K"], Int[Tensor, "B K"]]:
    """The k highest of each row, or all there are, the highest first; and where they stand."""
    highest = scores.topk(min(k, scores.shape[1]))
    return highest.values, highest.indices


def gather(tokens: Int[Tensor, "B N L"], texts: Int[Tensor, "B K"]) -> Int[Tensor, "B K L"]:
    """Some of each row's texts."""
    return tokens.gather(1, texts.unsqueeze(2).expand(-1, -1, tokens.shape[2]))
