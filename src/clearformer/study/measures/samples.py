"""Samples of a model, and its next-token probabilities after a prompt, at several temperatures."""

import re
from collections.abc import Sequence

from clearformer import lens
from clearformer.run import Run
from clearformer.study.measures.held_out import text_split
from clearformer.study.study import Values


def sample(run: Run, prompt: str = "\n", tokens: int = 300, temperature: float = 0.8) -> Values:
    """Generate one continuation with the run's own seed (lecture 000, section 5.6).

    Returns:
        sample: The continuation.
        known_words: The share of its words that occur in the training text.
    """
    text = continuation(run, prompt, tokens, temperature)
    split = text_split(run, "train")
    return {"sample": text, "known_words": known_words(text, run.tokenizer.decode(split.read(0, len(split))))}


def known_words(text: str, training: str) -> float:
    """Return the share of a text's words that occur in the training text; 0 if it has none.

    Case does not count, nor do the first and the last word, which may be cut.
    """
    known, found = set(words_of(training)), words_of(text)[1:-1]
    return sum(word in known for word in found) / max(1, len(found))


def words_of(text: str) -> list[str]:
    """Return the words of a text, in lower case."""
    return re.findall(r"[^\W\d_]+(?:'[^\W\d_]+)*", text.lower())


def temperatures(
    run: Run, prompt: str, temperatures: Sequence[float], tokens: int = 200, top: int = 15
) -> Values:
    """Measure the effect of temperature on the next token and on a sample (lecture 000, figure 5.3).

    Returns:
        next_tokens: By temperature, the `top` likeliest tokens after the prompt: rows of token and probability.
        samples: By temperature, a continuation of the prompt.
    """
    found = lens.next_tokens(run, prompt, temperatures=list(temperatures), top=top)
    rows = found.probabilities.tolist()
    return {
        "next_tokens": {
            f"temperature {temperature:g}": [list(pair) for pair in zip(found.tokens, row, strict=True)]
            for temperature, row in zip(temperatures, rows, strict=True)
        },
        "samples": {
            f"temperature {temperature:g}": continuation(run, prompt, tokens, temperature)
            for temperature in temperatures
        },
    }


def continuation(run: Run, prompt: str, tokens: int, temperature: float) -> str:
    """Generate a continuation of a prompt with the run's own seed."""
    (made,) = run.generate(prompt, max_new_tokens=tokens, temperature=temperature, seed=run.config.seed)
    return made.text
