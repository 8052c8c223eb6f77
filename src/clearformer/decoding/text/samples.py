"""Text in, text out: `generate` for whole samples, `stream` for one as it is written.

Both take a run; `sample_texts` and `stream_text` are the same of a model and a tokeniser.
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

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
from clearformer.decoding.text.writer import Writer
from clearformer.errors import UserError
from clearformer.model import Decoder, Transformer
from clearformer.results import Result
from clearformer.text import Tokenizer

MOST_SAMPLES = 100_000  # of one prompt at once; another seed gives others


@runtime_checkable
class Run(Protocol):
    """A model and the tokeniser it was trained with."""

    @property
    def model(self) -> Transformer: ...

    @property
    def tokenizer(self) -> Tokenizer: ...


@dataclass(frozen=True, repr=False, eq=False)
class Prompt(Result):
    """A prompt as the model reads it.

    Attributes:
        text: What was given.
        tokens: Its ids, <bos> before them where the tokeniser has one.
        n_tokens_read: How many of them the model reads, from the end, as it chooses the first new token.
    """

    text: str
    tokens: list[int]
    n_tokens_read: int

    @property
    def truncated(self) -> bool:
        """Whether the prompt is longer than the model's context."""
        return self.n_tokens_read < len(self.tokens)


@dataclass(frozen=True, repr=False, eq=False)
class Sample(Result):
    """One continuation of one prompt.

    Attributes:
        prompt: What it continues.
        text: What was added, without the prompt, <eos> and the stop string.
        tokens: Every id that was generated, <eos> and those of the stop string included.
        logprobs: The log-probability in nats of each of `tokens` by the model, before temperature and filters.
        finish_reason: Why it ends: `length` (enough tokens), `eos`, or `stop` (a stop string).
        n_prompt_tokens: The prompt's length, <bos> included.
        n_prompt_tokens_read: How many of them the model read, from the end; fewer where its context is shorter.
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
        """The log-probability of all the tokens together."""
        return sum(self.logprobs)

    @property
    def truncated(self) -> bool:
        """Whether the prompt was longer than the model's context."""
        return self.n_prompt_tokens_read < self.n_prompt_tokens


def sample_texts(
    model: Transformer,
    tokenizer: Tokenizer,
    prompts: Texts,
    sampling: Sampling,
    *,
    max_new_tokens: int = 200,
    num: int = 1,
    seed: int = 0,
    stop: str | Sequence[str] = (),
    compiled: bool = False,
    lookup: int = 0,
    int8: bool = False,
) -> list[Sample]:
    """`num` samples of the first prompt, then `num` of the second, ...; see `generate`."""
    check_whole("num", num)
    if not 1 <= num <= MOST_SAMPLES:
        raise UserError(f"num: from 1 to {MOST_SAMPLES:,}; got {num}")
    encoded = [prompt_of(model, tokenizer, text) for text in texts_of(prompts)]
    model = with_int8_weights(model) if int8 else model
    repeated = [prompt for prompt in encoded for _ in range(num)]
    writers = [Writer(tokenizer, _stops(stop)) for _ in repeated]
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


def stream_text(
    model: Transformer,
    tokenizer: Tokenizer,
    prompt: Text,
    sampling: Sampling,
    *,
    max_new_tokens: int = 200,
    seed: int = 0,
    stop: str | Sequence[str] = (),
    compiled: bool = False,
    lookup: int = 0,
    int8: bool = False,
) -> Generator[str, None, Sample]:
    """One continuation piece by piece; see `stream`."""
    encoded = prompt_of(model, tokenizer, prompt)
    writer = Writer(tokenizer, _stops(stop))
    check_prompts([encoded.tokens], max_new_tokens)
    check_lookup(lookup, compiled=compiled)
    model = with_int8_weights(model) if int8 else model
    new_tokens = _continue(
        model,
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
    """Continue a prompt, or several at once; `num` samples of the first, then `num` of the second, ...

    A sample depends on its prompt, the seed and its number among the `num`, not on what is generated beside it.

    Args:
        run: A model and its tokeniser.
        prompt: What to continue, as text or as the ids of its tokens [T], or several of them. An empty one begins with
            <bos>, or else with a newline.
        max_new_tokens: Tokens to add, at most; <eos> and stop strings end a sample sooner.
        temperature: 0 is greedy; this and the next four are explained at `Sampling`.
        top_k: See `Sampling`.
        top_p: See `Sampling`.
        min_p: See `Sampling`.
        repetition_penalty: See `Sampling`.
        num: Samples of each prompt.
        seed: Another seed, other samples.
        stop: A sample ends before the first of these texts.
        compiled: Whether the step for a new token is compiled, which pays from some thousands of tokens on.
        int8: Whether the weights are rounded to int8 for it: a quarter of the memory, and sooner for one compiled text
            on a CPU. `Run.int8_losses` says what it costs.
        lookup: Up to so many tokens at once are guessed by what followed the same ones before, and checked by one pass
            of the model: the same samples, sooner where the text repeats itself. 0 guesses nothing.

    Raises:
        ConfigError: a setting is out of its range.
        TokenizerError: a prompt holds a character or an id that the tokeniser lacks.
        UserError: the run's model continues no texts, a prompt is empty and there is nothing to begin with, or
            `num`, `seed`, `stop`, `max_new_tokens` or `lookup` is not what it must be.
    """
    check_run(run)
    return sample_texts(
        run.model,
        run.tokenizer,
        prompt,
        sampling_of(temperature, top_k, top_p, min_p, repetition_penalty),
        max_new_tokens=max_new_tokens,
        num=num,
        seed=seed,
        stop=stop,
        compiled=compiled,
        lookup=lookup,
        int8=int8,
    )


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

    The pieces put together are the text of `generate` with the same arguments, whose sample is what the generator
    returns (`sample = yield from stream(...)`). Arguments and errors are those of `generate`, and an error is raised
    before the first piece is asked for.
    """
    check_run(run)
    return stream_text(
        run.model,
        run.tokenizer,
        prompt,
        sampling_of(temperature, top_k, top_p, min_p, repetition_penalty),
        max_new_tokens=max_new_tokens,
        seed=seed,
        stop=stop,
        compiled=compiled,
        lookup=lookup,
        int8=int8,
    )


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
    """The model, if it continues texts.

    Raises:
        UserError: it is of another family.
    """
    if isinstance(model, Decoder):
        return model
    family = model.config.family
    way_out = (
        "use clearformer translate (in Python: cf.translate)"
        if family == "encoder-decoder"
        else "take a decoder's run"
    )
    raise UserError(f"this run's model is an {family}, and only a decoder continues a text: {way_out}")


def encode_prompt(run: Run, text: Text) -> Prompt:
    """A prompt as a run's model reads it; see `prompt_of`."""
    check_run(run)
    return prompt_of(run.model, run.tokenizer, text)


def prompt_of(model: Transformer, tokenizer: Tokenizer, text: Text) -> Prompt:
    """A prompt's text, and its tokens after <bos>; without <bos> and text, the tokens are a newline's.

    Raises:
        TokenizerError: the text holds a character or an id that the tokeniser lacks.
        UserError: the text is empty and there is nothing to begin with.
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
            "the prompt is empty, and this tokenizer has neither <bos> nor a newline to begin with: give a prompt"
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


def _whole_text(writer: Writer) -> str:
    writer.finish()
    return writer.take()


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


def _stops(stop: str | Sequence[str]) -> Sequence[str]:
    return [stop] if isinstance(stop, str) else stop
