import math
from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from clearformer.training.optim.muon import (
    POLAR_EXPRESS,
    SAFETY,
    MuonOptimizer,
    agreeing,
    orthogonalize,
)


def matrix_with(singular_values: Sequence[float], n_rows: int, n_cols: int) -> Tensor:
    """A random matrix of given singular values."""
    n = len(singular_values)
    u = torch.linalg.qr(torch.randn(n_rows, n, dtype=torch.float64)).Q
    v = torch.linalg.qr(torch.randn(n_cols, n, dtype=torch.float64)).Q
    return u @ torch.diag(torch.tensor(singular_values, dtype=torch.float64)) @ v.mT


@pytest.mark.parametrize(
    ("dtype", "beside"), [(torch.bfloat16, 0.03), (torch.float32, 1e-5)], ids=["bfloat16", "float32"]
)
@pytest.mark.parametrize(("n_rows", "n_cols"), [(5, 13), (13, 5), (5, 5)])
def test_orthogonalize_keeps_the_singular_vectors_and_brings_the_values_to_about_one(
    n_rows: int, n_cols: int, dtype: torch.dtype, beside: float
) -> None:
    matrix = matrix_with([3.0, 1.0, 0.5, 0.2, 0.1], n_rows, n_cols)
    u, _, vt = torch.linalg.svd(matrix, full_matrices=False)

    result = orthogonalize(matrix.float()[None], 5, dtype)[0].double()

    in_its_axes = u[:, :5].mT @ result @ vt[:5].mT  # diagonal where the vectors are the same
    values = in_its_axes.diagonal()
    assert ((values > 0.6) & (values < 1.3)).all()
    assert (in_its_axes - values.diag()).abs().max() < beside
    assert torch.linalg.norm(result - u[:, :5] @ in_its_axes @ vt[:5]) < 4 * beside  # and nothing beside them


def test_orthogonalize_takes_each_matrix_of_a_batch_by_itself() -> None:
    matrices = torch.stack([torch.randn(5, 3), 1000 * torch.randn(5, 3)])

    together = orthogonalize(matrices, iterations=5)

    for matrix, result in zip(matrices, together, strict=True):
        torch.testing.assert_close(result, orthogonalize(matrix[None], iterations=5)[0], atol=1e-5, rtol=0)


def test_orthogonalize_leaves_zeros_alone() -> None:
    assert not orthogonalize(torch.zeros(1, 3, 5), iterations=5).any()


def polar(s: Tensor, iterations: int) -> Tensor:
    """What becomes of singular values."""
    s = s / SAFETY
    for a, b, c in POLAR_EXPRESS[:iterations]:
        s = a * (s / SAFETY) + b * (s / SAFETY) ** 3 + c * (s / SAFETY) ** 5
    return s


@pytest.mark.parametrize(
    ("iterations", "lowest", "highest"), [(1, 0.008, 2.0), (3, 0.12, 1.9), (5, 0.8, 1.2), (7, 0.999, 1.001)]
)
def test_each_iteration_brings_all_singular_values_from_a_thousandth_on_nearer_to_one(
    iterations: int, lowest: float, highest: float
) -> None:
    values = polar(torch.linspace(0.001, 1, 1000, dtype=torch.float64), iterations)

    assert lowest < values.min()
    assert values.max() < highest


def test_later_iterations_are_all_the_last_one() -> None:
    matrix = matrix_with([1.0, 0.5, 0.1], 5, 3).float()

    values = torch.linalg.svdvals(orthogonalize(matrix[None], iterations=12)[0].float())

    torch.testing.assert_close(values, torch.ones(3), atol=0.01, rtol=0)


def nearest_orthogonal(matrix: Tensor) -> Tensor:
    """The iterations on the exact singular values, in float64."""
    u, s, vt = torch.linalg.svd(matrix.double(), full_matrices=False)
    s = s / s.norm()
    return u @ polar(s, iterations=6).diag() @ vt


