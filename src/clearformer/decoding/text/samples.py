"""Sampling text: `generate` returns whole samples, `stream` yields one piece by piece."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from clearformer.decoding.arguments import check_run, check_whole
from clearformer.decoding.decode_state import context_start
from clearformer.decoding.fast.int8 import with_int8_weights
from clearformer.decoding.lookup import check_lookup
from clearformer.decoding.loop import (
    Completion,
    FinishReason,
    NewToken,
    check_prompts,
    collect,
    generate_tokens,
)
from clearformer.decoding.samplers import Sampling, random_stream, sampling_of
from clearformer.decoding.text.inputs import Text, Texts, ids_of, text_of, texts_of, with_specials, words_of
from clearformer.decoding.text.writer import Writer, begins_text
from clearformer.errors import UserError, shown
from clearformer.model import Decoder, Transformer
from clearformer.results import Result
from clearformer.text import Tokenizer

MOST_SAMPLES = 100_000  # per prompt and call; another seed gives others


@runtime_checkable
class Run(Protocol):
    """A model and the tokenizer it was trained with."""

    @property
    def model(self) -> Transformer: ...

    @property
    def tokenizer(self) -> Tokenizer: ...


@dataclass(frozen=True, repr=False, eq=False)
class Prompt(Result):
    """A prompt as the model reads it.

    Attributes:
        text: The prompt as given.
        tokens: Its ids, after <bos> where the tokenizer has one.
        n_tokens_read: How many of them, counted from the end, the model reads for the first new token.
    """

    text: str
    tokens: list[int]
    n_tokens_read: int


@dataclass(frozen=True, repr=False, eq=False)
class Sample(Result):
    """One continuation of one prompt.

    Attributes:
        prompt: The prompt that it continues.
        text: The new text, which follows the prompt's directly, without <eos> and the stop string.
        tokens: Every generated id, including <eos> and those of the stop string.
        logprobs: The log-probability in nats of each of `tokens` by the model, before temperature and filters.
        finish_reason: Why it ends: `length` (enough tokens), `eos`, or `stop` (a stop string).
        n_prompt_tokens: The number of the prompt's tokens, <bos> included.
        n_prompt_tokens_read: How many of them, counted from the end, the model reads for the first new token.
    """

    prompt: str
    text: str
    tokens: list[int]
    logprobs: list[float]
    finish_reason: FinishReason
    n_prompt_tokens: int
    n_prompt_tokens_read: int

    @property
    def logprob(self) -> float:
        """The log-probability of all tokens together, in nats."""
        return sum(self.logprobs)

    @property
    def truncated(self) -> bool:
        """Whether the prompt was longer than the model's context."""
        return self.n_prompt_tokens_read < self.n_prompt_tokens


def generate(
    run: Run,
    prompt: Texts = "",
    *,
    max_new_tokens: int = 200,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    num: int = 1,
    seed: int = 0,
    stop: str | Sequence[str] = (),
    compiled: bool = False,
    lookup: int = 0,
    int8: bool = False,
) -> list[Sample]:
    """Continue one or several prompts; returns `num` samples of the first, then `num` of the second, ...

    A sample depends on its prompt, the seed and its index among the `num`, not on the other samples.

    Args:
        run: A model and its tokenizer.
        prompt: One prompt or several, each a string or token ids [T]. An empty one is replaced by <bos> or, without
            <bos>, by a newline.
        max_new_tokens: The most tokens to add; <eos> and stop strings end a sample sooner.
        temperature: 0 is greedy. For this and the next four, see `Sampling`.
        top_k: See `Sampling`.
        top_p: See `Sampling`.
        min_p: See `Sampling`.
        repetition_penalty: See `Sampling`.
        num: Samples per prompt.
        seed: The seed of the random numbers.
        stop: A string or strings, before the first of which a sample ends.
        compiled: Whether to compile the step for a new token, which pays off from some thousands of tokens on.
        lookup: The longest draft, in tokens, that is looked up in the text so far and checked in one pass; 0: none.
            The samples are the same, and faster where the text repeats itself.
        int8: Whether to round the weights to int8: a quarter of the memory. On a CPU one compiled text may be
            written faster or, with AVX2 alone, more slowly. `Run.int8_losses` measures what it costs in loss.

    Raises:
        ConfigError: a setting is out of range.
        TokenizerError: a prompt has a character or an id that the tokenizer lacks.
        UserError: the run's model is no decoder, a prompt is empty and the tokenizer has neither <bos> nor a newline,
            or `num`, `seed`, `stop`, `max_new_tokens` or `lookup` is invalid.
        NonFiniteError: the model's scores are not finite.
    """
    check_run(run)
    model, tokenizer = run.model, run.tokenizer
    sampling = sampling_of(temperature, top_k, top_p, min_p, repetition_penalty)
    check_whole("num", num)
    if not 1 <= num <= MOST_SAMPLES:
        raise UserError(f"num: from 1 to {MOST_SAMPLES:,}; got {num}")
    encoded = [prompt_of(model, tokenizer, text) for text in texts_of(prompt)]
    repeated = [each for each in encoded for _ in range(num)]
    model = with_int8_weights(model) if int8 else model
    stops = _stops(stop)
    writers = [_writer(tokenizer, each, stops) for each in repeated]
    streams = [random_stream(seed, number) for _ in encoded for number in range(num)]
    new_tokens = _continue(
        model,
        tokenizer,
        repeated,
        writers,
        sampling,
        streams,
        max_new_tokens=max_new_tokens,
        compiled=compiled,
        lookup=lookup,
    )
    completions = collect(new_tokens, len(repeated))
    return list(map(_sample, repeated, completions, map(_whole_text, writers)))


