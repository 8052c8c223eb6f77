"""R-Drop: its formula, its chunks, and what it is for each task."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from clearformer.errors import ConfigError
from clearformer.model import build
from clearformer.model.config import ModelConfig
from clearformer.training.config import RunConfig
from clearformer.training.loop import Training, TrainResult
from clearformer.training.tasks import r_drop
from clearformer.training.tasks.losses import IGNORED, summed_loss
from clearformer.training.tasks.r_drop import (
    ChunkedRDrop,
    summed_r_drop,
    summed_r_drop_of_counted,
    summed_r_drop_of_hidden,
    twice,
)

N, V, D = 7, 5, 3
LARGE = 2053  # a vocabulary that is worth chunks
TASKS = ("next_token", "translation", "classification")
every_task = pytest.mark.parametrize("task", TASKS)
Trained = Callable[..., TrainResult]
Begun = Callable[..., Training]


@pytest.fixture
def logits() -> Tensor:
    return torch.randn(2 * N, V)


@pytest.fixture
def targets() -> Tensor:
    return torch.randint(V, (N,))


# --- the formula ------------------------------------------------------------------------------------------


def kl(p: Tensor, q: Tensor) -> float:
    return (p.softmax(0) * (p.softmax(0) / q.softmax(0)).log()).sum().item()


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_it_is_both_cross_entropies_and_both_divergences(
    logits: Tensor, targets: Tensor, smoothing: float
) -> None:
    targets[2] = IGNORED
    one, other = logits[:N], logits[N:]
    expected = (summed_loss(one, targets, smoothing) + summed_loss(other, targets, smoothing)).item() / 2
    expected += sum(3 / 2 * (kl(one[i], other[i]) + kl(other[i], one[i])) / 2 for i in range(N) if i != 2)

    assert summed_r_drop(logits, targets, 3.0, smoothing).item() == pytest.approx(expected, rel=1e-5)


def test_passes_that_agree_have_the_loss_of_one(logits: Tensor, targets: Tensor) -> None:
    both = torch.cat([logits[:N], logits[:N]])

    assert summed_r_drop(both, targets, 9.0, 0.1).item() == pytest.approx(
        summed_loss(logits[:N], targets, 0.1).item(), rel=1e-6
    )


def test_targets_of_several_dimensions_are_in_the_order_of_the_rows(logits: Tensor, targets: Tensor) -> None:
    logits, targets = torch.randn(4, 3, V), torch.randint(V, (2, 3))

    assert summed_r_drop(logits, targets, 2.0) == summed_r_drop(logits.view(12, V), targets.view(6), 2.0)


# --- in chunks --------------------------------------------------------------------------------------------


def losses_and_gradients(loss: Tensor, *of: Tensor) -> tuple[Tensor, ...]:
    return loss.detach(), *torch.autograd.grad(loss * 1.7, of)  # so that a gradient comes in


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("alpha", [0.0, 5.0])
@pytest.mark.parametrize("rows", [1, 3, N, 100])
def test_in_chunks_it_is_the_formula(
    monkeypatch: pytest.MonkeyPatch, targets: Tensor, smoothing: float, alpha: float, rows: int
) -> None:
    monkeypatch.setattr(r_drop, "FEWEST_ROWS", 1)
    monkeypatch.setattr(r_drop, "CHUNK_LOGITS", 4 * rows * V)
    hidden, weight = torch.randn(2, N, D, requires_grad=True), torch.randn(V, D, requires_grad=True)

    chunked = ChunkedRDrop.apply(hidden, weight, targets, alpha, smoothing)
    formula = summed_r_drop(hidden @ weight.T, targets, alpha, smoothing)

    ours, theirs = (losses_and_gradients(each, hidden, weight) for each in (chunked, formula))  # type: ignore[arg-type]
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_the_gradient_in_chunks_is_that_of_the_loss(targets: Tensor) -> None:
    hidden = torch.randn(2, N, D, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(V, D, dtype=torch.float64, requires_grad=True)

    assert torch.autograd.gradcheck(lambda *of: ChunkedRDrop.apply(*of, targets, 5.0, 0.1), (hidden, weight))


def test_in_chunks_of_bfloat16_it_is_the_formula_but_for_rounding(targets: Tensor) -> None:
    hidden, weight = (torch.randn(*size, D).bfloat16().requires_grad_() for size in ((2, N), (V,)))

    chunked = losses_and_gradients(ChunkedRDrop.apply(hidden, weight, targets, 5.0, 0.1), hidden, weight)  # type: ignore[arg-type]

    exact = [each.detach().double().requires_grad_() for each in (hidden, weight)]
    expected = losses_and_gradients(summed_r_drop(exact[0] @ exact[1].T, targets, 5.0, 0.1), *exact)
    assert [each.dtype for each in chunked] == [torch.float32, torch.bfloat16, torch.bfloat16]
    for a, b in zip(chunked, expected, strict=True):
        torch.testing.assert_close(a.double(), b.double(), atol=0.1, rtol=0.05)


def test_in_chunks_of_nothing_it_is_nothing() -> None:
    hidden, weight = torch.randn(2, 0, D, requires_grad=True), torch.randn(V, D, requires_grad=True)

    loss = ChunkedRDrop.apply(hidden, weight, torch.zeros(0, dtype=torch.long), 5.0, 0.1)

    assert loss == 0
    assert torch.equal(losses_and_gradients(loss, weight)[1], torch.zeros(V, D))  # type: ignore[arg-type]


@pytest.mark.parametrize(("vocab_size", "in_chunks"), [(V, False), (LARGE, True)])
def test_of_hidden_vectors_it_is_that_of_their_logits(
    monkeypatch: pytest.MonkeyPatch, vocab_size: int, in_chunks: bool
) -> None:
    calls = []
    apply = ChunkedRDrop.apply
    monkeypatch.setattr(ChunkedRDrop, "apply", lambda *a: (calls.append(a), apply(*a))[1])
    model = build(ModelConfig(vocab_size=vocab_size, d_model=4, n_layers=1))
    hidden = torch.randn(4, 3, 4, requires_grad=True)
    targets = torch.tensor([[0, IGNORED, 2], [IGNORED, 1, 4]])

    loss = summed_r_drop_of_hidden(model, hidden, targets, 5.0, 0.1)

    assert in_chunks == bool(calls)
    whole = summed_r_drop(model.unembed(hidden), targets, 5.0, 0.1)
    counted = summed_r_drop_of_counted(
        model, hidden.view(2, 6, 4)[:, targets.view(-1) >= 0], targets[targets >= 0], 5.0, 0.1, at_once=True
    )
    for other in (whole, counted):
        torch.testing.assert_close(loss, other, atol=1e-5, rtol=1e-5)
        ours, theirs = (torch.autograd.grad(each, hidden, retain_graph=True)[0] for each in (loss, other))
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


# --- tasks ------------------------------------------------------------------------------------------------


@every_task
def test_without_dropout_in_effect_it_is_the_loss_of_one_pass(begun: Begun, task: str) -> None:
    settings = ("model.dropout=0.4", "train.label_smoothing=0.1")
    plain, both = begun("a", task, *settings), begun("b", task, *settings, "train.r_drop=5")

    losses = [each.task.loss(plain.model.eval(), *each.task.batch(0, 0, 1)) for each in (plain, both)]

    torch.testing.assert_close(*losses)


@every_task
def test_it_is_that_of_two_passes_with_other_dropout(begun: Begun, task: str) -> None:
    training = begun("a", task, "model.dropout=0.4", "train.r_drop=5")
    batch = training.task.batch(0, 0, 1)
    targets = batch[training.task.targets_at]  # type: ignore[index]
    places = {"translation": (0, 2, 1), "next_token": (0,), "classification": (0, 1)}[task]
    inputs = [batch[place] for place in places]
    weight = batch[-1] if len(batch) > 2 else 1 / targets.numel()

    torch.manual_seed(1)
    loss = training.task.loss(training.model.train(), *batch)

    torch.manual_seed(1)
    logits = training.model(*twice(*inputs))
    one, other = logits.chunk(2)
    assert not torch.allclose(one, other)
    torch.testing.assert_close(loss, weight * summed_r_drop(logits, targets, 5.0))


@every_task
def test_a_batch_in_parts_has_the_same_gradient(begun: Begun, task: str) -> None:
    training = begun("a", task, "model.dropout=0.4", "train.r_drop=5", "train.label_smoothing=0.1")
    training.model.eval()
    found = []
    for n_parts in (1, 3):
        training.model.zero_grad()
        for part in range(n_parts):
            loss = training.task.loss(training.model, *training.task.batch(1, part, n_parts))
            (loss / n_parts).backward()
        found.append([p.grad.clone() for p in training.model.parameters() if p.grad is not None])

    for whole, parts in zip(*found, strict=True):
        torch.testing.assert_close(parts, whole, atol=1e-6, rtol=1e-4)


@every_task
def test_it_changes_what_is_learned_and_is_the_same_each_time(trained: Trained, task: str) -> None:
    settings = ("model.dropout=0.3", "train.max_steps=3", "train.optimizer=adam")
    weights = [
        torch.cat([p.flatten() for p in trained(name, task, *settings, *more).model.parameters()])
        for name, *more in (
            ("a",),
            ("b", "train.r_drop=5"),
            ("c", "train.r_drop=5"),
            ("d", "train.r_drop=50"),
        )
    ]

    assert torch.equal(weights[1], weights[2])
    assert not torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[1], weights[3])


def test_an_objective_without_such_a_loss_refuses_it(configure: Callable[..., RunConfig]) -> None:
    with pytest.raises(
        ConfigError, match=r"train\.r_drop: train\.objective\.kind=masked has no two-pass loss"
    ):
        configure("masked", "train.r_drop=5", "model.dropout=0.1")


@every_task
def test_without_dropout_it_is_refused(configure: Callable[..., RunConfig], task: str) -> None:
    with pytest.raises(ConfigError, match=r"train\.r_drop: .* model\.dropout=0 makes them equal"):
        configure(task, "train.r_drop=5")


@pytest.mark.parametrize("alpha", ["-1", "nan"])
def test_a_factor_below_0_is_refused(configure: Callable[..., RunConfig], alpha: Any) -> None:
    with pytest.raises(ConfigError, match=r"train\.r_drop"):
        configure("next_token", f"train.r_drop={alpha}", "model.dropout=0.1")
