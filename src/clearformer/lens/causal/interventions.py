"""Interventions: an activation is replaced, and the model computes the rest from the new value.

    _, donor = lens.run_with_cache(run, "The dog")
    edits = [lens.zero(lens.Site("blocks.0.attn.hook_z", head=2)), lens.patch("blocks.3.hook_resid_pre", donor)]
    lens.intervene(run, "The cat", edits, target=" barks").effect

    zero         0 in its place
    mean         its mean over texts and positions                       (mean ablation)
    resample     its value at other positions or in other texts          (resample ablation, Chan et al. 2022)
    patch        its value in another text                               (activation patching, Vig et al. 2020)
    add, change  a vector added (a steering vector), or any function of it

Each shows what a model does without something, or with something else: a cause. The activations in between need not be
ones that occur naturally; `zero` above all takes a model into states that it never met in training.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from clearformer.decoding import Text
from clearformer.decoding.arguments import check_function, check_kind
from clearformer.errors import UserError, shown
from clearformer.evaluation.language_model import LOGITS_AT_ONCE
from clearformer.hooks import ActivationCache, Hook, HookFn, hook_points
from clearformer.lens.activations import SQUARE
from clearformer.lens.causal.metrics import Metric, given_metric, metric_of, name_of
from clearformer.lens.causal.sites import Site, Where, site_of
from clearformer.lens.divergence import divergence
from clearformer.lens.inputs import Readable, Subject, quiet, read
from clearformer.lens.showing import Shown, Table, bars, number, visible
from clearformer.model import Transformer
from clearformer.model.init import generator_of
from clearformer.model.masks import Mask
from clearformer.results import plain

TOKENS_AT_ONCE = 8192
"""The most tokens in a batch whose rows are variants of one text."""
Arguments = tuple[Tensor, ...]
"""The arguments of a model: (tokens,), or (source, tokens) for an encoder-decoder."""
Activations = Mapping[str, Tensor]
"""Activations by the names of their hook points."""
Change = Callable[[Tensor, str], Tensor | float]
"""A function of a site's part of an activation, and of the hook point's name."""


@dataclass(frozen=True)
class Edit:
    """A site, and the change to make there."""

    site: Site
    change: Change


def hooks_of(edits: Iterable[Edit]) -> dict[str, HookFn]:
    """Return edits in the form of `model.hooked`; those at one hook point are made in the given order."""
    edits = list(edits) if isinstance(edits, Iterable) else [edits]
    for edit in edits:
        check_kind("edits", edit, Edit)
    names = list(dict.fromkeys(edit.site.name for edit in edits))
    return {name: _in_turn(name, names, edits) for name in names}


def _in_turn(own: str, names: Sequence[str], edits: Sequence[Edit]) -> HookFn:
    """Return the function for one of the edits' names; the first that matches a point makes all edits there."""

    def changed(activation: Tensor, hook: Hook) -> Tensor | None:
        here = [name for name in names if fnmatchcase(hook.name, name)]
        if own != here[0]:
            return None
        original = activation
        for edit in edits:
            if edit.site.name in here:
                activation = _with_edit(activation, hook.name, edit)
        return None if activation is original else activation

    return changed


def _with_edit(activation: Tensor, name: str, edit: Edit) -> Tensor:
    """Make a change; return the same tensor if no number changes, so that no norm is computed anew."""
    index = edit.site.index(name, activation)
    part = activation[index]
    new = _like(part, edit.change(part, name), edit.site)
    if name.endswith("hook_attn_scores"):  # what a query may not read, no edit lets it read
        new = torch.where(Mask.keeps(part), new, part)
    if not new.requires_grad and torch.equal(new, part):
        return activation
    activation = activation.clone()
    activation[index] = new
    return activation


def _like(part: Tensor, given: Any, site: Site) -> Tensor:
    """Return new values for a part of an activation, in its type and shape."""
    try:
        values = torch.as_tensor(given, dtype=part.dtype, device=part.device)
    except (TypeError, ValueError, RuntimeError):
        raise UserError(f"{site}: its new values are a tensor or a number; got {shown(given)}") from None
    try:
        return values.expand_as(part)
    except RuntimeError:
        raise UserError(
            f"{site}: its shape is {list(part.shape)} in this text, and the new values are {list(values.shape)}; "
            "patch between texts with the same number of tokens"
        ) from None


# --- the changes ----------------------------------------------------------------------------------------------


