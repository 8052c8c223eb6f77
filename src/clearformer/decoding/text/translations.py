"""Translating sentences, in batches of similar length, a group of sentences at a time."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from clearformer.decoding.arguments import OnStep, check_function, check_run, check_whole, matrix_dtype
from clearformer.decoding.beam import Hypothesis, beam_search, check_n_best, search_settings
from clearformer.decoding.loop import check_max_new_tokens
from clearformer.decoding.text.inputs import Texts, encoded, texts_of, with_specials
from clearformer.decoding.text.samples import Run
from clearformer.decoding.text.writer import known_tokens
from clearformer.device import autocast
from clearformer.errors import UserError
from clearformer.model import EncoderDecoder, Transformer
from clearformer.results import Result
from clearformer.text import Tokenizer

LONGER_BY = 50  # new tokens beyond twice the source's; Vaswani et al. 2017, 6.1, allow 50 beyond its length
BATCH_TOKENS = 1024
BATCHES_IN_GROUP = 16  # enough for batches of sentences of similar length


@dataclass(frozen=True, repr=False, eq=False)
class Translation(Result):
    """One translation of one sentence.

    Attributes:
        text: The translation, on one line.
        tokens: Its ids, <eos> included; none for the empty sentence.
        logprob: The log-probability of all of them, in nats.
        score: The score by which a sentence's translations are ranked; see `BeamSearch`.
        cut: Whether it was cut off at the length limit, without <eos>.
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
    dtype: torch.dtype | str | None = None,
    place: Callable[[int], str] = lambda number: f"sentence {number}",
    look: Callable[[list[list[Translation]]], None] | None = None,
    on_step: OnStep = lambda *_: None,
) -> list[list[Translation]]:
    """Return the best translations of each sentence, best first; for an empty sentence, one empty translation.

    A sentence's translations do not depend on the others (up to the rounding of scores that are nearly equal).

    Args:
        run: An encoder-decoder and its tokenizer.
        sentences: One sentence or several, each a string or token ids [T].
        beams: See `BeamSearch`; 1 is greedy.
        length_penalty: The exponent alpha of the penalty.
        length_penalty_kind: `hf` or `gnmt`; see `HuggingFaceLength` and `GNMTLength`.
        early_stopping: See `BeamSearch`.
        n_best: Translations of each sentence, up to the number of beams.
        max_new_tokens: The longest translation; by default twice the sentence's tokens and 50 more. Never more than
            `max_seq_len`.
        batch_tokens: The most source tokens in a batch, padding included. The memory for each grows with the number
            of beams.
        dtype: The type of the matrix products (autocast), also by name (`bfloat16`). By default the caller's.
        place: Names a sentence in error messages by its number (from 1), such as a file and a line.
        look: Called with the translations of the first sentences, the next ones and so on, as soon as they are made.
        on_step: Called after each batch with the number of sentences done and the total, empty ones left out.

    Raises:
        ConfigError: a setting is out of range.
        TokenizerError: a sentence has a character or an id that the tokenizer lacks.
        UserError: the run's model or tokenizer cannot translate, a sentence is longer than `max_seq_len`, or `n_best`,
            `max_new_tokens`, `batch_tokens` or `dtype` is invalid.
        NonFiniteError: the model's scores are not finite.
    """
    check_run(run)
    search = search_settings(beams, length_penalty, length_penalty_kind, early_stopping)
    tokenizer = run.tokenizer
    model, bos, eos = translator(run.model, tokenizer)
    check_n_best(n_best, search)
    if max_new_tokens is not None:
        check_max_new_tokens(max_new_tokens)
    check_whole("batch_tokens", batch_tokens, least=1)
    check_function("place", place)
    if look is not None:
        check_function("look", look)
    check_function("on_step", on_step)
    limit = model.config.max_seq_len
    sources = encode_sources(tokenizer, texts_of(sentences), eos, limit, place)

    def translated(batch: list[list[int]]) -> list[list[Translation]]:
        limits = [min(length_limit(len(source), max_new_tokens), limit) for source in batch]
        prompts = [[bos]] * len(batch)
        found = beam_search(
            model, prompts, limits, search, eos, n_best, sources=batch, pad_id=tokenizer.pad_id
        )
        return [[_translation(tokenizer, hypothesis, eos) for hypothesis in best] for best in found]

    translations, n_done, n_full = [], 0, sum(map(bool, sources))
    with autocast(model.embed.weight.device, None if dtype is None else matrix_dtype(dtype)):
        for part in groups([len(source) for source in sources], BATCHES_IN_GROUP * batch_tokens):
            group = sources[part]
            of_group = [[replace(EMPTY, tokens=[])] for _ in group]
            for places in batches([len(source) for source in group], batch_tokens):
                for i, best in zip(places, translated([group[i] for i in places]), strict=True):
                    of_group[i] = best
                n_done += len(places)
                on_step(n_done, n_full)
            if look is not None:
                look(of_group)
            translations += of_group
    return translations


