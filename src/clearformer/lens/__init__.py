"""Looking inside a trained model: every number in it, taken apart into named parts that sum to it.

    logits, cache = lens.run_with_cache(run, text)        cache["pattern", 0]
    lens.ledger(run, text, target=" the", foil=" a")      a logit, by what wrote it
    lens.score(run, text, layer=1, head=0, key=3)         an attention score, by who wrote both sides
    lens.sources(run, text)                               a logit, by source token
    lens.logit_lens(run, text)                            the prediction of every layer
    lens.attention(run, text), lens.alignment(run, text)  who reads whom
    lens.next_tokens(run, text), lens.positions(run), lens.tokens(run, text)
    lens.embed(run, text), lens.word_similarity(run, word, texts)

Each is a value (`to_dict()`), shows itself as a table in a notebook, and draws itself: `.figure("name.png")`.
"""

from clearformer.lens.activations import run_with_cache
from clearformer.lens.embeddings import Embedded, embed
from clearformer.lens.inputs import Inputs, quiet, read
from clearformer.lens.ledgers import Ledger, Part, Score, Sources, ledger, score, sources
from clearformer.lens.patterns import Alignment, AttentionPatterns, alignment, attention
from clearformer.lens.positions import PositionTable, positions
from clearformer.lens.predictions import (
    LogitLens,
    NextTokens,
    TunedLens,
    logit_lens,
    next_tokens,
    tune,
)
from clearformer.lens.showing import Shown, Table
from clearformer.lens.tokens import TokenTable, tokens
from clearformer.lens.words import similarity_table, word_similarity

__all__ = [
    "Alignment",
    "AttentionPatterns",
    "Embedded",
    "Inputs",
    "Ledger",
    "LogitLens",
    "NextTokens",
    "Part",
    "PositionTable",
    "Score",
    "Shown",
    "Sources",
    "Table",
    "TokenTable",
    "TunedLens",
    "alignment",
    "attention",
    "embed",
    "ledger",
    "logit_lens",
    "next_tokens",
    "positions",
    "quiet",
    "read",
    "run_with_cache",
    "score",
    "similarity_table",
    "sources",
    "tokens",
    "tune",
    "word_similarity",
]
