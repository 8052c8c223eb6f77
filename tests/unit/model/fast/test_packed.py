"""Products by weights that are laid out beforehand: equal to torch's, and of the weights as they are now."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearformer.model.fast import packed
from clearformer.model.fast.packed import PackedWeights, is_worth_it, packed_linear

from ....seeding import seed

N_OUT, N_IN, N = 331, 263, 7


@pytest.fixture
def weight() -> nn.Parameter:
    seed(0)
    return nn.Parameter(torch.randn(N_OUT, N_IN) / N_IN**0.5)


@pytest.fixture
def by_onednn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the products that oneDNN makes."""
    sizes, product = [], packed._product

    def counted(x: Tensor, laid_out: Any, bias: Tensor | None) -> Tensor:
        sizes.append(x.numel())
        return product(x, laid_out, bias)

    monkeypatch.setattr(packed, "_product", counted)
    return sizes


@torch.no_grad()
@pytest.mark.parametrize("shape", [(N, N_IN), (N, 1, N_IN), (3, N_IN)])
@pytest.mark.parametrize("bias", [None, torch.linspace(-1, 1, N_OUT)])
def test_the_product_is_the_same(
    weight: nn.Parameter, by_onednn: list[int], shape: tuple[int, ...], bias: Tensor | None
) -> None:
    x, held = torch.randn(shape), PackedWeights.of([weight], N)

    torch.testing.assert_close(
        packed_linear(x, weight, bias), F.linear(x, weight, bias), atol=1e-5, rtol=1e-5
    )

    assert by_onednn == [x.numel()]
    assert len(held.matrices) == 1


@torch.no_grad()
def test_weights_that_nobody_holds_are_as_they_were(weight: nn.Parameter, by_onednn: list[int]) -> None:
    x = torch.randn(N, N_IN)
    held = PackedWeights.of([weight], N)
    del held

    assert torch.equal(packed_linear(x, weight), F.linear(x, weight))
    assert by_onednn == []


@torch.no_grad()
def test_a_square_matrix_is_not_mistaken_for_its_transpose(by_onednn: list[int]) -> None:
    weight, x = torch.randn(N_IN, N_IN), torch.randn(N, N_IN)
    held = PackedWeights.of([weight], N)

    assert torch.equal(packed_linear(x, weight.T), F.linear(x, weight.T))
    assert by_onednn == []
    assert len(held.matrices) == 1


@torch.no_grad()
def test_weights_that_have_changed_are_not_mistaken_for_those_laid_out(
    weight: nn.Parameter, by_onednn: list[int]
) -> None:
    x, held = torch.randn(N, N_IN), PackedWeights.of([weight], N)

    weight.mul_(2)

    assert torch.equal(packed_linear(x, weight), F.linear(x, weight))
    assert torch.equal(packed_linear(x[:, :5], weight[:, :5]), F.linear(x[:, :5], weight[:, :5]))
    assert by_onednn == []
    assert len(held.matrices) == 1


@torch.no_grad()
def test_a_torch_without_these_functions_multiplies_all_the_same(
    weight: nn.Parameter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: Any) -> Any:
        raise AttributeError("no _reorder_linear_weight")

    monkeypatch.setattr(packed, "_lay_out", missing)
    x, held = torch.randn(N, N_IN), PackedWeights.of([weight], N)

    assert held.matrices == ()
    assert torch.equal(packed_linear(x, weight), F.linear(x, weight))


def test_what_is_laid_out(weight: nn.Parameter, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_worth_it(weight, N)
    assert not is_worth_it(weight, 1)
    assert not is_worth_it(weight, 65)
    assert not is_worth_it(weight.double(), N)
    assert not is_worth_it(weight[:5], N)
    with torch.inference_mode():
        assert (
            PackedWeights.of([torch.randn(N_OUT, N_IN)], N).matrices == ()
        )  # which torch tells no changes of
    monkeypatch.setattr(packed, "MOST_BYTES", 4 * N_OUT * N_IN - 1)
    assert PackedWeights.of([weight], N).matrices == ()


@torch.no_grad()
def test_two_holders_of_one_matrix(weight: nn.Parameter, by_onednn: list[int]) -> None:
    x, first = torch.randn(N, N_IN), PackedWeights.of([weight], N)
    second = PackedWeights.of([weight], N)
    del first

    packed_linear(x, weight)

    assert len(by_onednn) == len(second.matrices) == 1
