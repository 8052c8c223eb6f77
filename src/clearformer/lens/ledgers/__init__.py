"""Ledgers: one number inside a model as a sum of named parts."""

from clearformer.lens.ledgers.residual import Ledger, Part, ledger
from clearformer.lens.ledgers.scores import Pair, Score, score
from clearformer.lens.ledgers.sources import Source, Sources, sources

__all__ = ["Ledger", "Pair", "Part", "Score", "Source", "Sources", "ledger", "score", "sources"]
