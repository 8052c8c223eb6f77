"""What is set to 0 at random."""

import pytest
import torch

from clearformer.model.dropout import dropout, dropout_factors

MANY = torch.ones(500, 401)  # an odd number of them: four are drawn at a time


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_each_number_is_0_with_its_probability_and_larger_otherwise(p: float, dtype: torch.dtype) -> None:
    out = dropout(MANY.to(dtype), p)

    assert out.dtype == dtype
    assert (out == 0).float().mean().item() == pytest.approx(p, abs=0.004)  # 4 standard deviations
    [larger] = out[out != 0].unique().tolist()
    assert larger == pytest.approx(1 / (1 - p), rel=1e-4 if dtype != torch.bfloat16 else 2**-8)


def test_neighbours_are_drawn_apart() -> None:
    """Four numbers share 64 random bits: whether one is kept says nothing of the next ones."""
    kept = (dropout_factors(MANY, 0.5).flatten()[: 4 * 50_000].view(-1, 4) > 0).double()
    correlations = torch.corrcoef(kept.T) - torch.eye(4)
    assert correlations.abs().max() < 0.02


def test_the_gradient_passes_where_a_number_was_kept() -> None:
    x = torch.randn(20, 30, requires_grad=True)
    out = dropout(x, 0.25)
    out.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.where(out == 0, 0.0, 1 / 0.75))


def test_it_follows_the_seed() -> None:
    draws = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        draws.append(dropout(MANY, 0.3))
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (3, 5, 7)])
def test_any_shape(shape: tuple[int, ...]) -> None:
    assert dropout(torch.ones(shape), 0.5).shape == shape


def test_where_nothing_is_dropped_nothing_is_done() -> None:
    assert dropout(MANY, 0.5, training=False) is MANY
    assert dropout(MANY, 0.0) is MANY


def test_a_probability_near_1_keeps_numbers_finite() -> None:
    assert torch.isfinite(dropout(MANY, 1 - 1e-9)).all()
