"""Measures of information: worked values and counts of the lectures, and sources with known entropy."""

import math
import re
from collections import Counter

from clearformer.cost import analytic_matrices, analytic_parameters
from clearformer.data import TextData, prepare
from clearformer.data.text.sources import MARKOV, markov_chain
from clearformer.evaluation.information import (
    cross_entropy,
    entropy,
    kl_divergence,
    mutual_information,
    perplexity,
)
from clearformer.model import ModelConfig
from clearformer.model.feedforward import GELU
from clearformer.model.positions import NoPositions
from clearformer.presets import preset
from clearformer.run import Run
from clearformer.study.measures.held_out import text_split
from clearformer.study.study import Values
from clearformer.text import CharTokenizerSpec, GPT2TokenizerSpec

RIGHT = (0.0, 1.0, 0.0)  # the distribution of a token that is known (002, 2.6)
GOOD, BAD = (0.05, 0.90, 0.05), (0.30, 0.40, 0.30)
LANGUAGE, MODEL = (0.7, 0.2, 0.1), (0.5, 0.3, 0.2)
EXAMPLE = "First Citizen:\nBefore we proceed any further, hear me speak.\n"  # of 000, 7
SENTENCE = "To be, or not to be, that is the question."  # of 001, Tokenisation
IDS = (3, 10, 0, 5, 6, 1, 0, 10, 12, 0)  # its first ten tokens there
SPEECH = re.compile(r"(?:\A|\n\n)[^\n]+:\n(.)")  # its first character, below the speaker's name
TOP = 10
ONE_BIT = ((0.5, 0.0), (0.0, 0.5))  # p(x, y) where y = x
INDEPENDENT = ((0.25, 0.25), (0.25, 0.25))


def worked_values(seed: int) -> Values:
    """Compute the values of 002, 2: H(P) = -sum p log p, H(P, Q) = -sum p log q, D(P || Q) = sum p log(p / q), in bits.

    `identity_error` is the largest of |H(P, Q) - H(P) - D(P || Q)| and |2^H in bits - e^H in nats|. Mutual information,
    H(X) + H(Y) - H(X, Y), is 0 where X and Y are independent, and H(Y) where X determines Y.
    """
    together = entropy(LANGUAGE) + kl_divergence(LANGUAGE, MODEL)
    errors = [abs(cross_entropy(LANGUAGE, MODEL) - together)]
    errors += [
        abs(2 ** cross_entropy(RIGHT, q) - math.exp(cross_entropy(RIGHT, q, "nats"))) for q in (GOOD, BAD)
    ]
    return {
        "fair_coin": entropy((0.5, 0.5)),
        "loaded_coin": entropy((0.9, 0.1)),
        "cross_entropy_good": cross_entropy(RIGHT, GOOD),
        "cross_entropy_bad": cross_entropy(RIGHT, BAD),
        "cross_entropy_of_0.01": cross_entropy((1, 0), (0.01, 0.99)),
        "perplexity_good": perplexity(RIGHT, GOOD),
        "perplexity_bad": perplexity(RIGHT, BAD),
        "entropy": entropy(LANGUAGE),
        "kl_divergence": kl_divergence(LANGUAGE, MODEL),
        "cross_entropy": cross_entropy(LANGUAGE, MODEL),
        "identity_error": max(errors),
        "mutual_information_independent": mutual_information(INDEPENDENT),
        "mutual_information_determined": mutual_information(ONE_BIT),
    }


def uniform_baseline(seed: int, vocab_size: int) -> Values:
    """Return the loss of a model that learned nothing, H(P, uniform) = ln V in nats, and its perplexity (000, 3.3)."""
    uniform = [1 / vocab_size] * vocab_size
    return {"loss": entropy(uniform, "nats"), "perplexity": perplexity(uniform, uniform)}


def parameters_of_the_lecture(seed: int, d_model: int, vocab_size: int) -> Values:
    """Count the parameters of the lecture's model (000, 5.4): in its matrices, 2Vd + 11Ld², and in all, with biases."""
    model = preset("lecture").model.replace(d_model=d_model, vocab_size=vocab_size)
    return {
        "matrices": sum(analytic_matrices(model).values()),
        "parameters": sum(analytic_parameters(model).values()),
        "embeddings": analytic_matrices(model)["embedding"],
    }


def parameters_of_gpt(seed: int, n_layers: int, d_model: int, vocab_size: int) -> Values:
    """Count the parameters in the matrices of an untied GPT (002, 13): 12Nd² in its blocks, 12Nd² + 2Vd in total.

    `network_share` is the feed-forward networks' share of the parameters in the blocks.
    """
    model = ModelConfig(
        n_layers=n_layers,
        d_model=d_model,
        vocab_size=vocab_size,
        position=NoPositions(),
        ffn=GELU(),
        tie_embeddings=False,
    )
    parts = analytic_matrices(model)
    blocks = parts["attention"] + parts["ffn"]
    return {"blocks": blocks, "total": sum(parts.values()), "network_share": parts["ffn"] / blocks}


