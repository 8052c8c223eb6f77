"""Evaluating a model on masked tokens."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from clearformer.data.masking import MaskedBatch
from clearformer.decoding import evaluating
from clearformer.device import autocast
from clearformer.evaluation.language_model import perplexity_of
from clearformer.evaluation.meter import TokenLossMeter
from clearformer.model import Encoder
from clearformer.results import plain


@dataclass(frozen=True)
class MaskedEvaluation:
    """How well a model predicts the tokens chosen by masking (see `data/masking.py`), always the same ones.

    Attributes:
        loss: The mean of -log p(token), in nats.
        accuracy: The share of tokens that were the model's first choice.
        n_tokens: Tokens predicted.
    """

    loss: float
    accuracy: float
    n_tokens: int

    @property
    def perplexity(self) -> float:
        """exp(loss) of the masked tokens, not comparable with that of a model that reads from left to right."""
        return perplexity_of(self.loss)

    def to_json(self) -> dict[str, Any]:
        """Return all values for `json.dumps`; a number that is not finite becomes None."""
        return plain(asdict(self) | {"perplexity": self.perplexity})


def evaluate_masked(
    model: Encoder, batches: Iterable[MaskedBatch], *, dtype: torch.dtype | None = None
) -> MaskedEvaluation | None:
    """Evaluate a model on all masked tokens of some batches, restoring its mode.

    Return None if nothing is masked, as in rows that consist of [UNK] alone.
    """
    device = model.embed.weight.device
    sums = TokenLossMeter()
    with evaluating(model) as threads, torch.inference_mode(), autocast(device, dtype):
        for batch in batches:
            threads.adapt()
            tokens, padding, targets = (torch.from_numpy(array).to(device) for array in batch)
            sums.add(model.unembed, model.hidden(tokens, padding), targets)
    return MaskedEvaluation(sums.loss / sums.n, sums.n_right / sums.n, sums.n) if sums.n else None
