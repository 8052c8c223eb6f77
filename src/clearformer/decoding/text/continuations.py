"""The likeliest continuations of a text, by beam search with a decoder."""

from dataclasses import dataclass
from typing import Literal

from clearformer.decoding.arguments import check_run, check_whole
from clearformer.decoding.beam import Hypothesis, beam_search, search_settings
from clearformer.decoding.text.inputs import Text
from clearformer.decoding.text.samples import Prompt, Run, continued, prompt_of, require_decoder
from clearformer.errors import UserError
from clearformer.results import Result
from clearformer.text import Tokenizer


@dataclass(frozen=True, repr=False, eq=False)
class Continuation(Result):
    """One of the likeliest continuations of a prompt.

    Attributes:
        prompt: The prompt that it continues.
        text: The new text, which follows the prompt's directly, without <eos>.
        tokens: Every new id, <eos> included.
        logprob: The log-probability of all of them, in nats.
        score: The score by which continuations are ranked; see `BeamSearch`.
        finish_reason: Why it ends: `length` (enough tokens) or `eos`.
        n_prompt_tokens: The number of the prompt's tokens, <bos> included.
        n_prompt_tokens_read: How many of them, counted from the end, the model reads for the first new token.
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
    prompt: Text,
    *,
    max_new_tokens: int = 200,
    beams: int = 5,
    length_penalty: float = 1.0,
    length_penalty_kind: Literal["hf", "gnmt"] = "hf",
    early_stopping: bool | Literal["never"] = False,
    num: int = 1,
) -> list[Continuation]:
    """Return the likeliest continuations of a prompt that beam search finds, best first.

    Nothing is random. A language model's likeliest text tends to repeat itself: see `generate` for samples.

    Args:
        run: A decoder and its tokenizer.
        prompt: The prompt; see `generate`.
        max_new_tokens: The most tokens to add; <eos> ends a continuation sooner.
        beams: See `BeamSearch`.
        length_penalty: The exponent alpha of the penalty.
        length_penalty_kind: `hf` or `gnmt`; see `HuggingFaceLength` and `GNMTLength`.
        early_stopping: See `BeamSearch`.
        num: Continuations to return, up to the number of beams.

    Raises:
        ConfigError: a setting is out of range.
        TokenizerError: the prompt has a character or an id that the tokenizer lacks.
        UserError: the run's model is no decoder, the prompt is empty and the tokenizer has neither <bos> nor a
            newline, or `num` or `max_new_tokens` is invalid.
        NonFiniteError: the model's scores are not finite.
    """
    check_run(run)
    model, tokenizer = run.model, run.tokenizer
    settings = search_settings(beams, length_penalty, length_penalty_kind, early_stopping)
    check_whole("max_new_tokens", max_new_tokens)
    check_whole("num", num)
    if not 1 <= num <= settings.beams:
        raise UserError(f"num: from 1 to the number of beams, {settings.beams}; got {num}")
    decoder, encoded, eos = require_decoder(model), prompt_of(model, tokenizer, prompt), tokenizer.eos_id
    [hypotheses] = beam_search(
        decoder, [encoded.tokens], max_new_tokens, settings, eos, num, pad_id=tokenizer.pad_id
    )
    return [_continuation(tokenizer, encoded, hypothesis) for hypothesis in hypotheses]


def _continuation(tokenizer: Tokenizer, prompt: Prompt, hypothesis: Hypothesis) -> Continuation:
    return Continuation(
        prompt.text,
        continued(tokenizer, prompt, hypothesis.tokens),
        hypothesis.tokens,
        hypothesis.logprob,
        hypothesis.score,
        "eos" if hypothesis.tokens[-1] == tokenizer.eos_id else "length",
        len(prompt.tokens),
        prompt.n_tokens_read,
    )
