import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from clearformer.model import Transformer, build
from clearformer.model.config import ModelConfig
from clearformer.training.tasks import losses
from clearformer.training.tasks.losses import (
    IGNORED,
    ChunkedLoss,
    in_chunks_is_faster,
    next_token_loss,
    summed_loss,
    summed_loss_of_hidden,
)

B, T, V = 2, 3, 5
N, D = 7, 3  # rows of hidden vectors and their width
LARGE = 2053  # a vocabulary that is worth chunks


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


# --- the sum over what counts -----------------------------------------------------------------------------


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_the_sum_leaves_out_what_does_not_count(logits: Tensor, targets: Tensor, smoothing: float) -> None:
    targets[0, 1] = targets[1, 2] = IGNORED
    counts = targets != IGNORED

    total = summed_loss(logits, targets, smoothing)

    mean = next_token_loss(logits[counts][None], targets[counts][None], smoothing)
    assert total.item() == pytest.approx(mean.item() * 4, rel=1e-6)


# --- in chunks --------------------------------------------------------------------------------------------


def losses_and_gradients(loss: Tensor, hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    d_hidden, d_weight = torch.autograd.grad(loss * 1.7, (hidden, weight))  # so that a gradient comes in
    return loss.detach(), d_hidden, d_weight


def formula(hidden: Tensor, weight: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    return F.cross_entropy(hidden @ weight.T, targets, label_smoothing=smoothing, reduction="sum")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("rows", [1, 3, N, 100])
def test_in_chunks_it_is_the_formula(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, smoothing: float, rows: int
) -> None:
    monkeypatch.setattr(losses, "FEWEST_ROWS", 1)
    monkeypatch.setattr(losses, "CHUNK_LOGITS", rows * V + V - 1)
    hidden = torch.randn(N, D, dtype=dtype, requires_grad=True)
    weight = torch.randn(V, D, dtype=dtype, requires_grad=True)
    targets = torch.randint(V, (N,))

    chunked = losses_and_gradients(ChunkedLoss.apply(hidden, weight, targets, smoothing), hidden, weight)  # type: ignore[arg-type]

    expected = losses_and_gradients(formula(hidden, weight, targets, smoothing), hidden, weight)
    rounding = 1e-12 if dtype == torch.float64 else 5e-6
    for ours, theirs in zip(chunked, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=rounding, rtol=rounding)


def test_in_chunks_of_bfloat16_it_is_the_formula_but_for_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "FEWEST_ROWS", 1)
    monkeypatch.setattr(losses, "CHUNK_LOGITS", 2 * V)
    hidden, weight = (torch.randn(size, D).bfloat16().requires_grad_() for size in (N, V))
    exact_hidden, exact_weight = (tensor.detach().double().requires_grad_() for tensor in (hidden, weight))
    targets = torch.randint(V, (N,))

    chunked = losses_and_gradients(ChunkedLoss.apply(hidden, weight, targets, 0.1), hidden, weight)  # type: ignore[arg-type]

    exact = formula(exact_hidden, exact_weight, targets, 0.1)
    assert [tensor.dtype for tensor in chunked] == [torch.float32, torch.bfloat16, torch.bfloat16]
    for ours, theirs in zip(chunked, losses_and_gradients(exact, exact_hidden, exact_weight), strict=True):
        torch.testing.assert_close(ours.double(), theirs, atol=0.05, rtol=0.02)


def test_in_chunks_it_is_the_formula_for_logits_of_any_size() -> None:
    """As far apart as a target whose probability is no number of float32, and all of them far from 0."""
    hidden = torch.tensor([[1.0, 200.0], [-1.0, 200.0]], requires_grad=True)
    weight = torch.tensor([[150.0, 1.0], [-150.0, 1.0], [0.0, 1.0]], requires_grad=True)
    targets = torch.tensor([1, 1])

    chunked = losses_and_gradients(ChunkedLoss.apply(hidden, weight, targets, 0.1), hidden, weight)  # type: ignore[arg-type]

    expected = losses_and_gradients(formula(hidden, weight, targets, 0.1), hidden, weight)
    assert expected[0].item() == pytest.approx(0.9 * 300 + 0.1 / 3 * 900)
    for ours, theirs in zip(chunked, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-5)


def test_in_chunks_of_nothing_it_is_nothing() -> None:
    hidden, weight = torch.randn(0, D, requires_grad=True), torch.randn(V, D, requires_grad=True)

    loss, d_hidden, d_weight = losses_and_gradients(
        ChunkedLoss.apply(hidden, weight, torch.zeros(0, dtype=torch.long), 0.1),  # type: ignore[arg-type]
        hidden,
        weight,
    )

    assert loss == 0
    assert d_hidden.shape == (0, D)
    assert torch.equal(d_weight, torch.zeros(V, D))


# --- of what a model is about to unembed ------------------------------------------------------------------


def model_of(vocab_size: int = LARGE, **settings: object) -> Transformer:
    model = build(ModelConfig(vocab_size=vocab_size, d_model=4, n_layers=1, **settings))  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()  # a bias of zeros would hide that it is left out
    return model


@pytest.mark.parametrize(
    ("settings", "in_chunks"),
    [
        ({}, True),
        ({"vocab_size": V}, False),
        ({"tie_embeddings": False}, False),
        ({"head_bias": True}, False),
        ({"logit_soft_cap": 5.0}, False),
        ({"scale_logits": True}, False),
    ],
    ids=str,
)
def test_whatever_the_head_the_loss_is_that_of_its_logits(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, object], in_chunks: bool
) -> None:
    calls = []
    apply = ChunkedLoss.apply
    monkeypatch.setattr(ChunkedLoss, "apply", lambda *a: (calls.append(a), apply(*a))[1])
    model = model_of(**settings)  # type: ignore[arg-type]
    hidden = torch.randn(B, T, 4, requires_grad=True)
    targets = torch.tensor([[0, IGNORED, 2], [IGNORED, 1, 4]])

    loss = summed_loss_of_hidden(model, hidden, targets, 0.1)

    assert in_chunks_is_faster(model, hidden) == in_chunks == bool(calls)
    whole = summed_loss(model.unembed(hidden), targets, 0.1)
    ours, theirs = (
        torch.autograd.grad(total, [hidden, *model.parameters()], allow_unused=True)
        for total in (loss, whole)
    )
    torch.testing.assert_close(loss, whole, atol=1e-5, rtol=1e-5)
    assert torch.equal(ours[0][targets == IGNORED], torch.zeros(2, 4))
    for a, b in zip(ours, theirs, strict=True):
        if a is not None or b is not None:
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("vocab_size", [V, LARGE])
def test_where_nothing_counts_the_loss_is_nothing(vocab_size: int) -> None:
    model = model_of(vocab_size)
    hidden = torch.randn(B, T, 4, requires_grad=True)

    loss = summed_loss_of_hidden(model, hidden, torch.full((B, T), IGNORED), 0.1)
    loss.backward()

    assert loss == 0
    assert torch.equal(hidden.grad, torch.zeros(B, T, 4))  # type: ignore[arg-type]


