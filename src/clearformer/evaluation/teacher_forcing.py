"""Evaluating a model on given translations: it predicts every target token from the source and the tokens before it."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch

from clearformer.data import PairSplit, batches_in_order
from clearformer.decoding import evaluating
from clearformer.decoding.arguments import OnStep
from clearformer.device import autocast
from clearformer.errors import DataError
from clearformer.evaluation.language_model import perplexity_of
from clearformer.evaluation.meter import TokenLossMeter, counted
from clearformer.model import EncoderDecoder
from clearformer.results import plain
from clearformer.text import Tokenizer

BATCH_TOKENS = 4096  # the most tokens that are read at once


@dataclass(frozen=True)
class PairLoss:
    """How well a model predicts the targets of some pairs.

    Attributes:
        loss: The mean of -log p(token), in nats, never smoothed.
        accuracy: The share of tokens that were the model's first choice.
        n_tokens: Tokens predicted, each target's <eos> included.
        n_pairs: Pairs read.
        split: The split's name.
    """

    loss: float
    accuracy: float
    n_tokens: int
    n_pairs: int
    split: str

    @property
    def perplexity(self) -> float:
        """exp(loss)."""
        return perplexity_of(self.loss)

    def to_json(self) -> dict[str, Any]:
        """Return all values for `json.dumps`; a number that is not finite becomes None."""
        derived = {"perplexity": self.perplexity, "bits_per_token": self.loss / math.log(2)}
        return plain(asdict(self) | derived)


def evaluate_pairs(
    model: EncoderDecoder,
    split: PairSplit,
    tokenizer: Tokenizer,
    *,
    dtype: torch.dtype | None = None,
    on_step: OnStep = lambda *_: None,
) -> PairLoss:
    """Measure how well a model predicts the target of every pair in a split.

    It draws no random numbers and restores the model's mode.

    Args:
        model: The model, on any device.
        split: The pairs.
        tokenizer: Their tokenizer.
        dtype: The type of the matrix products (autocast); by default as around the call.
        on_step: Called after each batch with the number of pairs done and the total.

    Raises:
        DataError: the split has no pairs.
    """
    if not len(split):
        raise DataError(f"the {split.name} split has no pairs to evaluate a model on")
    device = model.embed.weight.device
    sums = TokenLossMeter()
    with evaluating(model) as threads, torch.inference_mode(), autocast(device, dtype):
        batches = batches_in_order(split, tokenizer, BATCH_TOKENS, max_tokens=model.config.max_seq_len)
        for batch in counted(batches, lambda batch: len(batch.source), len(split), on_step):
            threads.adapt()
            source, padding, tokens, targets = (
                torch.from_numpy(array).to(device)
                for array in (batch.source, batch.source_padding, batch.tokens, batch.targets)
            )
            sums.add(model.unembed, model.hidden(source, tokens, padding), targets)
    return PairLoss(sums.loss / sums.n, sums.n_right / sums.n, sums.n, len(split), split.name)
