"""Texts to batches of tokens: sources, splits, shards and order. No torch."""

from clearformer.data.batches import Batches
from clearformer.data.config import TextData
from clearformer.data.preparing import Dataset, prepare
from clearformer.data.shards import ShardError, Split
from clearformer.data.sources import BUILT_IN, open_source

__all__ = ["BUILT_IN", "Batches", "TextData", "Dataset", "ShardError", "Split", "open_source", "prepare"]