def test_under_autocast_chunks_are_of_its_type(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    apply = ChunkedLoss.apply
    monkeypatch.setattr(
        ChunkedLoss, "apply", lambda h, w, *a: (seen.append((h.dtype, w.dtype)), apply(h, w, *a))[1]
    )
    model, hidden = model_of(), torch.randn(B, T, 4)
    targets = torch.zeros(B, T, dtype=torch.long)

    with torch.autocast("cpu", torch.bfloat16):
        coarse = summed_loss_of_hidden(model, hidden, targets)
    exact = summed_loss_of_hidden(model, hidden, targets)

    assert seen == [(torch.bfloat16,) * 2, (torch.float32,) * 2]
    assert coarse != exact
    assert coarse.item() == pytest.approx(exact.item(), rel=0.02)


def test_in_chunks_of_bfloat16_a_smoothed_target_is_not_rounded() -> None:
    """0.9 * 16.125 is 14.5 in bfloat16."""
    hidden = torch.ones(1, 1, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.tensor([[16.125], [2.0], [0.5]], dtype=torch.bfloat16, requires_grad=True)
    targets = torch.tensor([0])
    exact = formula(hidden.double(), weight.double(), targets, 0.1)
    ours: Any = ChunkedLoss.apply(hidden, weight, targets, 0.1)
    assert ours.item() == pytest.approx(exact.item(), abs=1e-5)
