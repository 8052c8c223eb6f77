"""Activation patching everywhere: the effect of each head, network or layer at each position, one at a time.

    found = lens.patch_every(run, "When Mary and John ...", "When Mary and Mary ...", target=" Mary", foil=" John")
    found.effects        [sites, T]: the change of the metric when one site is patched at one position
    found.largest(5)

The text is read with one activation at one position taken from a donor text (Vig et al. 2020; Meng et al. 2022). The
positions of a site are the rows of one batch. For larger models one gradient estimates all effects at once,
(donor - own) . d metric / d activation (attribution patching, Nanda 2023), and the largest are confirmed by patching.

Shapes: B batch, N sites, P positions: those of the longer of an encoder-decoder's texts.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from clearformer.decoding import Text
from clearformer.decoding.arguments import check_whole
from clearformer.errors import UserError, count
from clearformer.hooks import Hook, HookFn
from clearformer.lens.causal.hook_gradients import gradients_at
from clearformer.lens.causal.interventions import (
    Activations,
    Arguments,
    activations,
    attention_in_the_open,
    output_with,
    patch,
    rows_at_once,
)
from clearformer.lens.causal.metrics import Metric, given_metric, metric_of, name_of
from clearformer.lens.causal.sites import (
    Site,
    Where,
    axes_of,
    heads_of,
    networks_of,
    residuals_of,
    sites_of,
)
from clearformer.lens.inputs import Inputs, Readable, Subject, quiet, read
from clearformer.lens.showing import EITHER, Shown, Table, heat_map, number, visible
from clearformer.model import Transformer

MOST_LISTED = 40  # effects in a table

# In a decoder, but with the positions of the source.
OF_SOURCE = ("cross_attn.hook_k", "cross_attn.hook_v")
OF_KEYS = ".cross_attn.k_norm."

Component = Literal["heads", "networks", "layers"]
SITES_OF: dict[str, Callable[[Transformer], list[Site]]] = {
    "heads": heads_of,
    "networks": networks_of,
    "layers": residuals_of,
}
"""The sites that `patch_every` patches, by their name; a layer is the residual stream before it."""


@dataclass(frozen=True)
class Effect:
    """The effect of patching one site at one position; `estimate` is the gradient's, if one was taken."""

    site: Site
    effect: float
    estimate: float | None = None