def zero(where: Where) -> Edit:
    """Replace an activation by 0."""
    return replace(where, 0.0)


def replace(where: Where, value: Tensor | float) -> Edit:
    """Replace an activation by a value; one with the shape of a single position is used at all of them."""
    return Edit(site_of(where), lambda _part, _name: value)


def add(where: Where, vector: Tensor | float) -> Edit:
    """Add a vector at every position of the site, such as a steering vector (Turner et al. 2023)."""
    site = site_of(where)
    return Edit(site, lambda part, _name: part + _like(part, vector, site))


def change(where: Where, function: Callable[[Tensor], Tensor]) -> Edit:
    """Apply a function to the site's part of an activation, which keeps all axes.

    Raises:
        UserError: it is no function.
    """
    check_function("function", function)
    return Edit(site_of(where), lambda part, _name: function(part))


def patch(where: Where, donor: Activations) -> Edit:
    """Replace the site by its value in the given activations of another text."""
    site = site_of(where)

    def of_donor(_part: Tensor, name: str) -> Tensor:
        activation = _known(donor, name)
        return activation[site.index(name, activation)]

    return Edit(site, of_donor)


def mean(where: Where, texts: Sequence[Activations]) -> Edit:
    """Replace the site by its mean over all positions of some texts, whose activations are given.

    Raises:
        UserError: the site is in scores or patterns, whose rows belong to the tokens of their own text.
    """
    site = site_of(where)
    _check_same_at_all_positions(site, site.name)

    def of_texts(part: Tensor, name: str) -> Tensor:
        return _pooled(site, texts, name, part).mean(0)

    return Edit(site, of_texts)


def resample(where: Where, texts: Sequence[Activations], seed: int) -> Edit:
    """Replace the site at each position by its value at a random position of some texts, whose activations are given.

    Args:
        where: The site.
        texts: The text itself, whose positions are then drawn with repetition, or others.
        seed: The seed of the draw, which differs between hook points.

    Raises:
        UserError: the site is in scores or patterns, whose rows belong to the tokens of their own text.
    """
    site = site_of(where)
    _check_same_at_all_positions(site, site.name)

    def drawn(part: Tensor, name: str) -> Tensor:
        pool = _pooled(site, texts, name, part)
        n_rows, n_positions = part.shape[0], 1 if part.dim() == 2 else part.shape[1]
        numbers = generator_of(seed, name)
        places = torch.randint(len(pool), (n_rows * n_positions,), generator=numbers, device="cpu")
        return pool[places.to(pool.device)].view(part.shape)

    return Edit(site, drawn)


def _pooled(site: Site, texts: Sequence[Activations], name: str, part: Tensor) -> Float[Tensor, "N ..."]:
    """Return the site's part of an activation at every position of some texts, concatenated."""
    _check_same_at_all_positions(site, name)  # the site's own may be a pattern of names
    everywhere = Site(site.name, site.head)
    parts = []
    for text in texts:
        activation = _known(text, name)
        own = activation[everywhere.index(name, activation)]
        parts.append(own if own.dim() == 2 else own.flatten(0, 1))
    if not parts:
        raise UserError(f"{site}: give the activations of at least one text to take it from")
    return torch.cat(parts).to(part.device)


def _check_same_at_all_positions(site: Site, name: str) -> None:
    if name.endswith(SQUARE):
        raise UserError(
            f"{site}: rows of scores and patterns belong to their own text's tokens, so they have no mean or sample "
            "over positions; use hook_z, which is computed from the pattern"
        )


def _known(activations: Activations, name: str) -> Tensor:
    if name not in activations:
        raise UserError(f"{name} is not among the given activations, which it is patched from")
    return activations[name]


# --- running --------------------------------------------------------------------------------------------------