def stream(
    run: Run,
    prompt: Text = "",
    *,
    max_new_tokens: int = 200,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    seed: int = 0,
    stop: str | Sequence[str] = (),
    compiled: bool = False,
    lookup: int = 0,
    int8: bool = False,
) -> Generator[str, None, Sample]:
    """Continue one prompt, yielding the text piece by piece as it is generated.

    The joined pieces are the text of `generate` with the same arguments, and the generator returns the same sample
    (`sample = yield from stream(...)`). For arguments and errors see `generate`; invalid arguments raise at the call,
    not at the first piece.
    """
    check_run(run)
    model, tokenizer = run.model, run.tokenizer
    sampling = sampling_of(temperature, top_k, top_p, min_p, repetition_penalty)
    encoded = prompt_of(model, tokenizer, prompt)
    writer = _writer(tokenizer, encoded, _stops(stop))
    check_prompts([encoded.tokens], max_new_tokens)
    check_lookup(require_decoder(model), lookup, compiled=compiled)
    new_tokens = _continue(
        with_int8_weights(model) if int8 else model,
        tokenizer,
        [encoded],
        [writer],
        sampling,
        [random_stream(seed, 0)],
        max_new_tokens=max_new_tokens,
        compiled=compiled,
        lookup=lookup,
    )
    return _pieces(encoded, new_tokens, writer)


def _pieces(prompt: Prompt, generated: Iterator[NewToken], writer: Writer) -> Generator[str, None, Sample]:
    new_tokens, pieces = [], []
    for new in generated:
        new_tokens.append(new)
        if new.finish_reason:
            writer.finish()
        if piece := writer.take():
            pieces.append(piece)
            yield piece
    return _sample(prompt, collect(new_tokens, 1)[0], "".join(pieces))


def require_decoder(model: Transformer) -> Decoder:
    """Return the model if it is a decoder.

    Raises:
        UserError: it is of another family.
    """
    if isinstance(model, Decoder):
        return model
    family = model.config.family
    way_out = (
        "use clearformer translate (in Python: cf.translate)"
        if family == "encoder-decoder"
        else "use a decoder's run"
    )
    raise UserError(f"this run's model is an {family}, but only a decoder continues a text: {way_out}")


def prompt_of(model: Transformer, tokenizer: Tokenizer, text: Text) -> Prompt:
    """Return a prompt's text, and its tokens after <bos>; if there are none at all, a newline's token.

    Raises:
        TokenizerError: the text has a character or an id that the tokenizer lacks.
        UserError: the text is empty and the tokenizer has neither <bos> nor a newline.
    """
    plain = text_of(text)
    before = [] if tokenizer.bos_id is None else [tokenizer.bos_id]
    tokens = with_specials(ids_of(tokenizer, plain), before) or _beginning(tokenizer)
    n_tokens_read = len(tokens) - context_start(len(tokens), model.config.max_seq_len)
    return Prompt(words_of(tokenizer, plain), tokens, n_tokens_read)


def _beginning(tokenizer: Tokenizer) -> list[int]:
    newline = tokenizer.id_of("\n")
    if newline is None:
        raise UserError(
            "the prompt is empty, and this tokenizer has neither <bos> nor a newline to start from: give a prompt"
        )
    return [newline]


def _continue(
    model: Transformer,
    tokenizer: Tokenizer,
    prompts: Sequence[Prompt],
    writers: Sequence[Writer],
    sampling: Sampling,
    streams: Sequence[np.random.Generator],
    *,
    max_new_tokens: int,
    compiled: bool,
    lookup: int,
) -> Iterator[NewToken]:
    return generate_tokens(
        require_decoder(model),
        [prompt.tokens for prompt in prompts],
        max_new_tokens,
        sampling,
        streams,
        eos_id=tokenizer.eos_id,
        stop=lambda row, token: writers[row].push(token),
        compiled=compiled,
        lookup=lookup,
    )


def _writer(tokenizer: Tokenizer, prompt: Prompt, stops: Sequence[str] = ()) -> Writer:
    """Return what writes the text after a prompt."""
    return Writer(tokenizer, stops, begins_text(tokenizer, prompt.text, prompt.tokens))


def _whole_text(writer: Writer) -> str:
    writer.finish()
    return writer.take()


def continued(tokenizer: Tokenizer, prompt: Prompt, tokens: Sequence[int]) -> str:
    """Return the text of tokens that follow a prompt."""
    writer = _writer(tokenizer, prompt)
    for token in tokens:
        writer.push(token)
    return _whole_text(writer)


def _sample(prompt: Prompt, completion: Completion, text: str) -> Sample:
    return Sample(
        prompt.text,
        text,
        completion.tokens,
        completion.logprobs,
        completion.finish_reason,
        len(prompt.tokens),
        prompt.n_tokens_read,
    )


def _stops(stop: Any) -> list[str]:
    """Return the texts that end a sample, given as one or several; raises UserError for anything else."""
    stops = [stop] if isinstance(stop, str) or not isinstance(stop, Iterable) else list(stop)
    if not all(isinstance(each, str) for each in stops):
        raise UserError(f"stop: a text or a list of texts; got {shown(stop)}")
    return stops
