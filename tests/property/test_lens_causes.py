"""Interventions and gradients of every kind of every slot, each by the identity that proves it."""

from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor

from clearformer.errors import UserError
from clearformer.hooks import hook_points
from clearformer.lens.causal.hook_gradients import gradients_at
from clearformer.lens.causal.interventions import (
    activations,
    change,
    output_with,
    patch,
)
from clearformer.lens.causal.metrics import LogitDifference, MeanLoss
from clearformer.lens.causal.patching import patch_every
from clearformer.lens.causal.paths import output_of_paths, writers_of
from clearformer.lens.causal.sites import Site, heads_of, residuals_of
from clearformer.lens.gradients.input_attribution import gradient_x_input, integrated_gradients, occlusion
from clearformer.lens.gradients.loss_change import loss_changes
from clearformer.lens.gradients.matrices import matrices_of, weight_gradients
from clearformer.lens.heads.scores import head_scores
from clearformer.lens.inputs import Inputs
from clearformer.model import ModelConfig
from clearformer.model.masks import Mask

from .models import config, each_kind, made, text

FAMILIES = ("decoder", "encoder", "encoder-decoder")
METRIC = LogitDifference(target=3, foil=5)
SMALL = 1e-4  # a step of finite differences in float64


@pytest.fixture(autouse=True)
def _shapes_are_checked_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests call the models of the other properties hundreds of times, and the checks take most of a call."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def inputs_of(model: Any, n_tokens: int = 7, n_source: int = 5) -> Inputs:
    source = text(n_source, 1) if model.config.family == "encoder-decoder" else None
    tokens = text(n_tokens, 1)
    return Inputs(model, None, tokens, source, tokens[0].tolist())


def each_kind_in_turn(first: int) -> Any:
    """Each kind of every slot once, the families taking turns; another test begins with another."""
    cases = [each_kind(family).mark.args[1] for family in FAMILIES]
    taken = [((i + first) % 3, row) for i, row in enumerate(zip(*cases, strict=True))]
    params = [
        pytest.param(*row[family].values, id=f"{FAMILIES[family]}: {row[family].id}") for family, row in taken
    ]
    return pytest.mark.parametrize("case", params)


@each_kind_in_turn(0)
def test_patching_with_oneself_changes_no_bit_and_a_whole_layer_is_the_donors(case: ModelConfig) -> None:
    model = made(case)
    own, donor = inputs_of(model).arguments, inputs_of(model).arguments
    points = list(hook_points(model))
    before = activations(model, own)
    edits = [patch(name, before) for name in points]
    assert torch.equal(output_with(model, own, edits), output_with(model, own))
    of_donor = activations(model, donor)
    wanted = output_with(model, donor)
    assert not torch.equal(wanted, output_with(model, own))
    last_of_encoder = [f"encoder_blocks.{case.n_layers - 1}.hook_resid_post"]
    memory = [patch(name, of_donor) for name in last_of_encoder if name in points]
    for layer in residuals_of(model):
        if not layer.name.startswith("encoder_"):
            assert torch.equal(output_with(model, own, [*memory, patch(layer, of_donor)]), wanted)


@each_kind_in_turn(1)
def test_all_senders_at_once_are_the_receivers_input_replaced(case: ModelConfig) -> None:
    model = made(case)
    own, donor = inputs_of(model).arguments, inputs_of(model).arguments
    of_donor = activations(model, donor)
    everyone = [Site(name) for name in writers_of(model)]
    assert torch.equal(output_of_paths(model, own, donor, everyone, []), output_with(model, donor))
    assert torch.equal(output_of_paths(model, own, donor, [], []), output_with(model, own))
    receivers = [name for name in of_donor if name.endswith((".hook_q", "mlp.hook_pre", "hook_z"))]
    for receiver in receivers[-2:]:
        told = output_of_paths(model, own, donor, everyone, [Site(receiver)])
        torch.testing.assert_close(
            told, output_with(model, own, [patch(receiver, of_donor)]), atol=1e-12, rtol=0
        )