def balanced_depth(seed: int, d_model: int, vocab_size: int) -> Values:
    """Return the number of layers L whose parameters are as many as the embeddings': 11Ld² = 2Vd (000, 5.4)."""
    return {"layers": 2 * vocab_size / (11 * d_model)}


def example_of_the_lecture(seed: int) -> Values:
    """Count the characters and GPT-2 tokens of the example of 000, 7; `compression` is characters per token."""
    n_tokens = len(GPT2TokenizerSpec().train().encode(EXAMPLE))
    return {"characters": len(EXAMPLE), "tokens": n_tokens, "compression": len(EXAMPLE) / n_tokens}


def characters_of_the_lecture(seed: int) -> Values:
    """Tokenize the sentence of 001 by characters; `wrong_ids` of its first ten tokens differ from the lecture's."""
    tokenizer = CharTokenizerSpec().train([SENTENCE])
    ids = tokenizer.encode(SENTENCE)[: len(IDS)].tolist()
    wrong = sum(ours != theirs for ours, theirs in zip(ids, IDS, strict=True))
    return {"vocabulary": len(set(SENTENCE)), "wrong_ids": wrong}


def training_tokens(seed: int) -> Values:
    """Count the GPT-2 tokens of Tiny Shakespeare's training text (000, 7).

    Returns:
        tokens: 90% of the whole text's tokens.
        tokens_of_text: The tokens of the first 90% of its characters, which is how texts are split here.
    """
    tokenizer = GPT2TokenizerSpec()
    whole = prepare(TextData(name="shakespeare", val_fraction=0.0), tokenizer).splits["train"]
    part = prepare(TextData(name="shakespeare"), tokenizer).splits["train"]
    return {"tokens": 0.9 * len(whole), "tokens_of_text": len(part)}


def per_thousand_words(seed: int) -> Values:
    """Count the characters and GPT-2 tokens of a thousand words of Tiny Shakespeare's training text (000, 7).

    Returns:
        characters, tokens: Of a thousand words, which are separated by white space.
        shorter: How many times fewer the tokens are.
        attention_saved: The square of that: how many times fewer scores attention computes.
        larger_table: How many times larger GPT-2's embedding table is than that of the 65 characters.
    """
    text = training_text()
    n_words = len(text.split())
    tokenizer = GPT2TokenizerSpec().train()
    characters, tokens = (1000 * n / n_words for n in (len(text), len(tokenizer.encode(text))))
    return {
        "characters": characters,
        "tokens": tokens,
        "shorter": characters / tokens,
        "attention_saved": (characters / tokens) ** 2,
        "larger_table": tokenizer.vocab_size / len(set(text)),
    }


def first_letters(seed: int) -> Values:
    """Count the first letters of the speeches in Tiny Shakespeare's training text (lecture 000, section 5.7).

    A speech begins below a name, which stands alone on its line after an empty one and ends in a colon.

    Returns:
        first_letters: Rows of letter and share, of the ten most frequent.
        speeches: The number of speeches.
    """
    found = Counter(SPEECH.findall(training_text()))
    rows = [[letter, n / found.total()] for letter, n in found.most_common(TOP)]
    return {"first_letters": {"speeches": rows}, "speeches": found.total()}


def training_text() -> str:
    """Return Tiny Shakespeare's training text."""
    prepared = prepare(TextData(name="shakespeare"), CharTokenizerSpec())
    split = prepared.splits["train"]
    return prepared.tokenizer.decode(split.read(0, len(split)))


def entropy_rate(order: int) -> float:
    """H = sum over k symbols s of pi(s) H(p(. | s)) of a built-in Markov source, in nats a symbol (Shannon 1948, 7)."""
    chain = markov_chain(order)
    rows = zip(chain.stationary.tolist(), chain.probabilities, strict=True)
    return sum(weight * entropy(row, "nats") for weight, row in rows if weight > 0)


def against_the_source(run: Run) -> Values:
    """Compare a model with its Markov source (002, 2.2: cross-entropy = entropy + KL divergence), in nats a symbol.

    Returns:
        entropy_rate: The source's entropy rate, a lower bound of any model's expected loss.
        source_loss: The mean of -log p of the held-out text under the source's own probabilities, which differs from
            the entropy rate by chance.
        excess: The model's held-out loss minus `source_loss`: an estimate of the mean KL divergence.
    """
    name = run.config.data.label
    order = int(name.removeprefix(MARKOV))
    split = text_split(run)
    text = run.tokenizer.decode(split.read(0, len(split)))
    source_loss = float(markov_chain(order).surprisals(text).mean())
    assert run.val_loss is not None
    return {
        "entropy_rate": entropy_rate(order),
        "source_loss": source_loss,
        "excess": run.val_loss - source_loss,
    }
