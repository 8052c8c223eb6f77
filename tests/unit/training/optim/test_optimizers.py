import math
from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from clearformer.training.optim.optimizers import (
    POLAR_EXPRESS,
    SAFETY,
    Adam,
    AdamW,
    FusedAdam,
    Muon,
    MuonOptimizer,
    OptimizerSpec,
    orthogonalize,
)
from clearformer.training.store.state import load_optimizer_tensors, optimizer_tensors

ALL = [Adam(weight_decay=0.1), AdamW(), Muon(weight_decay=0.1)]


def kind(spec: OptimizerSpec) -> str:
    return spec.kind


class Net(nn.Module):
    """Named like a model: embeddings and a head around blocks that have matrices and vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 5)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(5, 5), nn.LayerNorm(5)) for _ in range(2))
        self.head = nn.Linear(5, 7, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def step(net: nn.Module, optimizers: Sequence[Optimizer], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(7, (3, 4), generator=generator)
    nn.functional.cross_entropy(net(tokens).flatten(0, 1), tokens.flatten()).backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def by_name(net: nn.Module, optimizers: Sequence[Optimizer]) -> dict[str, dict[str, float]]:
    """For each parameter, its group's settings."""
    names = {p: name for name, p in net.named_parameters()}
    return {
        names[p]: {key: value for key, value in group.items() if key != "params"}
        for optimizer in optimizers
        for group in optimizer.param_groups
        for p in group["params"]
    }


@pytest.mark.parametrize("spec", ALL, ids=kind)
def test_every_parameter_is_in_one_group_and_has_a_peak_rate(spec: OptimizerSpec) -> None:
    net = Net()
    optimizers = spec.build(net, lr=0.02)
    members = [p for o in optimizers for group in o.param_groups for p in group["params"]]

    assert len(members) == len(set(members)) == len(list(net.parameters()))
    assert all(group["peak_lr"] == group["lr"] for o in optimizers for group in o.param_groups)


@pytest.mark.parametrize("spec", ALL[:2], ids=kind)
def test_matrices_decay_and_vectors_do_not(spec: OptimizerSpec) -> None:
    net = Net()

    groups = by_name(net, spec.build(net, lr=0.02))

    assert {name: group["weight_decay"] for name, group in groups.items()} == {
        name: 0.1 if p.dim() == 2 else 0.0 for name, p in net.named_parameters()
    }


def test_muon_trains_the_matrices_of_the_blocks_and_adamw_the_rest() -> None:
    net = Net()
    muon, adamw = Muon(adam_lr=0.003).build(net, lr=0.02)
    names = {p: name for name, p in net.named_parameters()}

    assert {names[p] for group in muon.param_groups for p in group["params"]} == {
        "blocks.0.0.weight",
        "blocks.1.0.weight",
    }
    assert isinstance(adamw, FusedAdam)
    assert adamw.kernel.__name__ == "_fused_adamw_"
    assert muon.param_groups[0]["peak_lr"] == 0.02
    assert adamw.param_groups[0]["peak_lr"] == 0.003
    assert adamw.param_groups[0]["weight_decay"] == 0.0


def test_without_blocks_muon_is_adamw_alone() -> None:
    [optimizer] = Muon().build(nn.Linear(3, 5), lr=0.02)

    assert isinstance(optimizer, FusedAdam)
    assert optimizer.kernel.__name__ == "_fused_adamw_"


def test_adamws_first_step_by_hand() -> None:
    """After one step m / (sqrt(v) + eps) is the gradient's sign, whatever the betas are."""
    layer = nn.Linear(3, 2, bias=False)
    before = layer.weight.detach().clone()
    [optimizer] = AdamW(weight_decay=0.5).build(layer, lr=0.01)
    layer.weight.grad = torch.tensor([[1.0, -2.0, 3.0], [-0.5, 0.25, -4.0]])

    optimizer.step()

    torch.testing.assert_close(
        layer.weight.detach(), before * (1 - 0.01 * 0.5) - 0.01 * layer.weight.grad.sign()
    )


def test_adam_adds_its_decay_to_the_gradient() -> None:
    layer = nn.Linear(3, 2, bias=False)
    before = layer.weight.detach().clone()
    [optimizer] = Adam(weight_decay=0.5).build(layer, lr=0.01)
    layer.weight.grad = torch.zeros(2, 3)

    optimizer.step()

    torch.testing.assert_close(layer.weight.detach(), before - 0.01 * before.sign(), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("spec", "theirs"), [(Adam, torch.optim.Adam), (AdamW, torch.optim.AdamW)])