@each_kind_in_turn(2)
def test_the_estimate_of_a_patch_is_its_derivative(case: ModelConfig) -> None:
    model = made(case)
    own, donor = inputs_of(model), inputs_of(model)
    sites = [*heads_of(model), *residuals_of(model)]
    found = patch_every(model, own, donor, sites, metric=METRIC, estimate=True, confirm=1)
    of_own, of_donor = (activations(model, each.arguments) for each in (own, donor))
    for i in torch.randperm(len(sites))[:2].tolist():
        site = sites[i]

        def measure(part: float, site: Site = site) -> float:
            """Of the text with the site so far on the straight way to the donor's."""
            between = {site.name: torch.lerp(of_own[site.name], of_donor[site.name], part)}
            return METRIC(output_with(model, own.arguments, [patch(site, between)])).item()

        slope = (measure(SMALL) - measure(-SMALL)) / (2 * SMALL)
        assert found.effects[i].nansum().item() == pytest.approx(slope, rel=1e-5, abs=1e-7)
    [confirmed] = found.confirmed
    exact = patch_every(model, own, donor, [Site(confirmed.site.name, confirmed.site.head)], metric=METRIC)
    assert confirmed.site.position is not None
    assert confirmed.effect == pytest.approx(exact.effects[0, confirmed.site.position].item(), abs=1e-12)


@each_kind_in_turn(0)
def test_weight_gradients_are_autograds_position_by_position(case: ModelConfig) -> None:
    model = made(case)
    inputs = inputs_of(model)
    metric = MeanLoss(inputs.tokens)
    metric(model(*inputs.arguments)).sum().backward()
    parameters = dict(model.named_parameters())
    found = weight_gradients(model, inputs, metric=metric)
    assert {each.name for each in found} == matrices_of(model).keys()
    for each in found:
        wanted = parameters[each.name].grad
        if wanted is None:  # not used in reading this text
            assert not each.terms
            continue
        torch.testing.assert_close(each.matrix, wanted, atol=1e-11, rtol=1e-9)
        assert sum(term.share for term in each.terms) == pytest.approx(1.0 if wanted.any() else 0.0)
        row, column = (int(i) for i in (wanted == wanted.max()).nonzero()[0])
        assert each.entry(row, column).sum().item() == pytest.approx(wanted[row, column].item(), abs=1e-11)


@each_kind_in_turn(1)
def test_gradients_at_hook_points_are_derivatives(case: ModelConfig) -> None:
    model = made(case)
    own = inputs_of(model).arguments
    found = gradients_at(model, own, METRIC)
    assert found.keys() == hook_points(model).keys()
    for name in ([*found][int(i)] for i in torch.randperm(len(found))[:2]):
        value, gradient = found[name]
        masked = ~Mask.keeps(value)  # scores of what may not be read
        direction = torch.randn_like(value).masked_fill(masked, 0.0)

        def measure(step: float, name: str = name, direction: Tensor = direction) -> float:
            edit = change(name, lambda part: part + step * direction)
            return METRIC(output_with(model, own, [edit])).item()

        slope = (measure(SMALL) - measure(-SMALL)) / (2 * SMALL)
        assert (gradient * direction).sum().item() == pytest.approx(slope, rel=1e-4, abs=1e-6)


