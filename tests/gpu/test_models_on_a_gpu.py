"""A GPU's kernels give what a CPU's do: forward and backward, every kind of every slot, the three families.

In float32 without TF32. Sums are taken in other orders, so numbers differ by some units in the last place: they may
by 2e-4 of the largest.
"""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from clearformer.data.text.batches import IGNORED
from clearformer.hooks import hook_points
from clearformer.model import ModelConfig, build
from clearformer.model.attention import MultiHead
from clearformer.model.fast.products import Linear, joint_linear, matrix_vector
from clearformer.model.fast.random_bits import dropout
from clearformer.model.fast.relu_by_sign import ReLUBySign
from clearformer.model.init import Gaussian
from clearformer.model.norms import RMSNorm
from clearformer.model.positions import ALiBi, Learned, NoPositions, RoPE
from clearformer.model.relative_positions import Relative
from clearformer.training.tasks.losses import ChunkedLoss, summed_loss, summed_loss_of_hidden

from ..pairwise import crossed

MAY_DIFFER = 2e-4  # of the largest number
N_TEXTS, N_SOURCE, N_TOKENS = 3, 9, 7


def same(ours: Tensor, theirs: Tensor, may_differ: float = MAY_DIFFER) -> None:
    """Whether two devices, or two ways on one, found the same numbers."""
    ours, theirs = ours.detach().cpu().double(), theirs.detach().cpu().double()
    assert torch.isfinite(theirs).all()
    most = may_differ * max(1.0, ours.abs().max().item())
    torch.testing.assert_close(theirs, ours, atol=most, rtol=0)