def test_both_are_torchs_to_the_bit(spec: type[Adam | AdamW], theirs: type[torch.optim.Adam]) -> None:
    ours_net, their_net = Net(), Net()
    their_net.load_state_dict(ours_net.state_dict())
    [ours] = spec(betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1).build(ours_net, lr=0.02)
    matrices = [p for p in their_net.parameters() if p.dim() >= 2]
    vectors = [p for p in their_net.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    other = theirs(groups, lr=0.02, betas=(0.8, 0.95), eps=1e-6, fused=True)
    for step in range(4):
        for net, optimizer in ((ours_net, ours), (their_net, other)):
            torch.manual_seed(step)
            for parameter in net.parameters():
                parameter.grad = torch.randn_like(parameter)
            optimizer.step()
    for a, b in zip(ours_net.parameters(), their_net.parameters(), strict=True):
        assert torch.equal(a, b)


# --- Muon -------------------------------------------------------------------------------------------------


def matrix_with(singular_values: Sequence[float], n_rows: int, n_cols: int) -> Tensor:
    """A random matrix of given singular values."""
    n = len(singular_values)
    u = torch.linalg.qr(torch.randn(n_rows, n, dtype=torch.float64)).Q
    v = torch.linalg.qr(torch.randn(n_cols, n, dtype=torch.float64)).Q
    return u @ torch.diag(torch.tensor(singular_values, dtype=torch.float64)) @ v.mT


@pytest.mark.parametrize(("n_rows", "n_cols"), [(5, 13), (13, 5), (5, 5)])
def test_orthogonalize_keeps_the_singular_vectors_and_brings_the_values_to_about_one(
    n_rows: int, n_cols: int
) -> None:
    matrix = matrix_with([3.0, 1.0, 0.5, 0.2, 0.1], n_rows, n_cols)
    u, _, vt = torch.linalg.svd(matrix, full_matrices=False)

    result = orthogonalize(matrix.float()[None], iterations=5)[0].double()

    in_its_axes = u[:, :5].mT @ result @ vt[:5].mT  # diagonal where the vectors are the same
    values = in_its_axes.diagonal()
    assert ((values > 0.6) & (values < 1.3)).all()
    assert (in_its_axes - values.diag()).abs().max() < 0.03
    assert torch.linalg.norm(result - u[:, :5] @ in_its_axes @ vt[:5]) < 0.1  # and nothing beside them


def test_orthogonalize_takes_each_matrix_of_a_batch_by_itself() -> None:
    matrices = torch.stack([torch.randn(5, 3), 1000 * torch.randn(5, 3)])

    together = orthogonalize(matrices, iterations=5)

    for matrix, result in zip(matrices, together, strict=True):
        torch.testing.assert_close(result, orthogonalize(matrix[None], iterations=5)[0], atol=0.02, rtol=0)


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

    torch.testing.assert_close(values, torch.ones(3), atol=0.02, rtol=0)


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

    torch.testing.assert_close(parameter.detach().double(), weight, atol=0.005, rtol=0)
    torch.testing.assert_close(optimizer.state[parameter]["momentum"].double(), average, atol=1e-6, rtol=0)


@pytest.mark.parametrize("shape", [(11, 5), (5, 11), (7, 7)])
def test_muon_is_torchs(shape: tuple[int, int]) -> None:
    """Of the first iteration: torch's others have the same coefficients as its first."""
    ours, theirs = nn.Parameter(torch.randn(shape)), nn.Parameter(torch.empty(shape))
    theirs.data.copy_(ours.data)
    a, b, c = POLAR_EXPRESS[0]
    optimizers = (
        MuonOptimizer([ours], lr=0.1, momentum=0.95, weight_decay=0.1, iterations=1),
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
        torch.testing.assert_close(p, q, atol=0.003, rtol=0)


def test_muon_leaves_a_parameter_without_gradient_alone() -> None:
    parameter = nn.Parameter(torch.ones(3, 5))

    MuonOptimizer([parameter], 0.1, 0.95, 0.5, 5).step()

    assert torch.equal(parameter, torch.ones(3, 5))


# --- state ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ALL, ids=kind)
def test_state_saved_and_loaded_goes_on_to_the_bit(spec: OptimizerSpec) -> None:
    net, copy = Net(), Net()
    optimizers = spec.build(net, lr=0.02)
    for seed in range(3):
        step(net, optimizers, seed)
    copy.load_state_dict(net.state_dict())
    fresh = spec.build(copy, lr=0.02)

    tensors = optimizer_tensors(net, optimizers)
    load_optimizer_tensors(copy, fresh, {name: tensor.clone() for name, tensor in tensors.items()})
    for seed in range(3, 6):
        step(net, optimizers, seed)
        step(copy, fresh, seed)

    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), copy.parameters(), strict=True))


def test_loaded_state_is_a_copy() -> None:
    net = Net()
    [optimizer] = AdamW().build(net, lr=0.02)
    step(net, [optimizer], seed=0)
    tensors = {name: tensor.clone() for name, tensor in optimizer_tensors(net, [optimizer]).items()}
    before = {name: tensor.clone() for name, tensor in tensors.items()}

    load_optimizer_tensors(net, [optimizer], tensors)
    step(net, [optimizer], seed=1)

    assert all(torch.equal(tensor, before[name]) for name, tensor in tensors.items())


def test_state_of_a_parameter_that_is_not_there_is_refused() -> None:
    net = Net()

    with pytest.raises(KeyError):
        load_optimizer_tensors(net, AdamW().build(net, 0.1), {"blocks.7.weight.exp_avg": torch.zeros(1)})


def test_singular_values_stay_apart_in_the_test_matrix() -> None:
    """The test of `orthogonalize` above compares singular vectors, which only distinct values have."""
    values = torch.linalg.svdvals(matrix_with([3.0, 1.0, 0.5, 0.2, 0.1], 5, 13)).tolist()

    assert all(a > 1.5 * b for a, b in pairwise(values))