@each_kind_in_turn(2)
def test_inputs_are_attributed(case: ModelConfig) -> None:
    model = made(case)
    inputs = inputs_of(model)
    found = gradient_x_input(model, inputs, metric=METRIC)
    embed = "hook_embed" if case.family != "encoder-decoder" else "hook_decoder_embed"

    def measure(step: float, place: int) -> float:
        edit = change(embed, lambda x: x + step * (torch.arange(x.shape[1]) == place)[:, None] * x)
        return METRIC(output_with(model, inputs.arguments, [edit])).item()

    slope = (measure(SMALL, 2) - measure(-SMALL, 2)) / (2 * SMALL)
    assert found.values[2].item() == pytest.approx(slope, rel=1e-4, abs=1e-6)
    # From another text's embeddings, because near 0 a norm's slope is steep.
    errors = [
        integrated_gradients(model, inputs, metric=METRIC, baseline=1, steps=n).error for n in (2, 8, 128)
    ]
    two, eight, many = (abs(each) for each in errors if each is not None)
    assert many < 1e-2 * max(1.0, two)
    assert many <= max(eight, two, 1e-9)


@each_kind_in_turn(0)
def test_a_dropped_token_is_as_if_it_did_not_stand_there(case: ModelConfig) -> None:
    model = made(case)
    inputs = inputs_of(model)
    found = occlusion(model, inputs, metric=METRIC)
    *source, tokens = inputs.arguments
    for place in (0, 3):
        shorter = torch.cat([tokens[:, :place], tokens[:, place + 1 :]], dim=1)
        effect = found.measure - METRIC(output_with(model, (*source, shorter))).item()
        assert found.values[place].item() == pytest.approx(effect, abs=1e-10)
    assert found.values[-1].isnan()
    replaced = occlusion(model, inputs, metric=METRIC, by=2)
    changed = tokens.clone()
    changed[0, 4] = 2
    effect = replaced.measure - METRIC(output_with(model, (*source, changed))).item()
    assert replaced.values[4].item() == pytest.approx(effect, abs=1e-12)


@each_kind_in_turn(1)
def test_the_fall_of_the_loss_is_allotted_to_the_parts(case: ModelConfig) -> None:
    model = made(case)
    later = made(case)
    with torch.no_grad():
        for parameter in later.parameters():
            parameter.add_(0.002 * torch.randn_like(parameter))
    inputs = inputs_of(model)
    found = loss_changes(model, later, inputs, pieces=2)
    assert found.sum + found.residue == pytest.approx(found.after - found.before, abs=1e-12)
    assert sum(part.value for part in found.parts) == pytest.approx(found.sum, abs=1e-12)
    assert abs(found.residue) < 1e-3 * max(abs(part.value) for part in found.parts)


@each_kind_in_turn(2)
def test_heads_are_scored_or_the_reason_is_said(case: ModelConfig) -> None:
    model = made(case)
    if case.attention.kind == "last":
        with pytest.raises(UserError, match="kind=last has no pattern"):
            head_scores(model)
        return
    found = head_scores(model, n_texts=2)
    assert len(found.heads) == len(heads_of(model))
    for each in found.heads:
        crosses = "cross_attn" in each.name
        for value in (each.previous, each.duplicate, each.induction):
            assert value != value if crosses else 0 <= value <= 1 + 1e-9
        is_reached = case.residual or each.name.endswith("blocks.0.attn.hook_z")  # by embeddings, directly
        assert (each.matching == each.matching) == (
            is_reached and case.attention.kind != "mean"
        )  # no queries
        for value in (each.copying, each.matching):
            assert value != value or -1 - 1e-9 <= value <= 1 + 1e-9


def test_patching_every_position_is_patching_each_alone() -> None:
    for family in ("encoder", "encoder-decoder"):
        model = made(config(family))
        own, donor = inputs_of(model), inputs_of(model)
        of_donor = activations(model, donor.arguments)
        found = patch_every(model, own, donor, [*heads_of(model), Site("*hook_pattern", 1)], metric=METRIC)
        for row in [0, -1]:
            site = found.sites[row]
            for position in range(int((~found.effects[row].isnan()).sum())):
                edits = [patch(Site(site.name, site.head, position), of_donor)]
                alone = METRIC(output_with(model, own.arguments, edits)).item() - found.own
                assert found.effects[row, position].item() == pytest.approx(alone, abs=1e-12)