def length_limit(n_source: int, max_new_tokens: int | None) -> int:
    """Return the most tokens of a translation: as given, or twice the source's and 50 more."""
    return 2 * n_source + LONGER_BY if max_new_tokens is None else max_new_tokens


def translator(model: Transformer, tokenizer: Tokenizer) -> tuple[EncoderDecoder, int, int]:
    """Return the model if it translates, and the ids of <bos> and <eos>.

    Raises:
        UserError: the model is of another family, or the tokenizer has no <bos> or <eos>.
    """
    bos, eos = tokenizer.bos_id, tokenizer.eos_id
    if not isinstance(model, EncoderDecoder):
        raise UserError(
            f"this run's model is of family {model.config.family}, but only an encoder-decoder translates"
        )
    if bos is None or eos is None:
        raise UserError("this run's tokenizer lacks <bos> or <eos>, with which a translation begins and ends")
    return model, bos, eos


def encode_sources(
    tokenizer: Tokenizer,
    sentences: Sequence[str | list[int]],
    eos: int,
    limit: int,
    place: Callable[[int], str],
) -> list[list[int]]:
    """Return each sentence's ids and <eos>; nothing for an empty one.

    Raises:
        TokenizerError: a sentence has a character or an id that the tokenizer lacks.
        UserError: a sentence has more than `limit` tokens.
    """
    full = [sentence if not isinstance(sentence, str) or sentence.strip() else "" for sentence in sentences]
    sources = [
        with_specials(ids, tokenizer.before_pair, [eos]) if sentence else []
        for sentence, ids in zip(full, encoded(tokenizer, full, place), strict=True)
    ]
    too_long = [i for i, source in enumerate(sources) if len(source) > limit]
    if too_long:
        others = f" (and {len(too_long) - 1:,} more)" if len(too_long) > 1 else ""
        raise UserError(
            f"{place(too_long[0] + 1)}: {len(sources[too_long[0]])} tokens with <eos>, but the model reads at most "
            f"{limit} (model.max_seq_len){others}: split it into shorter sentences"
        )
    return sources


def groups(lengths: Sequence[int], n_tokens: int) -> Iterator[slice]:
    """Yield the slices of texts, in order, that first reach so many tokens each; the last may have fewer."""
    first = total = 0
    for i, length in enumerate(lengths, start=1):
        total += length
        if total >= n_tokens or i == len(lengths):
            yield slice(first, i)
            first, total = i, 0


def batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Yield batches of indices, sorted by length with the longest first; empty texts are left out."""
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
    text = tokenizer.decode(known_tokens(tokenizer, hypothesis.tokens)).replace("\r", " ").replace("\n", " ")
    cut = hypothesis.tokens[-1] != eos
    return Translation(text, hypothesis.tokens, hypothesis.logprob, hypothesis.score, cut)
