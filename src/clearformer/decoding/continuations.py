"""Text in, its likeliest continuations out: beam search with a decoder."""

from dataclasses import dataclass
from typing import Literal

from clearformer.decoding.beam import Hypothesis, beam_search, search_settings
from clearformer.decoding.samples import Prompt, Run, continuer, encode_prompt
from clearformer.errors import UserError


@dataclass(frozen=True)
class Continuation:
    """One of the likeliest continuations of a prompt.

    Attributes:
        prompt: What it continues.
        text: What was added, without <eos>.
        tokens: Every id that was added, <eos> included.
        logprob: The log-probability of all of them, in nats.
        score: What continuations are ranked by; see `BeamSearch`.
        finish_reason: Why it ends: `length` (enough tokens) or `eos`.
        n_prompt_tokens: The prompt's length, <bos> included.
        n_prompt_tokens_read: How many of them the model read, from the end; fewer where its context is shorter.
    """

    prompt: str
    text: str
    tokens: list[int]
    logprob: float
    score: float
    finish_reason: Literal["length", "eos"]
    n_prompt_tokens: int
    n_prompt_tokens_read: int

    @property
    def truncated(self) -> bool:
        """Whether the prompt was longer than the model's context."""
        return self.n_prompt_tokens_read < self.n_prompt_tokens


def search(
    run: Run,
    prompt: str,
    *,
    max_new_tokens: int = 200,
    beams: int = 5,
    length_penalty: float = 1.0,
    length_penalty_kind: Literal["hf", "gnmt"] = "hf",
    early_stopping: bool | Literal["never"] = False,
    num: int = 1,
) -> list[Continuation]:
    """The likeliest continuations of a prompt, as far as beam search finds them, the best first.

    Nothing is drawn. The likeliest text of a language model repeats itself easily: see `generate` for samples.

    Args:
        run: A decoder and its tokeniser.
        prompt: What to continue; see `generate`.
        max_new_tokens: Tokens to add, at most; <eos> ends a text sooner.
        beams: See `BeamSearch`.
        length_penalty: The exponent alpha of the penalty.
        length_penalty_kind: `hf` or `gnmt`; see `HuggingFaceLength` and `GNMTLength`.
        early_stopping: See `BeamSearch`.
        num: Continuations, up to the number of beams.

    Raises:
        ConfigError: a setting is out of its range.
        TokenizerError: the prompt holds a character that the tokeniser lacks.
        UserError: the run's model continues no texts, the prompt is empty and there is nothing to begin with, or
            `num` or `max_new_tokens` is not what it must be.
    """
    settings = search_settings(beams, length_penalty, length_penalty_kind, early_stopping)
    if not 1 <= num <= beams:
        raise UserError(f"num: from 1 to the number of beams, {beams}; got {num}")
    model, encoded, eos = continuer(run), encode_prompt(run, prompt), run.tokenizer.eos_id
    [found] = beam_search(model, [encoded.tokens], max_new_tokens, settings, eos, num)
    return [_continuation(run, encoded, hypothesis) for hypothesis in found]


def _continuation(run: Run, prompt: Prompt, found: Hypothesis) -> Continuation:
    return Continuation(
        prompt.text,
        run.tokenizer.decode(found.tokens),
        found.tokens,
        found.logprob,
        found.score,
        "eos" if found.tokens[-1] == run.tokenizer.eos_id else "length",
        len(prompt.tokens),
        prompt.n_tokens_read,
    )