def stirred(model: Any) -> Any:
    """A model with all that begins at 1 or 0 moved away from there, where it would hide."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def padding_of(n_positions: int) -> Tensor:
    """Rows that lack none, some and most of their tokens on the left."""
    missing = torch.tensor([0, 2, n_positions - 1])[:N_TEXTS].unsqueeze(1)
    return torch.arange(n_positions) >= missing


def inputs_of(model: ModelConfig, padded: bool) -> tuple[tuple[Tensor | None, ...], Tensor]:
    """What the model reads, and what it is to predict."""
    assert model.vocab_size is not None
    tokens = torch.randint(model.vocab_size, (N_TEXTS, N_TOKENS))
    padding = padding_of(N_TOKENS) if padded else None
    targets = torch.randint(model.vocab_size, (N_TEXTS, N_TOKENS))
    if padding is not None:
        targets[~padding] = IGNORED
    if model.family != "encoder-decoder":
        return (tokens, padding), targets
    source = torch.randint(model.vocab_size, (N_TEXTS, N_SOURCE))
    return (source, tokens, padding_of(N_SOURCE) if padded else None, padding), targets


def there(inputs: tuple[Tensor | None, ...], device: torch.device) -> tuple[Tensor | None, ...]:
    return tuple(None if tensor is None else tensor.to(device) for tensor in inputs)


def test_the_gpu_computes_what_the_cpu_does(
    any_model: ModelConfig, padded: bool, device: torch.device
) -> None:
    assert not torch.backends.cuda.matmul.allow_tf32
    model = stirred(build(any_model))
    moved = copy.deepcopy(model).to(device)
    inputs, targets = inputs_of(any_model, padded)

    on_cpu, on_gpu = model(*inputs), moved(*there(inputs, device))
    loss, its_loss = summed_loss(on_cpu, targets), summed_loss(on_gpu, targets.to(device))
    loss.backward()
    its_loss.backward()

    counts = targets != IGNORED
    same(on_cpu[counts], on_gpu[counts.to(device)])
    same(loss, its_loss)
    for (name, ours), theirs in zip(model.named_parameters(), moved.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None), name
        if ours.grad is not None and theirs.grad is not None:
            same(ours.grad, theirs.grad)


def test_an_encoder_s_classes_are_those_of_the_cpu(device: torch.device) -> None:
    for pooling in ("first", "mean"):
        settings = ModelConfig(family="encoder", vocab_size=13, d_model=24, n_classes=5, pooling=pooling)
        model = stirred(build(settings))
        inputs, _ = inputs_of(settings, padded=True)
        same(model(*inputs), copy.deepcopy(model).to(device)(*there(inputs, device)))


# --- where the fused kernels are ---------------------------------------------------------------------------

WIDE = {"vocab_size": 61, "d_model": 128, "n_layers": 2, "max_seq_len": 96, "init": Gaussian()}
ORDERS = {spec.kind: spec for spec in (NoPositions(), Learned(), RoPE(), ALiBi(), Relative())}
FORMS = {
    "heads": MultiHead(n_heads=4),
    "grouped": MultiHead(n_heads=4, n_kv_heads=2),
    "normed": MultiHead(n_heads=4, qk_norm=RMSNorm()),
    "window": MultiHead(n_heads=4, window=9),
}


@crossed(form=list(FORMS), position=ORDERS, dtype=[torch.float32, torch.bfloat16])
def test_padding_that_may_read_nothing_spoils_nothing(
    form: str, position: Any, dtype: torch.dtype, device: torch.device
) -> None:
    """A row of scores that are all masked must stay a number: what comes of it is multiplied by 0, and read."""
    model = stirred(build(ModelConfig(**WIDE, attention=FORMS[form], position=position))).to(device)
    tokens = torch.randint(61, (2, 96), device=device)
    padding = torch.arange(96, device=device) >= torch.tensor([[50], [0]], device=device)
    enabled = dtype != torch.float32

    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=enabled):
        padded = model(tokens, padding)
        alone = model(tokens[:1, 50:])
        loss = summed_loss(padded, tokens.masked_fill(~padding, IGNORED))
    loss.backward()

    assert torch.isfinite(padded).all()
    same(alone[0], padded[0, 50:], may_differ=0.05 if enabled else MAY_DIFFER)
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


@crossed(form=list(FORMS), position=ORDERS)
def test_the_fused_kernel_is_the_formula(form: str, position: Any, device: torch.device) -> None:
    """Who looks at the pattern gets the formula; nothing else may change."""
    model = stirred(build(ModelConfig(**WIDE, attention=FORMS[form], position=position))).to(device)
    tokens = torch.randint(61, (2, 96), device=device)
    seen = []
    patterns = [f"blocks.{layer}.attn.hook_pattern" for layer in range(2)]

    fused = model(tokens)
    with model.hooked({name: lambda pattern, hook: seen.append(pattern) for name in patterns}):
        explicit = model(tokens)

    assert [pattern.shape for pattern in seen] == [(2, 4, 96, 96)] * 2
    same(fused, explicit)


# --- looking inside ---------------------------------------------------------------------------------------


def test_run_with_cache_sees_what_it_does_on_a_cpu(any_decoder: ModelConfig, device: torch.device) -> None:
    model = stirred(build(any_decoder))
    moved = copy.deepcopy(model).to(device)
    tokens = torch.randint(13, (2, 7))

    _, ours = model.run_with_cache(tokens)
    result, theirs = moved.run_with_cache(tokens.to(device))

    assert result.device.type == device.type
    assert ours.keys() == theirs.keys() <= hook_points(model).keys()
    for name, activation in ours.items():
        assert theirs[name].device.type == device.type
        same(activation, theirs[name])


def test_what_is_put_in_an_activation_s_place_takes_effect(device: torch.device) -> None:
    model = stirred(build(ModelConfig(**WIDE))).to(device)
    tokens = torch.randint(61, (2, 9), device=device)

    places = ("blocks.0.hook_resid_post", "blocks.1.hook_attn_out")
    with model.hooked({name: lambda x, hook: torch.zeros_like(x) for name in places}):
        changed = model(tokens)

    assert torch.equal(changed[0, 0], changed[1, -1])  # nothing of the texts is left
    assert not torch.equal(model(tokens), changed)


# --- the fast forms, which a GPU is not given: they are right there all the same ------------------------------


def both_ways(function: Any, plain: Any, *tensors: Tensor) -> None:
    """Whether a fast form gives what the plain one does, and its gradients."""
    results = []
    for each in (function, plain):
        leaves = [t.detach().clone().requires_grad_(t.is_floating_point()) for t in tensors]
        result = each(*leaves)
        result.square().sum().backward()
        results.append([result, *(leaf.grad for leaf in leaves if leaf.requires_grad)])
    for ours, theirs in zip(*results, strict=True):
        same(ours, theirs)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_in_chunks_is_the_formula(
    smoothing: float, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clearformer.training.tasks.losses.FEWEST_ROWS", 1)
    monkeypatch.setattr("clearformer.training.tasks.losses.CHUNK_LOGITS", 5 * 2050)
    targets = torch.randint(2050, (23,), device=device)
    both_ways(
        lambda h, w: ChunkedLoss.apply(h, w, targets, smoothing) / 23,
        lambda h, w: F.cross_entropy(h @ w.T, targets, label_smoothing=smoothing),
        torch.randn(23, 17, device=device),
        torch.randn(2050, 17, device=device),
    )


def test_a_large_vocabulary_s_loss_is_the_formula(device: torch.device) -> None:
    model = stirred(build(ModelConfig(vocab_size=3000, d_model=24))).to(device)
    hidden, targets = torch.randn(2, 9, 24, device=device), torch.randint(3000, (2, 9), device=device)
    targets[0, 3:] = IGNORED
    same(summed_loss(model.unembed(hidden), targets), summed_loss_of_hidden(model, hidden, targets))


def test_the_compiler_s_forms_are_the_plain_ones(device: torch.device) -> None:
    table, x = torch.randn(13, 7, device=device), torch.randn(1, 7, device=device)
    both_ways(lambda x: ReLUBySign.apply(x), F.relu, table)
    both_ways(lambda x, w: matrix_vector(x, w), F.linear, x, table)
    layers = [Linear(7, n).to(device) for n in (3, 5)]
    both_ways(
        lambda x: torch.cat(joint_linear(x, layers), -1), lambda x: torch.cat([f(x) for f in layers], -1), x
    )


def test_dropout_drops_its_part_and_keeps_the_mean(device: torch.device) -> None:
    x = torch.ones(1000, 1000, device=device)
    torch.manual_seed(5)
    dropped = dropout(x, 0.2)
    torch.manual_seed(5)
    again = dropout(x, 0.2)

    assert torch.equal(dropped, again)
    assert (dropped == 0).float().mean().item() == pytest.approx(0.2, abs=0.005)
    assert dropped.mean().item() == pytest.approx(1.0, abs=0.01)
    assert dropout(x, 0.2, training=False) is x
