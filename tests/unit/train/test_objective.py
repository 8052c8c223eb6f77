import math

import pytest
import torch
from torch import Tensor

from clearformer.train.objective import next_token_loss

B, T, V = 2, 3, 5


@pytest.fixture
def logits() -> Tensor:
    return torch.randn(B, T, V)


@pytest.fixture
def targets() -> Tensor:
    return torch.tensor([[0, 4, 2], [1, 1, 3]])


def logprob(logits: Tensor, b: int, t: int, token: int) -> float:
    scores = [math.exp(score) for score in logits[b, t].tolist()]
    return math.log(scores[token] / sum(scores))


def test_equal_scores_cost_the_logarithm_of_the_vocabulary_in_nats() -> None:
    loss = next_token_loss(torch.full((B, T, V), 3.0), torch.zeros(B, T, dtype=torch.long))

    assert loss.item() == pytest.approx(math.log(V))


def test_it_is_the_mean_over_all_positions(logits: Tensor, targets: Tensor) -> None:
    losses = [-logprob(logits, b, t, int(targets[b, t])) for b in range(B) for t in range(T)]

    assert next_token_loss(logits, targets).item() == pytest.approx(sum(losses) / (B * T), rel=1e-6)


def test_label_smoothing_gives_every_token_its_part(logits: Tensor, targets: Tensor) -> None:
    smoothing, total = 0.3, 0.0
    for b in range(B):
        for t in range(T):
            for token in range(V):
                wanted = smoothing / V + (1 - smoothing) * (token == targets[b, t].item())
                total -= wanted * logprob(logits, b, t, token)

    assert next_token_loss(logits, targets, smoothing).item() == pytest.approx(total / (B * T), rel=1e-6)


def test_it_is_computed_in_float32_from_bfloat16_scores(logits: Tensor, targets: Tensor) -> None:
    coarse = logits.bfloat16()

    loss = next_token_loss(coarse, targets)

    assert loss.dtype == torch.float32
    assert loss == next_token_loss(coarse.float(), targets)
