"""A trial of BPE on a text: the bits that more tokens save by a trigram model, and how fast the text is tokenized.

It takes a fraction of a second and, for most texts, prefers the vocabulary with which a short run of a Transformer ends
lower (benchmarks/RESULTS.md).
"""

import time
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from clearformer.data.text.sources import Source
from clearformer.text import BPETokenizerSpec
from clearformer.text.kinds.bpe import N_BYTES, BPETokenizer

FEW, MANY = 512, 1024
LEAST_FOR_WORDS = 80_000  # bytes of text; of less, characters are learnt better
SAMPLE = 300_000  # characters of the text; with fewer, some texts are judged wrongly (docs/log.md)
LEAST_SAMPLE = 10_000
LEARNED = 0.9  # of the sample; the trigrams of the rest are predicted

Ids = Int64[np.ndarray, " N"]


class Trial(NamedTuple):
    """The results of a trial.

    Attributes:
        bits_saved: The bits per character that `MANY` tokens save over `FEW`; negative if they cost some.
        words_per_second: The bytes of text that BPE tokenizes in a second.
    """

    bits_saved: float
    words_per_second: float


def try_words(source: Source) -> Trial | None:
    """Try both numbers of tokens on a text.

    The merges and both trigram models are learned from the same part of the text's beginning. Return None if there is
    too little of it: files of JSON lines may hold little text in many bytes.
    """
    sample = beginning_of(source, SAMPLE)
    if len(sample) < LEAST_SAMPLE:
        return None
    cut = int(LEARNED * len(sample))
    learned, told = sample[:cut], sample[cut:]
    many = BPETokenizerSpec(vocab_size=MANY).train([learned])
    few = BPETokenizer(
        many.spellings[:FEW], many.merges[: FEW - N_BYTES]
    )  # the first merges are learned first
    began = time.perf_counter()
    encoded = [[encode(tokenizer, part) for part in (learned, told)] for tokenizer in (few, many)]
    rate = 2 * len(sample.encode()) / (time.perf_counter() - began)
    of_few, of_many = (
        trigram_bits(*ids, vocab_size=size) for ids, size in zip(encoded, (FEW, MANY), strict=True)
    )
    return Trial((of_few - of_many) / len(told), rate)


def beginning_of(source: Source, n_chars: int) -> str:
    """Return the first characters of a text."""
    parts, missing = [], n_chars
    for chunk in source.documents():
        parts.append(chunk.text[:missing])
        missing -= len(parts[-1])
        if not missing:
            break
    return "".join(parts)


def encode(tokenizer: BPETokenizer, text: str) -> Ids:
    return np.asarray(tokenizer.encode(text), dtype=np.int64)


def trigram_bits(learned: Ids, told: Ids, vocab_size: int) -> float:
    """Return the sum of -log2 p(w | u v) over the tokens w that follow two others in `told`.

    p is Witten and Bell's (1991), in the recursive form of Chen and Goodman (1999, section 2.6): with N(c) tokens and
    T(c) different ones after the context c in `learned`, and c' the context without its first token,

        p(w | c) = (N(c w) + T(c) p(w | c')) / (N(c) + T(c)),    p without any context from 1 / vocab_size.
    """
    if min(len(learned), len(told)) < 3:  # thousands of equal characters, say, are a few tokens
        return 0.0
    p = np.full(len(told) - 2, 1 / vocab_size)
    for order in (1, 2, 3):
        grams, n_of_gram = np.unique(grams_of(learned, order, vocab_size), return_counts=True)
        contexts, first, n_types = np.unique(grams // vocab_size, return_index=True, return_counts=True)
        n_of_context = np.add.reduceat(n_of_gram, first)
        wanted = grams_of(told, order, vocab_size)
        n = count_of(wanted, grams, n_of_gram)
        n_before, types = (
            count_of(wanted // vocab_size, contexts, counts) for counts in (n_of_context, n_types)
        )
        p = np.where(n_before > 0, (n + types * p) / np.maximum(n_before + types, 1), p)
    return float(-np.log2(p).sum())


def grams_of(ids: Ids, order: int, vocab_size: int) -> Ids:
    """Return a number for each of the n-grams that end at the third token or later."""
    numbers = np.zeros(len(ids) - 2, dtype=np.int64)
    for back in reversed(range(order)):
        numbers = numbers * vocab_size + ids[2 - back : len(ids) - back]
    return numbers


def count_of(wanted: Ids, known: Ids, counts: Ids) -> Ids:
    """Return the counts of numbers, 0 for those that are not among the known, sorted ones."""
    places = np.searchsorted(known, wanted).clip(max=len(known) - 1)
    return np.where(known[places] == wanted, counts[places], 0)
