from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.adamw import adamw as adamw_formula

from clearformer.training.optim.adam import FusedAdam
from clearformer.training.optim.optimizers import (
    Adam,
    AdamW,
    Muon,
    OptimizerSpec,
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
    assert adamw.update is adamw_formula
    assert muon.param_groups[0]["peak_lr"] == 0.02
    assert adamw.param_groups[0]["peak_lr"] == 0.003
    assert adamw.param_groups[0]["weight_decay"] == 0.0


def test_without_blocks_muon_is_adamw_alone() -> None:
    [optimizer] = Muon().build(nn.Linear(3, 5), lr=0.02)

    assert isinstance(optimizer, FusedAdam)
    assert optimizer.update is adamw_formula


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
