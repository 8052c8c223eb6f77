"""Measures of a trained model's generated text, and of one word's vectors in several contexts.

Shapes: L layers, N contexts.
"""

import statistics
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from clearformer.decoding import generate, search
from clearformer.lens import word_similarity
from clearformer.run import Run
from clearformer.study.measures.held_out import text_split
from clearformer.study.measures.stream import rows_of, windows_of
from clearformer.study.study import Values

BEAMS = "beams"
METHODS: dict[str, Mapping[str, Any]] = {
    "greedy": {"temperature": 0},
    "beam search": {BEAMS: 5},
    "temperature 0.5": {"temperature": 0.5},
    "temperature 0.8": {"temperature": 0.8},
    "temperature 1": {"temperature": 1.0},
    "temperature 1.5": {"temperature": 1.5},
    "top-k 10": {"top_k": 10},
    "top-p 0.9": {"top_p": 0.9},
}
"""Decoding methods and their settings (003; 004, 4.8)."""
REPEATED = 16  # tokens of a passage that counts as repeated if it occurred before
DISTINCT = 4  # n of the n-grams for `distinct`


def decodings(run: Run, n_prompts: int = 8, prompt_tokens: int = 64, max_new_tokens: int = 200) -> Values:
    """Compare decoding methods by their continuations of held-out prompts (003; 004, 4.8).

    Returns:
        repetition: By method, the share of passages of 16 tokens that occurred before in the same continuation.
        distinct: By method, the number of different 4-grams of tokens over all 4-grams of all continuations.
        logprob: By method, the mean log-probability of a token under the model, in nats.
        by_temperature: For `distinct` and `repetition`, rows of the temperature (0 is greedy) and the number.
        samples: By method, the continuation of the first prompt.
        repetition_METHOD, distinct_METHOD, logprob_METHOD: The same numbers one by one.
        greedy_repetition: The repetition of greedy decoding minus that of sampling at temperature 1.
        greedy_logprob: The same difference of the log-probability.
    """
    prompts = windows_of(text_split(run), n_prompts, prompt_tokens).tolist()
    by_method = {
        name: continuations(run, prompts, settings, max_new_tokens) for name, settings in METHODS.items()
    }
    measured: dict[str, dict[str, float]] = {"repetition": {}, "distinct": {}, "logprob": {}}
    for name, found in by_method.items():
        tokens = [each for each, _ in found]
        measured["repetition"][name] = statistics.fmean(repetition(each, REPEATED) for each in tokens)
        measured["distinct"][name] = distinct(tokens, DISTINCT)
        measured["logprob"][name] = sum(logprob for _, logprob in found) / sum(map(len, tokens))
    return {
        **measured,
        "by_temperature": {what: rows_of_temperatures(measured[what]) for what in ("distinct", "repetition")},
        "samples": {name: run.tokenizer.decode(found[0][0]) for name, found in by_method.items()},
        **{f"{what}_{name}": value for what, values in measured.items() for name, value in values.items()},
        **{
            f"greedy_{what}": measured[what]["greedy"] - measured[what]["temperature 1"]
            for what in ("repetition", "logprob")
        },
    }


def rows_of_temperatures(by_method: Mapping[str, float]) -> list[list[float]]:
    """Return rows of temperature and number, for the methods that set only a temperature."""
    return sorted(
        [settings["temperature"], by_method[name]]
        for name, settings in METHODS.items()
        if "temperature" in settings
    )


def continuations(
    run: Run, prompts: list[list[int]], settings: Mapping[str, Any], max_new_tokens: int
) -> list[tuple[list[int], float]]:
    """Return the new tokens after each prompt, and their log-probability under the model."""
    if BEAMS in settings:
        beams = settings[BEAMS]
        found = [search(run, prompt, beams=beams, max_new_tokens=max_new_tokens)[0] for prompt in prompts]
    else:
        found = generate(run, prompts, max_new_tokens=max_new_tokens, **settings)
    return [(each.tokens, each.logprob) for each in found]


def n_grams(tokens: Sequence[int], n: int) -> list[tuple[int, ...]]:
    """Return all n-grams of a sequence, in order."""
    return [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]


def repetition(tokens: Sequence[int], n: int) -> float:
    """Return the share of n-grams that occurred before in the sequence; 0 if it has none."""
    found = n_grams(tokens, n)
    return 1 - len(set(found)) / len(found) if found else 0.0


def distinct(texts: Sequence[Sequence[int]], n: int) -> float:
    """Return the number of different n-grams over all n-grams of some texts (Li et al. 2016); 0 if there are none."""
    found = [each for text in texts for each in n_grams(text, n)]
    return len(set(found)) / len(found) if found else 0.0


def senses(run: Run, word: str, first: Sequence[str], second: Sequence[str]) -> Values:
    """Compare a word's vectors by cosine, within one of its senses and between two senses, by layer (003).

    A decoder reads only the tokens before a word, so the contexts must determine the sense before the word.

    Args:
        run: A model and its tokenizer.
        word: A word that all the texts contain.
        first: Texts with one sense of the word.
        second: Texts with the other.

    Returns:
        cosines_WORD: `within` one sense and `between` the two: rows of the number of blocks passed, from 0, and the
            mean cosine of two contexts.
        separation_WORD: within - between after the last block.
        similarity_WORD: The mean cosine of any two contexts after the last block.
    """
    cosines = word_similarity(run, word, [*first, *second]).cosines
    pairs = list(combinations(range(len(first) + len(second)), 2))
    same = [(i, j) for i, j in pairs if (i < len(first)) == (j < len(first))]
    others = [pair for pair in pairs if pair not in same]
    within, between = (
        [statistics.fmean(float(layer[i, j]) for i, j in chosen) for layer in cosines]
        for chosen in (same, others)
    )
    return {
        f"cosines_{word}": {"within": rows_of(within), "between": rows_of(between)},
        f"separation_{word}": within[-1] - between[-1],
        f"similarity_{word}": statistics.fmean(float(cosines[-1][i, j]) for i, j in pairs),
    }