@pytest.mark.parametrize("shape", [(5, 3), (3, 5)])
def test_muons_steps_by_hand(shape: tuple[int, int]) -> None:
    """Two steps in float64 from the paper's formulas, the second of them with momentum."""
    parameter = nn.Parameter(torch.randn(shape))
    optimizer = MuonOptimizer([parameter], lr=0.1, momentum=0.9, weight_decay=0.2, iterations=6)
    weight, average = parameter.detach().double(), torch.zeros(shape, dtype=torch.float64)
    for _ in range(2):
        gradient = torch.randn(shape)
        average = 0.9 * average + 0.1 * gradient
        direction = 0.1 * gradient + 0.9 * average
        scale = math.sqrt(max(1, shape[0] / shape[1]))
        weight = weight * (1 - 0.1 * 0.2) - 0.1 * scale * nearest_orthogonal(direction)

        parameter.grad = gradient
        optimizer.step()

    torch.testing.assert_close(parameter.detach().double(), weight, atol=1e-5, rtol=0)
    torch.testing.assert_close(optimizer.state[parameter]["momentum"].double(), average, atol=1e-6, rtol=0)


@pytest.mark.parametrize("shape", [(11, 5), (5, 11), (7, 7)])
def test_muon_is_torchs(shape: tuple[int, int]) -> None:
    """Of the first iteration: torch's others have the same coefficients as its first."""
    ours, theirs = nn.Parameter(torch.randn(shape)), nn.Parameter(torch.empty(shape))
    theirs.data.copy_(ours.data)
    a, b, c = POLAR_EXPRESS[0]
    optimizers = (
        MuonOptimizer([ours], 0.1, momentum=0.95, weight_decay=0.1, iterations=1, dtype=torch.bfloat16),
        torch.optim.Muon(
            [theirs],
            lr=0.1,
            momentum=0.95,
            weight_decay=0.1,
            nesterov=True,
            ns_coefficients=(a / SAFETY**2, b / SAFETY**6, c / SAFETY**10),
            ns_steps=1,
            adjust_lr_fn="original",
        ),
    )
    for _ in range(4):
        ours.grad = torch.randn(shape)
        theirs.grad = ours.grad.clone()
        for optimizer in optimizers:
            optimizer.step()

    torch.testing.assert_close(ours, theirs, atol=0.01, rtol=0)  # both orthogonalise in bfloat16


def test_muon_steps_matrices_of_one_shape_as_it_would_each_alone() -> None:
    together = [nn.Parameter(torch.randn(5, 3)) for _ in range(3)]
    alone = [nn.Parameter(p.detach().clone()) for p in together]
    for p, q in zip(together, alone, strict=True):
        p.grad = torch.randn(5, 3)
        q.grad = p.grad.clone()

    MuonOptimizer(together, 0.1, 0.95, 0.0, 5).step()
    for q in alone:
        MuonOptimizer([q], 0.1, 0.95, 0.0, 5).step()

    for p, q in zip(together, alone, strict=True):
        torch.testing.assert_close(p, q, atol=1e-6, rtol=0)


def test_cautious_muon_moves_only_where_its_step_agrees_with_the_gradient() -> None:
    plain, cautious = (nn.Parameter(torch.zeros(7, 5)) for _ in range(2))
    optimizers = [MuonOptimizer([p], 0.1, 0.9, 0.0, 5, cautious=p is cautious) for p in (plain, cautious)]

    def stepped(gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        before = plain.detach().clone(), cautious.detach().clone()
        for p, optimizer in zip((plain, cautious), optimizers, strict=True):
            p.grad = gradient.clone()
            optimizer.step()
        return plain.detach() - before[0], cautious.detach() - before[1]

    stepped(torch.randn(7, 5))  # from now on there is momentum
    gradient = torch.randn(7, 5)
    step, chosen = stepped(gradient)
    agrees = step * gradient < 0  # a step goes against the gradient

    assert 0 < agrees.sum() < agrees.numel()
    torch.testing.assert_close(chosen, step * agrees / agrees.float().mean())


def test_cautious_muon_stands_still_where_nothing_agrees() -> None:
    updates, gradients = torch.ones(2, 3, 4), torch.stack([-torch.ones(3, 4), torch.ones(3, 4)])
    assert torch.equal(agreeing(updates, gradients), torch.stack([torch.zeros(3, 4), torch.ones(3, 4)]))


def test_muon_leaves_a_parameter_without_gradient_alone() -> None:
    parameter = nn.Parameter(torch.ones(3, 5))

    MuonOptimizer([parameter], 0.1, 0.95, 0.5, 5).step()

    assert torch.equal(parameter, torch.ones(3, 5))


def test_singular_values_stay_apart_in_the_test_matrix() -> None:
    """The test of `orthogonalize` above compares singular vectors, which only distinct values have."""
    values = torch.linalg.svdvals(matrix_with([3.0, 1.0, 0.5, 0.2, 0.1], 5, 13)).tolist()

    assert all(a > 1.5 * b for a, b in pairwise(values))
