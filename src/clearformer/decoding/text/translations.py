"""Sentences in, translations out, in the same order; batched by length."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from clearformer.decoding.arguments import check_run, check_whole
from clearformer.decoding.beam import BeamSearch, Hypothesis, beam_search, search_settings
from clearformer.decoding.text.inputs import Texts, ids_of, texts_of, with_specials
from clearformer.decoding.text.samples import Run
from clearformer.device import autocast
from clearformer.errors import TokenizerError, UserError
from clearformer.model import EncoderDecoder, Transformer
from clearformer.results import Result
from clearformer.text import Tokenizer, located

LONGER_BY = 50  # new tokens beyond twice the source's; Vaswani et al. 2017, 6.1, allow 50 beyond its length
BATCH_TOKENS = 1024


@dataclass(frozen=True, repr=False, eq=False)
class Translation(Result):
    """One translation of one sentence.

    Attributes:
        text: It, on one line.
        tokens: Its ids, <eos> included; none for the empty sentence.
        logprob: The log-probability of all of them, in nats.
        score: What translations of a sentence are ranked by; see `BeamSearch`.
        cut: Whether it ends because it had become too long, without <eos>.
    """

    text: str
    tokens: list[int]
    logprob: float
    score: float
    cut: bool


EMPTY = Translation("", [], 0.0, 0.0, cut=False)


def translate(
    run: Run,
    sentences: Texts,
    *,
    beams: int = 5,
    length_penalty: float = 1.0,
    length_penalty_kind: Literal["hf", "gnmt"] = "hf",
    early_stopping: bool | Literal["never"] = False,
    n_best: int = 1,
    max_new_tokens: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
    dtype: torch.dtype | None = None,
    place: Callable[[int], str] = lambda number: f"sentence {number}",
) -> list[list[Translation]]:
    """The best translations of each sentence, the best first; an empty sentence has the empty one alone.

    A sentence's translations do not depend on the others (up to the rounding of scores that are nearly equal).

    Args:
        run: An encoder-decoder and its tokeniser.
        sentences: What to translate, as texts or as the ids of their tokens [T]; one by itself is a list of one.
        beams: See `BeamSearch`; 1 is greedy.
        length_penalty: The exponent alpha of the penalty.
        length_penalty_kind: `hf` or `gnmt`; see `HuggingFaceLength` and `GNMTLength`.
        early_stopping: See `BeamSearch`.
        n_best: Translations of each sentence, up to the number of beams.
        max_new_tokens: The longest translation; twice the sentence's tokens and 50 more, where not given. Never
            more than the model's positions.
        batch_tokens: The most source tokens to read at once, with what fills the shorter sentences up. Every one
            of them takes as much memory as there are beams.
        dtype: The type of the matrix products (autocast); as it is around the call, where not given.
        place: What a message calls the sentence of a number (from 1 on), such as a file and a line.

    Raises:
        ConfigError: a setting is out of its range.
        TokenizerError: a sentence holds a character that the tokeniser lacks.
        UserError: the run's model does not translate, a sentence is longer than the model's positions, or `n_best`,
            `max_new_tokens` or `batch_tokens` is not what it must be.
    """
    check_run(run)
    return translate_texts(
        run.model,
        run.tokenizer,
        sentences,
        search_settings(beams, length_penalty, length_penalty_kind, early_stopping),
        n_best=n_best,
        max_new_tokens=max_new_tokens,
        batch_tokens=batch_tokens,
        dtype=dtype,
        place=place,
    )


def translate_texts(
    model: Transformer,
    tokenizer: Tokenizer,
    sentences: Texts,
    search: BeamSearch,
    *,
    n_best: int = 1,
    max_new_tokens: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
    dtype: torch.dtype | None = None,
    place: Callable[[int], str] = lambda number: f"sentence {number}",
) -> list[list[Translation]]:
    """The best translations by a model; see `translate`."""
    model, bos, eos = translator(model, tokenizer)
    if max_new_tokens is not None:
        check_whole("max_new_tokens", max_new_tokens)
    check_whole("batch_tokens", batch_tokens)
    if batch_tokens < 1:
        raise UserError(f"batch_tokens: at least 1; got {batch_tokens}")
    limit = model.config.max_seq_len
    sources = encode_sources(tokenizer, texts_of(sentences), eos, limit, place)
    translations = [[EMPTY]] * len(sources)
    with autocast(model.embed.weight.device, dtype):
        for batch in batches([len(source) for source in sources], batch_tokens):
            hypotheses = beam_search(
                model,
                [[bos]] * len(batch),
                [min(length_limit(len(sources[i]), max_new_tokens), limit) for i in batch],
                search,
                eos,
                n_best,
                [sources[i] for i in batch],
                pad_id=tokenizer.pad_id,
            )
            for i, best in zip(batch, hypotheses, strict=True):
                translations[i] = [_translation(tokenizer, hypothesis, eos) for hypothesis in best]
    return translations


def length_limit(n_source: int, max_new_tokens: int | None) -> int:
    """How many tokens a translation may have: as given, or twice the source's and 50 more."""
    return 2 * n_source + LONGER_BY if max_new_tokens is None else max_new_tokens


def translator(model: Transformer, tokenizer: Tokenizer) -> tuple[EncoderDecoder, int, int]:
    """A model that translates, and the tokens that begin and end what it writes.

    Raises:
        UserError: the model is of another family, or the tokeniser has no such tokens.
    """
    bos, eos = tokenizer.bos_id, tokenizer.eos_id
    if not isinstance(model, EncoderDecoder):
        raise UserError(
            f"this run's model is of family {model.config.family}, and only an encoder-decoder translates"
        )
    if bos is None or eos is None:
        raise UserError(
            "this run's tokenizer has no <bos> or no <eos>: a translation begins with the one and ends with the other"
        )
    return model, bos, eos


def encode_sources(
    tokenizer: Tokenizer,
    sentences: Sequence[str | list[int]],
    eos: int,
    limit: int,
    place: Callable[[int], str],
) -> list[list[int]]:
    """Each sentence's ids and <eos>; nothing for an empty one.

    Raises:
        TokenizerError: a sentence holds a character that the tokeniser lacks.
        UserError: a sentence is longer than the model's positions.
    """
    sources = []
    for number, sentence in enumerate(sentences, start=1):
        try:
            is_empty = not (sentence.strip() if isinstance(sentence, str) else sentence)
            ids = [] if is_empty else ids_of(tokenizer, sentence)
            sources.append([] if is_empty else with_specials(ids, tokenizer.before_source, [eos]))
        except TokenizerError as error:
            raise located(error, place(number)) from None
    too_long = [i for i, source in enumerate(sources) if len(source) > limit]
    if too_long:
        others = f" (and {len(too_long) - 1:,} more)" if len(too_long) > 1 else ""
        raise UserError(
            f"{place(too_long[0] + 1)}: {len(sources[too_long[0]])} tokens with <eos>, and the model reads at most "
            f"{limit} (model.max_seq_len){others}: split it into shorter sentences"
        )
    return sources


def batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Which texts to read together: the longest first, texts of like length beside each other, empty ones never."""
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if lengths[i] == 0:
            break
        if batch and (len(batch) + 1) * lengths[batch[0]] > batch_tokens:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def _translation(tokenizer: Tokenizer, hypothesis: Hypothesis, eos: int) -> Translation:
    text = tokenizer.decode(hypothesis.tokens).replace("\r", " ").replace("\n", " ")
    cut = hypothesis.tokens[-1] != eos
    return Translation(text, hypothesis.tokens, hypothesis.logprob, hypothesis.score, cut)