@dataclass(frozen=True, repr=False, eq=False)
class PatchEffects(Shown):
    """The effects of patching from a donor text, by site and position.

    Attributes:
        sites: The sites that are patched.
        labels: The text's tokens; for an encoder-decoder, those of its output.
        source_labels: The tokens of an encoder-decoder's source, at whose positions the encoder's sites are patched.
        own: The metric of the text itself.
        donor: The metric of the donor text.
        effects: [N P] the change of the metric; NaN where a site has no such position.
        is_estimate: Whether the effects are estimated by the gradient.
        confirmed: The largest estimated effects, each with its true effect.
        metric: The name of the metric.
    """

    sites: list[Site]
    labels: list[str]
    source_labels: list[str]
    own: float
    donor: float
    effects: Float[Tensor, "N P"]
    is_estimate: bool = False
    confirmed: Sequence[Effect] = field(default=(), metadata={EITHER: True})
    metric: str = "the metric"

    @property
    def recovered(self) -> Float[Tensor, "N P"]:
        """The effects as fractions of the difference between the two texts; of two runs, take that of each."""
        return self.effects / (self.donor - self.own)

    def largest(self, n: int = 10) -> list[Effect]:
        """Return the n largest effects of either sign, with their sites and positions."""
        sizes = self.effects.abs().nan_to_num(-1.0).flatten()
        places = sizes.topk(min(n, int((sizes >= 0).sum()))).indices.tolist()
        width = self.effects.shape[1]
        return [self._effect(place // width, place % width) for place in places]

    def caption(self) -> str:
        how = "estimated by one gradient" if self.is_estimate else "one site at one position at a time"
        return (
            f"patched from the donor text, {how}: {self.metric} is {self.own:.4f} in the text, {self.donor:.4f} in the "
            "donor"
        )

    def table(self) -> Table:
        rows = []
        for each in self.confirmed or self.largest(MOST_LISTED):
            position = each.site.position or 0
            token = visible(self._labels_of(each.site)[position])
            values = (
                [each.effect] if each.estimate is None or not self.confirmed else [each.effect, each.estimate]
            )
            rows.append([each.site.label, str(position), token, *map(number, values)])
        heads = ["site", "position", "token"]
        if self.confirmed:
            return Table([*heads, "effect", "estimate"], rows, 3)
        return Table([*heads, "estimate" if self.is_estimate else "effect"], rows, 3)

    def notes(self) -> list[str]:
        if not self.confirmed:
            return []
        return [f"the {len(self.confirmed)} largest estimates, each confirmed by patching"]

    def inches(self) -> tuple[float, float]:
        return 4.5 + 0.3 * self.effects.shape[1], 1.2 + 0.18 * len(self.sites)

    def draw(self, figure: Any) -> None:
        by_text: dict[bool, list[int]] = {}
        for row, site in enumerate(self.sites):
            by_text.setdefault(bool(self.source_labels) and of_source(site.name), []).append(row)
        panels = figure.subplots(len(by_text), 1, squeeze=False)[:, 0]
        for axes, rows in zip(panels, by_text.values(), strict=True):
            labels = self._labels_of(self.sites[rows[0]])
            names = [self.sites[row].label for row in rows]
            image = heat_map(axes, self.effects[rows, : len(labels)], names, labels, signed=True)
            figure.colorbar(image, ax=axes, label="effect")

    def _labels_of(self, site: Site) -> list[str]:
        return self.source_labels if self.source_labels and of_source(site.name) else self.labels

    def _effect(self, row: int, position: int) -> Effect:
        site, value = self.sites[row], self.effects[row, position].item()
        return Effect(Site(site.name, site.head, position), value, value if self.is_estimate else None)


@torch.inference_mode(False)
def patch_every(
    subject: Subject,
    text: Readable,
    donor: Readable,
    where: Component | Where | Iterable[Where] = "heads",
    *,
    target: str | int | None = None,
    foil: str | int | None = None,
    position: int = -1,
    output: Text | None = None,
    metric: Metric | None = None,
    estimate: bool = False,
    confirm: int = 10,
) -> PatchEffects:
    """Patch every site at every position from a donor text, one at a time.

    Args:
        subject: A run, or a bare model.
        text: What is read.
        donor: The text to patch from, with the same number of tokens.
        where: `heads`, `networks`, `layers` (the residual stream before each), or hook points by name or pattern.
        target: A token or class whose logit is measured; by default the likeliest one.
        foil: Another, whose logit is subtracted.
        position: The position that predicts it.
        output: What an encoder-decoder writes for both; by default its own translation of the text.
        metric: A function of the output, in place of `target`, `foil` and `position`; see `metrics`.
        estimate: Whether to estimate all effects by one gradient and to patch only the largest.
        confirm: How many of the largest to patch then.

    Raises:
        UserError: the texts are of different lengths, a hook point has no positions, a site names one, there is no
            such point, token, class or position, or `confirm` is less than 0.
    """
    check_whole("confirm", confirm, least=0)
    inputs, other = read_both(subject, text, donor, output)
    sites = _sites(inputs.model, where)
    metric = given_metric(metric, target, foil, position) or metric_of(inputs, target, foil, position)
    own = metric(output_with(inputs.model, inputs.arguments))
    if estimate:
        return _estimated(inputs, other, sites, metric, own, confirm)
    return _patched(inputs, other, sites, metric, own)


def _patched(
    inputs: Inputs, other: Inputs, sites: list[Site], metric: Metric, own: Float[Tensor, " 1"]
) -> PatchEffects:
    model, donor = inputs.model, activations(inputs.model, other.arguments, _names(sites))
    rows = [effects_by_position(model, inputs.arguments, donor, site, metric) - own for site in sites]
    return _result(inputs, other, sites, rows, metric, own)


def effects_by_position(
    model: Transformer, arguments: Arguments, donor: Activations, site: Site, metric: Metric
) -> Float[Tensor, " P"]:
    """Return the metric with one site patched at each position, one at a time."""
    n_positions = donor[site.name].shape[_position_axis(site, donor)]
    n_rows = rows_at_once(model, arguments)
    measures = []
    for places in torch.arange(n_positions, device="cpu").split(n_rows):
        rows = tuple(each.expand(len(places), -1) for each in arguments)
        hooks = {site.name: _each_row_elsewhere(site, donor, places)}
        with quiet(model), attention_in_the_open(model), model.hooked(hooks):
            measures.append(metric(model(*rows)))
    return torch.cat(measures)


def _each_row_elsewhere(site: Site, donor: Activations, places: Tensor) -> HookFn:
    """Return a hook function that patches row i of a batch at position `places[i]`."""

    def patched(activation: Tensor, hook: Hook) -> Tensor:
        activation, source = activation.clone(), donor[hook.name]
        axis = _position_axis(site, donor)
        part = activation[site.index(hook.name, activation)].movedim(
            axis, 1
        )  # a view, so that writing to it changes `activation`
        part[torch.arange(len(places), device="cpu"), places] = source[site.index(hook.name, source)].movedim(
            axis, 1
        )[0, places]
        return activation

    return patched


def _estimated(
    inputs: Inputs,
    other: Inputs,
    sites: list[Site],
    metric: Metric,
    own: Float[Tensor, " 1"],
    confirm: int,
) -> PatchEffects:
    model, names = inputs.model, _names(sites)
    donor = activations(model, other.arguments, names)
    found = gradients_at(model, inputs.arguments, metric, names)
    rows = [_first_order(site, donor, *found[site.name]) for site in sites]
    result = _result(inputs, other, sites, rows, metric, own)
    estimates = replace(result, is_estimate=True)
    confirmed = tuple(_confirmed(inputs, donor, each, metric, own) for each in estimates.largest(confirm))
    return replace(estimates, confirmed=confirmed)


def _first_order(site: Site, donor: Activations, value: Tensor, gradient: Tensor) -> Float[Tensor, " P"]:
    """Return (donor - own) . gradient at each position."""
    products = (donor[site.name] - value) * gradient
    return products[site.index(site.name, products)].movedim(_position_axis(site, donor), 0).flatten(1).sum(1)


def _confirmed(
    inputs: Inputs, donor: Activations, found: Effect, metric: Metric, own: Float[Tensor, " 1"]
) -> Effect:
    after = metric(output_with(inputs.model, inputs.arguments, [patch(found.site, donor)]))
    return Effect(found.site, (after - own).item(), found.effect)


# --- parts ----------------------------------------------------------------------------------------------------


def read_both(
    subject: Subject, text: Readable, donor: Readable, output: Text | None
) -> tuple[Inputs, Inputs]:
    """Read a text and its donor; for an encoder-decoder, both get the same output.

    Raises:
        UserError: they have different lengths.
    """
    one = read(subject, text, output)
    written = None if one.source is None else one.tokens[0]
    other = read(subject, donor, None if isinstance(donor, Inputs) else written)
    for own, donated in zip(one.arguments, other.arguments, strict=True):
        if own.shape != donated.shape:
            raise UserError(
                f"donor: {count(donated.shape[1], 'token')}, but the text has {own.shape[1]}: each position is patched "
                "from the same position, so give texts with the same number of tokens"
            )
    return one, other


def of_source(name: str) -> bool:
    """Whether the positions of an encoder-decoder's hook point are those of the source."""
    return name.startswith(("encoder_", "hook_encoder_")) or name.endswith(OF_SOURCE) or OF_KEYS in name


def _sites(model: Transformer, where: Component | Where | Iterable[Where]) -> list[Site]:
    if isinstance(where, str) and where in SITES_OF:
        found = SITES_OF[where](model)
        if not found:
            raise UserError(f"this model has no {where} (model.ffn.kind={model.config.ffn.kind})")
        return found
    if not (sites := sites_of(model, where)):
        raise UserError("where: give at least one site, or heads, networks or layers")
    for site in sites:
        if site.position is not None:
            raise UserError(f"where: {site}: each site is patched at every position; omit its position")
    return sites


def _names(sites: Iterable[Site]) -> list[str]:
    return list(dict.fromkeys(site.name for site in sites))


def _position_axis(site: Site, donor: Activations) -> int:
    axis = axes_of(site.name, donor[site.name]).position
    if axis is None:
        raise UserError(
            f"{site.name} has no positions to patch one by one; patch it as a whole with intervene"
        )
    return axis


def _result(
    inputs: Inputs,
    other: Inputs,
    sites: list[Site],
    rows: list[Tensor],
    metric: Metric,
    own: Float[Tensor, " 1"],
) -> PatchEffects:
    width = max(len(row) for row in rows)
    effects = rows[0].new_full((len(rows), width), torch.nan)
    for i, row in enumerate(rows):
        effects[i, : len(row)] = row
    donor = metric(output_with(other.model, other.arguments))
    return PatchEffects(
        sites,
        inputs.labels,
        inputs.source_labels,
        own.item(),
        donor.item(),
        effects,
        metric=name_of(metric, inputs),
    )
