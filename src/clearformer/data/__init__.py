"""From texts, pairs and labelled texts to batches of tokens: sources, splits, files and order; without torch."""

from clearformer.data.kinds import (
    BUILT_IN_BY_KIND,
    Data,
    PrepareConfig,
    Prepared,
    form_of,
    kind_of,
    prepare_data,
    section_settings,
)
from clearformer.data.labelled.config import LabelledData
from clearformer.data.pairs.batches import PairBatch, PairBatches, batches_in_order
from clearformer.data.pairs.config import PairsData
from clearformer.data.pairs.files import PairSplit
from clearformer.data.pairs.preparing import PairDataset, prepare_pairs
from clearformer.data.pairs.sources import BUILT_IN_PAIRS, open_pairs
from clearformer.data.shards import ShardError, Split
from clearformer.data.text.batches import Batches
from clearformer.data.text.config import TextData
from clearformer.data.text.preparing import Dataset, Progress, prepare
from clearformer.data.text.sources import BUILT_IN, open_source

__all__ = [
    "BUILT_IN",
    "BUILT_IN_BY_KIND",
    "BUILT_IN_PAIRS",
    "Batches",
    "Data",
    "Dataset",
    "LabelledData",
    "PairBatch",
    "PairBatches",
    "PairDataset",
    "PairSplit",
    "PairsData",
    "PrepareConfig",
    "Prepared",
    "Progress",
    "ShardError",
    "Split",
    "TextData",
    "batches_in_order",
    "form_of",
    "kind_of",
    "open_pairs",
    "open_source",
    "prepare",
    "prepare_data",
    "prepare_pairs",
    "section_settings",
]
