"""What is set to 0 at random."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from clearformer.model.fast.random_bits import N_DRAWS, dropout, dropout_factors, n_dropped_of

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


@given(
    st.one_of(
        st.floats(0, 1, exclude_max=True),
        st.floats(0, 2**-14),
        st.floats(0, 2**-14, exclude_min=True).map(lambda p: 1 - p).filter(lambda p: p < 1),
    )
)
@example(p=0.999993)
@example(p=1 - 1e-9)
@example(p=1 - 2**-17)
@example(p=2**-17)
@settings(max_examples=60)
def test_at_any_probability_the_expectation_is_x(p: float) -> None:
    """The part that is kept, by what it is multiplied with, is 1; and the part is 1 - p to the bits that are drawn."""
    kept, factor = 1 - n_dropped_of(p) / 2**16, N_DRAWS / (N_DRAWS - n_dropped_of(p))
    assert kept * factor == pytest.approx(1, rel=1e-15)
    assert abs(1 - p - kept) <= 2**-17 or (p > 1 - 2**-16 and kept == 2**-16)

    out = dropout_factors(MANY, p)

    assert_kept(out, kept, factor)


@pytest.mark.parametrize("p", [2**-15, 0.3, 0.999993, 1 - 1e-12])
def test_compiled_it_is_the_same(p: float) -> None:
    compiled = torch.compile(lambda x: dropout(x, p), backend="aot_eager", fullgraph=True)
    torch.manual_seed(1)
    plain = dropout(MANY, p)
    torch.manual_seed(1)
    assert torch.equal(compiled(MANY), plain)


def assert_kept(out: Tensor, part: float, factor: float) -> None:
    n = out.numel()
    assert set(out.unique().tolist()) <= {0.0, torch.tensor(factor).item()}
    n_kept = int((out != 0).sum())
    assert abs(n_kept - n * part) <= 6 * (n * part * (1 - part)) ** 0.5 + 6