def rows_at_once(model: Transformer, arguments: Arguments) -> int:
    """Return how many variants of one text are read in a batch, by their tokens and by the logits that they have."""
    n_tokens = max(each.shape[1] for each in arguments)
    n_logits = n_tokens * model.embed.num_embeddings
    return max(1, min(TOKENS_AT_ONCE // n_tokens, LOGITS_AT_ONCE // n_logits))


def activations(
    model: Transformer, arguments: Arguments, names: str | Iterable[str] | None = None
) -> ActivationCache:
    """Return a text's activations at the named hook points (by default all), in evaluation mode."""
    with quiet(model), attention_in_the_open(model):
        return model.run_with_cache(*arguments, names=names)[1]


def output_with(model: Transformer, arguments: Arguments, edits: Iterable[Edit] = ()) -> Tensor:
    """Return the model's output with edits, in evaluation mode and without gradients."""
    with quiet(model), attention_in_the_open(model), model.hooked(hooks_of(edits)):
        return model(*arguments)


def attention_in_the_open(model: Transformer) -> AbstractContextManager[None]:
    """Compute attention by its formula in the `with` block, whatever is hooked.

    A text with edits and the same text without are then computed in the same form, so that every difference is due to
    the edits.
    """
    return model.hooked({name: leave for name in hook_points(model) if name.endswith("hook_pattern")})


def leave(_activation: Tensor, _hook: Hook) -> None:
    """Leave an activation unchanged; hooking this makes its point observed."""


@dataclass(frozen=True, repr=False, eq=False)
class Intervention(Shown):
    """The effect of edits on a model's prediction.

    Attributes:
        sites: The edited sites.
        before: The metric without the edits: a logit, or the difference of two.
        after: The metric with them.
        labels: The tokens whose positions predict; a single entry for a classifier.
        kl: KL(without || with) of the prediction at each of them, in nats.
        output: The output with the edits: logits [T V], or of classes [C].
        metric: The name of the metric.
    """

    sites: list[str]
    before: float
    after: float
    labels: list[str]
    kl: list[float]
    output: Tensor
    metric: str = "the metric"

    @property
    def effect(self) -> float:
        """The change of the metric that the edits cause."""
        return self.after - self.before

    def to_dict(self) -> dict[str, object]:
        return {**super().to_dict(), "effect": plain(self.effect)}

    def caption(self) -> str:
        changed = f"{self.metric} goes from {self.before:.4f} to {self.after:.4f}"
        return f"with {', '.join(self.sites) or 'no edit'} changed, {changed}"

    def table(self) -> Table:
        rows = zip(self.labels, self.kl, strict=True)
        return Table(
            ["position", "token", "KL"],
            [[str(i), visible(n), number(kl)] for i, (n, kl) in enumerate(rows)],
            2,
        )

    def inches(self) -> tuple[float, float]:
        return 5.0, 0.8 + 0.2 * len(self.kl)

    def draw(self, figure: Any) -> None:
        axes = figure.subplots()
        bars(axes, list(map(visible, self.labels)), self.kl)
        axes.set_xlabel("KL(without || with), nats")


def intervene(
    subject: Subject,
    text: Readable,
    edits: Edit | Sequence[Edit],
    *,
    target: str | int | None = None,
    foil: str | int | None = None,
    position: int = -1,
    output: Text | None = None,
    metric: Metric | None = None,
) -> Intervention:
    """Read a text with edits, and compare it with the same text without them.

        _, donor = lens.run_with_cache(run, "The dog")
        lens.intervene(run, "The cat", lens.patch("blocks.2.hook_resid_pre", donor), target=" barks")

    Args:
        subject: A run, or a bare model.
        text: A string or ids, or the result of `read`.
        edits: One or several.
        target: A token or class whose logit is measured; by default the likeliest one.
        foil: Another, whose logit is subtracted.
        position: The position that predicts it.
        output: What an encoder-decoder writes.
        metric: A function of the output, in place of `target`, `foil` and `position`; see `metrics`.

    Raises:
        UserError: there is no such hook point, head, position, token or class, a shape does not fit, or an edit is
            none.
    """
    inputs = read(subject, text, output)
    edits = _listed(edits)
    metric = given_metric(metric, target, foil, position) or metric_of(inputs, target, foil, position)
    before = output_with(inputs.model, inputs.arguments)
    after = output_with(inputs.model, inputs.arguments, edits)
    return Intervention(
        [str(edit.site) for edit in edits],
        metric(before).item(),
        metric(after).item(),
        ["(text)"] if inputs.class_names else inputs.labels,
        divergence(before, after)[0].flatten().tolist(),
        after[0],
        name_of(metric, inputs),
    )


def _listed(edits: Any) -> list[Edit]:
    """Return one edit or several as a list.

    Raises:
        UserError: they are something else.
    """
    found: list[Any] = [edits]
    if isinstance(edits, Iterable) and not isinstance(edits, str):
        found = list(edits)
    for edit in found:
        if not isinstance(edit, Edit):
            raise UserError(f"edits: each is made by a function such as lens.zero(...); got {shown(edit)}")
    return found
