"""LayerNorm, RMSNorm and none."""

import pytest
import torch
from torch import Tensor, nn

from clearformer.hooks import hooked
from clearformer.model.norms import LayerNorm, NoNorm, RMSNorm

D = 7


def test_no_norm_is_the_identity_and_has_no_parameters() -> None:
    norm, x = NoNorm().build(D), torch.randn(3, D)
    assert norm(x) is x
    assert list(norm.parameters()) == []


@pytest.mark.parametrize("eps", [1e-5, 0.5])
def test_layernorm_is_its_formula(eps: float) -> None:
    norm, x = perturbed(LayerNorm(eps=eps).build(D)), torch.randn(3, 5, D, dtype=torch.float64)
    centred = x - x.mean(-1, keepdim=True)
    expected = centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt() * norm.get_parameter(
        "weight"
    ) + norm.get_parameter("bias")
    torch.testing.assert_close(norm(x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("eps", [1e-6, 0.5])
def test_rmsnorm_is_its_formula(eps: float) -> None:
    norm, x = perturbed(RMSNorm(eps=eps).build(D)), torch.randn(3, 5, D, dtype=torch.float64)
    expected = x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * norm.get_parameter("weight")
    torch.testing.assert_close(norm(x), expected, rtol=1e-12, atol=1e-12)


def test_parameters_are_those_asked_for() -> None:
    assert {name for name, _ in LayerNorm().build(D).named_parameters()} == {"weight", "bias"}
    assert {name for name, _ in LayerNorm(bias=False).build(D).named_parameters()} == {"weight"}
    assert {name for name, _ in RMSNorm().build(D).named_parameters()} == {"weight"}
    assert list(RMSNorm(learned=False).build(D).parameters()) == []


@pytest.mark.parametrize("spec", [LayerNorm(), RMSNorm(), RMSNorm(learned=False)])
def test_a_bfloat16_input_meets_float32_weights_without_a_warning(spec: LayerNorm | RMSNorm) -> None:
    """As queries and keys do under autocast; warnings are errors here."""
    norm, x = spec.build(D), torch.randn(3, D)
    result = norm(x.bfloat16())
    torch.testing.assert_close(result.float(), norm(x), rtol=0.02, atol=0.02)


KINDS = [LayerNorm(), LayerNorm(bias=False), RMSNorm(), RMSNorm(learned=False)]


@pytest.mark.parametrize("spec", KINDS)
@torch.no_grad()
def test_looking_at_the_scale_changes_no_bit(spec: LayerNorm | RMSNorm) -> None:
    norm, x = perturbed(spec.build(D)), torch.randn(3, 5, D, dtype=torch.float64)
    seen: dict[str, Tensor] = {}

    with hooked(norm, {"hook_*": lambda activation, at: seen.update({at.name: activation})}):
        result = norm(x)

    assert torch.equal(result, norm(x))
    assert torch.equal(result, seen["hook_normalized"])
    centred = x - x.mean(-1, keepdim=True) if isinstance(spec, LayerNorm) else x
    torch.testing.assert_close(
        seen["hook_scale"], (centred.square().mean(-1, keepdim=True) + spec.eps).sqrt()
    )


@pytest.mark.parametrize("spec", KINDS)
def test_a_scale_that_is_replaced_is_divided_by(spec: LayerNorm | RMSNorm) -> None:
    """Frozen, a norm is linear: twice the input gives twice the result, its bias aside."""
    norm, x = perturbed(spec.build(D)), torch.randn(3, 5, D, dtype=torch.float64)
    bias = getattr(norm, "bias", None)
    bias = 0 if bias is None else bias

    with hooked(norm, {"hook_scale": lambda scale, _: scale * 2}):
        halved = norm(x)
    with hooked(norm, {"hook_scale": lambda scale, _: torch.full_like(scale, 3.0)}):
        frozen, twice = norm(x), norm(2 * x)

    torch.testing.assert_close(halved - bias, (norm(x) - bias) / 2)
    torch.testing.assert_close(twice - bias, 2 * (frozen - bias))


@pytest.mark.parametrize("spec", KINDS)
@torch.inference_mode()
def test_a_scale_that_is_changed_in_place_is_divided_by(spec: LayerNorm | RMSNorm) -> None:
    """As any activation that a hook function changes in place."""
    norm, x = perturbed(spec.build(D)), torch.randn(3, 5, D, dtype=torch.float64)

    with hooked(norm, {"hook_scale": lambda scale, _: scale * 2}):
        replaced = norm(x)
    with hooked(norm, {"hook_scale": lambda scale, _: scale.mul_(2)}):
        changed = norm(x)

    assert torch.equal(changed, replaced)


@pytest.mark.parametrize("spec", KINDS)
def test_the_scale_has_its_gradient(spec: LayerNorm | RMSNorm) -> None:
    norm = perturbed(spec.build(D))
    x = torch.randn(3, D, dtype=torch.float64, requires_grad=True)
    scales: list[Tensor] = []

    with hooked(norm, {"hook_scale": lambda scale, _: scales.append(scale)}):
        y = norm(x)

    [gradient] = torch.autograd.grad(y.sum(), scales)
    bias = getattr(norm, "bias", None)
    without_bias = y if bias is None else y - bias
    torch.testing.assert_close(gradient, -without_bias.sum(-1, keepdim=True) / scales[0])


@torch.no_grad()
def perturbed(norm: nn.Module) -> nn.Module:
    for parameter in norm.parameters():
        parameter.add_(torch.randn_like(parameter))
    return norm.double()
